"""Sums over a run: whole allocation, phases, updates. Every key carries its unit.

Rows of the disjoint partition ("exclusive") plus ``unattributed`` make up the total; subphases lie inside
their phase and are never added to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from eerl_launch.report.rows import PhaseRow, Run
from eerl_launch.report.values import known_sum, kwh, number, ratio, weighted_mean

#: Sums agree when they differ by no more than this share of the larger one (field case E01).
TOLERANCE = 1e-3
#: Modes in which the pools work at the same time, so that times of phases do not add up to the time of the run.
ASYNCHRONOUS = ("async_drained", "async_inflight")


def elapsed_s(run: Run) -> float:
    """Seconds from the run's start to the end of the command, else to the last thing the ledger knows of.

    Virtual seconds when simulated.
    """
    ended_s = number(run.end.get("run_s")) if run.end else None
    return run.last_t_s if ended_s is None else ended_s


def expected_gpus(run: Run) -> int | None:
    """GPUs the job should have: as Slurm granted them, or as ``--simulate`` says; None when not known."""
    granted = [run.granted.get(node) for node in run.nodes]
    if granted and all(isinstance(indices, list) for indices in granted):
        return sum(len(indices) for indices in granted if isinstance(indices, list))
    found = re.fullmatch(r"\w+:(\d+)x(\d+)", run.simulated or "")
    return int(found[1]) * int(found[2]) if found else None


def allocation(run: Run) -> dict[str, Any]:
    """The whole allocation: time, energy, mean power, nodes and GPUs seen of expected."""
    gpus = list(run.gpus.values())
    energy_j = known_sum(gpu.energy_j for gpu in gpus)
    joined = [node for node in run.nodes.values() if node.state in ("joined", "lost")]
    coverages = [gpu.coverage for gpu in gpus if gpu.coverage is not None]
    return {
        "elapsed_s": elapsed_s(run),
        "energy_j": energy_j,
        "energy_kwh": kwh(energy_j),
        "mean_power_w": ratio(energy_j, elapsed_s(run)),
        "nodes_expected": len(run.nodes) or None,
        "nodes_seen": len(joined),
        "gpus_expected": expected_gpus(run),
        "gpus_seen": len(gpus),
        "gpus_measured": sum(gpu.energy_j is not None for gpu in gpus),
        "coverage_fraction": sum(coverages) / len(coverages) if coverages else None,
        "coverage_min_fraction": min(coverages) if coverages else None,
        "energy_scopes": sorted({gpu.scope for gpu in gpus}),
    }


def phases(run: Run) -> list[dict[str, Any]]:
    """A row per phase and subphase, in order of first appearance, then ``unattributed`` and ``total``."""
    groups: dict[tuple[str, bool], list[PhaseRow]] = {}
    for row in run.phases:
        groups.setdefault((row.phase, row.exclusive), []).append(row)
    order = {name: place for place, name in enumerate(dict.fromkeys(row.phase for row in run.phases))}
    heads = {name: order[name] for name in order}

    def place(key: tuple[str, bool]) -> tuple[int, int]:
        name = key[0]
        return heads.get(name.split("/", 1)[0], order[name]), order[name] if "/" in name else -1

    rows = [_phase(name, exclusive, groups[name, exclusive]) for name, exclusive in sorted(groups, key=place)]
    total = allocation(run)
    exclusive = [row for row in run.phases if row.exclusive]
    parts = [row for row in rows if row["exclusive"]]
    rest_s = total["elapsed_s"] - _marked_s(run, exclusive)
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
        rows.append(_plain("total", False, total["elapsed_s"], total["energy_j"]) | _clocks(exclusive))
    whole_j = total["energy_j"]
    for entry in rows:
        entry["energy_fraction"] = ratio(entry["energy_j"], whole_j)
    return rows


def _marked_s(run: Run, rows: Sequence[PhaseRow]) -> float:
    """Seconds in which a phase ran: pools that work at the same time do not use a second twice."""
    if run.mode not in ASYNCHRONOUS:
        return sum(row.elapsed_s or 0.0 for row in rows)
    marked_s, at_s = 0.0, float("-inf")
    for begin_s, end_s in sorted(
        (row.begin_s, row.end_s) for row in rows if row.begin_s is not None and row.end_s is not None
    ):
        marked_s += max(0.0, end_s - max(begin_s, at_s))
        at_s = max(at_s, end_s)
    return marked_s


def _phase(name: str, exclusive: bool, rows: Sequence[PhaseRow]) -> dict[str, Any]:
    with_energy = [row for row in rows if row.energy_j is not None]
    energy_j = known_sum(row.energy_j for row in rows)
    measured_s = known_sum(row.elapsed_s for row in with_energy)
    total_s = known_sum(row.elapsed_s for row in rows)
    return {
        **_plain(name, exclusive, total_s, energy_j),
        "runs": len(rows),
        "runs_without_end": sum(not row.complete for row in rows),
        "runs_without_energy": len(rows) - len(with_energy),
        "energy_error_j": known_sum(row.energy_error_j for row in with_energy)
        if all(row.energy_error_j is not None for row in with_energy)
        else None,
        "energy_reason": next((row.energy_reason for row in rows if row.energy_reason), None),
        "mean_power_w": ratio(energy_j, measured_s),
        **_clocks(rows),
    }


def _clocks(rows: Sequence[PhaseRow]) -> dict[str, float | None]:
    """Requested (while a lock was held) and achieved clocks, idle and capped share, weighted by time."""
    busy = weighted_mean((row.busy_fraction, row.elapsed_s) for row in rows)
    total_s = known_sum(row.elapsed_s for row in rows)
    locked_s = sum(row.elapsed_s or 0.0 for row in rows if row.requested_mhz is not None)
    return {
        "requested_mhz": weighted_mean((row.requested_mhz, row.elapsed_s) for row in rows),
        "governor_time_fraction": None if total_s is None else 1.0 - (ratio(locked_s, total_s) or 0.0),
        "achieved_mhz": weighted_mean((row.achieved_mhz, row.elapsed_s) for row in rows),
        "idle_fraction": None if busy is None else 1.0 - busy,
        "capped_fraction": weighted_mean((row.capped_fraction, row.elapsed_s) for row in rows),
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


def updates(run: Run) -> dict[str, Any]:
    """Counts over all updates. Each quotient is over the updates that have both its sides, and says how many."""
    generation_j = _energy_by_update(run, "generation")
    training_j = _energy_by_update(run, "training")
    labels = [row.update for row in run.updates if row.update is not None]
    result: dict[str, Any] = {
        "updates": len(run.updates),
        "first_update": labels[0] if labels else None,
        "last_update": labels[-1] if labels else None,
        "governor_updates": sum(row.governor is True for row in run.updates),
        "updates_with_counts": sum(bool(row.valid_tokens) for row in run.updates),
        "generated_tokens": known_sum(row.generated_tokens for row in run.updates),
        "valid_tokens": known_sum(row.valid_tokens for row in run.updates),
        "longest_response_tokens": max(
            (row.longest_response_tokens for row in run.updates if row.longest_response_tokens is not None),
            default=None,
        ),
    }
    quotients: dict[str, list[tuple[float | None, float | None]]] = {
        "energy_j_per_valid_token": [(row.energy_j, row.valid_tokens) for row in run.updates],
        "energy_j_per_generated_token": [(row.energy_j, row.generated_tokens) for row in run.updates],
        "generation_energy_j_per_generated_token": [
            (generation_j.get(row.index), row.generated_tokens) for row in run.updates
        ],
        "training_energy_j_per_valid_token": [
            (training_j.get(row.index), row.valid_tokens) for row in run.updates
        ],
        "valid_tokens_per_s": [(row.valid_tokens, row.elapsed_s) for row in run.updates if row.valid_tokens],
    }
    for name, pairs in quotients.items():
        used = [(top, below) for top, below in pairs if top is not None and below]
        result[name] = ratio(sum(top for top, _ in used), sum(below for _, below in used)) if used else None
        result[f"{name}_updates_used"] = len(used)
    return result


def _energy_by_update(run: Run, phase: str) -> dict[int, float]:
    sums: dict[int, float] = {}
    for row in run.phases:
        if row.index is not None and row.exclusive and row.phase == phase and row.energy_j is not None:
            sums[row.index] = sums.get(row.index, 0.0) + row.energy_j
    return sums
