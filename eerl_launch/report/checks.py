"""Sums that must agree, each against an independent other.

A check is ``ok`` true, false, or null where the ledger does not hold both sides.
"""

from __future__ import annotations

from typing import Any

from eerl_launch.report.rows import Run
from eerl_launch.report.totals import TOLERANCE, allocation, elapsed_s
from eerl_launch.report.values import known_sum

#: Update labels named in a message before it ends with "…".
NAMED = 5


def checks(run: Run) -> list[dict[str, Any]]:
    """The sums of the ledger, each checked against an independent other."""
    if not run.gpus:
        return []
    total_j = allocation(run)["energy_j"]
    parts_j = known_sum(row.energy_j for row in run.phases if row.exclusive)
    # Of a phase whose whole is unknown some GPUs may be known; only wholes can be compared with their parts.
    both = [row for row in run.phases if row.exclusive and None not in (row.energy_j, row.gpus_energy_j)]
    phases_j = known_sum(row.energy_j for row in both)
    phases_gpus_j = known_sum(row.gpus_energy_j for row in both)
    updates_j = known_sum(row.energy_j for row in run.updates)
    busy_s = known_sum(row.elapsed_s for row in run.phases if row.exclusive)
    found = [
        _within("phases fit into the total energy", parts_j, total_j, "J"),
        _within("updates fit into the total energy", updates_j, total_j, "J"),
        _equal("energy of phases equals the same by GPU", phases_j, phases_gpus_j, "J"),
        _update_sums(run),
        _update_gpus(run),
        _never_negative(run),
    ]
    if run.mode in (None, "colocated_sync", "disaggregated_sync"):
        found.insert(1, _within("phases fit into the time of the run", busy_s, elapsed_s(run), "s"))
    return [check for check in found if check is not None]


def _agree(left: float, right: float) -> bool:
    return abs(left - right) <= TOLERANCE * max(abs(left), abs(right), 1e-9)


def _result(name: str, ok: bool, seen: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "seen": seen}


def _within(name: str, part: float | None, whole: float | None, unit: str) -> dict[str, Any] | None:
    if part is None or whole is None:
        return None
    ok = part <= whole * (1 + TOLERANCE)
    return _result(
        name, ok, f"{part:.1f} of {whole:.1f} {unit}; the rest, {whole - part:.1f} {unit}, is unattributed"
    )


def _equal(name: str, left: float | None, right: float | None, unit: str) -> dict[str, Any] | None:
    if left is None or right is None:
        return None
    return _result(name, _agree(left, right), f"{left:.1f} and {right:.1f} {unit}")


def _named(labels: list[int | None]) -> str:
    return ", ".join(str(label) for label in labels[:NAMED]) + (", …" if len(labels) > NAMED else "")


def _update_sums(run: Run) -> dict[str, Any] | None:
    """Phases plus unattributed of every update against the energy of the update."""
    rows = [
        (row, row.energy_j, (row.phases_energy_j or 0.0) + row.unattributed_j)
        for row in run.updates
        if row.energy_j is not None and row.unattributed_j is not None
    ]
    if not rows:
        return None
    wrong = [row.update for row, energy_j, parts_j in rows if not _agree(energy_j, parts_j)]
    seen = f"{len(rows) - len(wrong)} of {len(rows)} updates within 0.1 %"
    if wrong:
        seen += f"; not: {_named(wrong)}"
    return _result("phases plus unattributed equal each update", not wrong, seen)


def _update_gpus(run: Run) -> dict[str, Any] | None:
    rows = [
        (row, row.energy_j, row.gpus_energy_j)
        for row in run.updates
        if row.energy_j is not None and row.gpus_energy_j is not None
    ]
    if not rows:
        return None
    wrong = [row.update for row, energy_j, gpus_j in rows if not _agree(energy_j, gpus_j)]
    seen = f"{len(rows) - len(wrong)} of {len(rows)} updates within 0.1 %"
    if wrong:
        seen += f"; not: {_named(wrong)}"
    return _result("GPUs add up to each update", not wrong, seen)


def _never_negative(run: Run) -> dict[str, Any]:
    values = [row.energy_j for row in run.phases] + [row.elapsed_s for row in run.phases]
    values += [row.energy_j for row in run.updates] + [row.elapsed_s for row in run.updates]
    values += [gpu.energy_j for gpu in run.gpus.values()]
    negative = sum(value is not None and value < 0 for value in values)
    return _result("no energy or time is negative", negative == 0, f"{negative} negative values")
