"""Sums over a run: the whole allocation and the updates. Every key carries its unit."""

from __future__ import annotations

import re
from typing import Any

from eerl_launch.report.rows import Run
from eerl_launch.report.values import known_sum, kwh, number, ratio

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
