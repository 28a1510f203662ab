"""Sums over the runs of each phase, in one pass. Every key carries its unit.

Rows of the disjoint partition ("exclusive") plus ``unattributed`` make up the total; subphases lie inside
their phase and are never added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eerl_launch.report.rows import PhaseRow, Run
from eerl_launch.report.totals import ASYNCHRONOUS, TOLERANCE, allocation
from eerl_launch.report.values import kwh, ratio

#: Columns of phases whose means are weighted by time.
_BY_TIME = ("requested_mhz", "achieved_mhz", "busy_fraction", "capped_fraction")


@dataclass(slots=True)
class _Sums:
    """What the runs of a phase add up to, in one pass: there may be a million of them."""

    runs: int = 0
    without_end: int = 0
    without_energy: int = 0
    reason: str | None = None
    elapsed_s: float | None = None
    energy_j: float | None = None
    measured_s: float | None = None
    error_j: float | None = 0.0
    locked_s: float = 0.0
    #: By column of a phase: value times seconds, and the seconds of the runs that have it.
    weighted: dict[str, list[float]] = field(default_factory=lambda: {name: [0.0, 0.0] for name in _BY_TIME})

    def add(self, row: PhaseRow) -> None:
        """Take in one run of the phase."""
        elapsed_s = row.elapsed_s
        self.runs += 1
        self.without_end += not row.complete
        self.reason = self.reason or row.energy_reason
        if row.energy_j is None:
            self.without_energy += 1
        else:
            self.energy_j = (self.energy_j or 0.0) + row.energy_j
            self.error_j = _both(self.error_j, row.energy_error_j)
        if elapsed_s is None:
            return
        self.elapsed_s = (self.elapsed_s or 0.0) + elapsed_s
        if row.energy_j is not None:
            self.measured_s = (self.measured_s or 0.0) + elapsed_s
        if row.requested_mhz is not None:
            self.locked_s += elapsed_s
        for name, sums in self.weighted.items():
            value = getattr(row, name)
            if value is not None:
                sums[0] += value * elapsed_s
                sums[1] += elapsed_s

    def merge(self, other: _Sums) -> None:
        """Take in the clocks of another phase, for those of the whole run."""
        if other.elapsed_s is not None:
            self.elapsed_s = (self.elapsed_s or 0.0) + other.elapsed_s
        self.locked_s += other.locked_s
        for name, sums in self.weighted.items():
            sums[0] += other.weighted[name][0]
            sums[1] += other.weighted[name][1]

    def mean(self, name: str) -> float | None:
        """A column's mean by time."""
        return ratio(*self.weighted[name])


def _both(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def phases(run: Run) -> list[dict[str, Any]]:
    """A row per phase and subphase, in order of first appearance, then ``unattributed`` and ``total``."""
    groups: dict[tuple[str, bool], _Sums] = {}
    for row in run.phases:
        key = (row.phase, row.exclusive)
        if key not in groups:
            groups[key] = _Sums()
        groups[key].add(row)
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in groups))}

    def place(key: tuple[str, bool]) -> tuple[int, int]:
        name = key[0]
        return order.get(name.split("/", 1)[0], order[name]), order[name] if "/" in name else -1

    rows = [_phase(name, exclusive, groups[name, exclusive]) for name, exclusive in sorted(groups, key=place)]
    total = allocation(run)
    everything = _Sums()
    for (_, exclusive), sums in groups.items():
        if exclusive:
            everything.merge(sums)
    parts = [row for row in rows if row["exclusive"]]
    rest_s = total["elapsed_s"] - _marked_s(run, everything)
    rest_j = None
    if total["energy_j"] is not None:
        rest_j = total["energy_j"] - sum(row["energy_j"] or 0.0 for row in parts)
        if -TOLERANCE * total["energy_j"] <= rest_j < 0:
            rest_j = 0.0  # rounding of the parts; anything larger is left to be seen
    if rows:
        # Pools that work at the same time fill more seconds than the clock on the wall has.
        overlapping = rest_s < -TOLERANCE * max(total["elapsed_s"], 1.0)
        rest = _plain("unattributed", True, None if overlapping else max(rest_s, 0.0), rest_j)
        unknown = sum(row["runs_without_energy"] for row in parts)
        if unknown:
            # Joules of these runs are in the rest, their seconds are not: a mean power would be nonsense.
            rest["mean_power_w"] = None
            rest["energy_reason"] = f"includes what could not be measured by phase (runs: {unknown})"
        rows.append(rest)
    if rows or total["energy_j"] is not None:
        rows.append(_plain("total", False, total["elapsed_s"], total["energy_j"]) | _clocks(everything))
    whole_j = total["energy_j"]
    for entry in rows:
        entry["energy_fraction"] = ratio(entry["energy_j"], whole_j)
    return rows


def _marked_s(run: Run, everything: _Sums) -> float:
    """Seconds in which a phase ran: pools that work at the same time do not use a second twice."""
    if run.mode not in ASYNCHRONOUS:
        return everything.elapsed_s or 0.0
    marked_s, at_s = 0.0, float("-inf")
    for begin_s, end_s in sorted(
        (row.begin_s, row.end_s)
        for row in run.phases
        if row.exclusive and row.begin_s is not None and row.end_s is not None
    ):
        marked_s += max(0.0, end_s - max(begin_s, at_s))
        at_s = max(at_s, end_s)
    return marked_s


def _phase(name: str, exclusive: bool, sums: _Sums) -> dict[str, Any]:
    return {
        **_plain(name, exclusive, sums.elapsed_s, sums.energy_j),
        "runs": sums.runs,
        "runs_without_end": sums.without_end,
        "runs_without_energy": sums.without_energy,
        "energy_error_j": sums.error_j if sums.without_energy < sums.runs else None,
        "energy_reason": sums.reason,
        "mean_power_w": ratio(sums.energy_j, sums.measured_s),
        **_clocks(sums),
    }


def _clocks(sums: _Sums) -> dict[str, float | None]:
    """Requested (while a lock was held) and achieved clocks, idle and capped share, weighted by time."""
    busy = sums.mean("busy_fraction")
    total_s = sums.elapsed_s
    return {
        "requested_mhz": sums.mean("requested_mhz"),
        "governor_time_fraction": None if total_s is None else 1.0 - (ratio(sums.locked_s, total_s) or 0.0),
        "achieved_mhz": sums.mean("achieved_mhz"),
        "idle_fraction": None if busy is None else 1.0 - busy,
        "capped_fraction": sums.mean("capped_fraction"),
    }


def _plain(name: str, exclusive: bool, time_s: float | None, energy_j: float | None) -> dict[str, Any]:
    return {
        "phase": name,
        "exclusive": exclusive,
        "runs": None,
        "runs_without_end": None,
        "runs_without_energy": None,
        "elapsed_s": time_s,
        "energy_j": energy_j,
        "energy_kwh": kwh(energy_j),
        "energy_error_j": None,
        "energy_reason": None,
        "mean_power_w": ratio(energy_j, time_s),
        "requested_mhz": None,
        "governor_time_fraction": None,
        "achieved_mhz": None,
        "idle_fraction": None,
        "capped_fraction": None,
    }
