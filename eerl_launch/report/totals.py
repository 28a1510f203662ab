"""Sums over a run: whole allocation, phases, pools, nodes, GPUs, updates. Every key carries its unit.

Rows of the disjoint partition ("exclusive") plus ``unattributed`` make up the total; subphases lie inside
their phase and are never added to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from eerl_launch.report.rows import GpuRow, PhaseRow, Run, UpdateRow

JOULES_PER_KWH = 3.6e6

#: Sums agree when they differ by no more than this share of the larger one (field case E01).
TOLERANCE = 1e-3

#: Contract 3.7: which phases run under which pool's clock; refit, reward and the rest keep the current one.
OWN_PHASES = {
    "generation": frozenset({"generation", "validation"}),
    "training": frozenset({"training", "logprob", "critic"}),
}


def kwh(energy_j: float | None) -> float | None:
    """Joules as kilowatt hours."""
    return None if energy_j is None else energy_j / JOULES_PER_KWH


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, None when either is unknown or the denominator is not positive."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def weighted_mean(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The mean of values by weights over the pairs where both are known; None without weight."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight is not None]
    weight_sum = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weight_sum if weight_sum > 0 else None


def elapsed_s(run: Run) -> float:
    """Seconds from the first to the last thing the ledger knows of (virtual seconds when simulated)."""
    return run.last_t_s


def expected_gpus(run: Run) -> int | None:
    """GPUs the job should have: stated by the session, else by ``--simulate``; None when not known."""
    stated = run.start.get("gpus_expected")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return stated
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
    parts = [row for row in rows if row["exclusive"]]
    rest_s = total["elapsed_s"] - sum(row["elapsed_s"] or 0.0 for row in parts)
    rest_j = None
    if total["energy_j"] is not None:
        rest_j = total["energy_j"] - sum(row["energy_j"] or 0.0 for row in parts)
        if -TOLERANCE * total["energy_j"] <= rest_j < 0:
            rest_j = 0.0  # rounding of the parts; anything larger is left to be seen
    if rows:
        # Pools that work at the same time fill more seconds than the clock on the wall has.
        overlapping = rest_s < -TOLERANCE * max(total["elapsed_s"], 1.0)
        rows.append(_plain("unattributed", True, None if overlapping else max(rest_s, 0.0), rest_j))
    if rows or total["elapsed_s"]:
        rows.append(_plain("total", False, total["elapsed_s"], total["energy_j"]))
    whole_j = total["energy_j"]
    for entry in rows:
        entry["energy_fraction"] = ratio(entry["energy_j"], whole_j)
    return rows


def _phase(name: str, exclusive: bool, rows: Sequence[PhaseRow]) -> dict[str, Any]:
    with_energy = [row for row in rows if row.energy_j is not None]
    energy_j = known_sum(row.energy_j for row in rows)
    measured_s = known_sum(row.elapsed_s for row in with_energy)
    busy = weighted_mean((row.busy_fraction, row.elapsed_s) for row in rows)
    locked_s = sum(row.elapsed_s or 0.0 for row in rows if row.requested_mhz is not None)
    total_s = known_sum(row.elapsed_s for row in rows)
    return {
        **_plain(name, exclusive, total_s, energy_j),
        "runs": len(rows),
        "runs_without_end": sum(not row.complete for row in rows),
        "runs_without_energy": len(rows) - len(with_energy),
        "energy_reason": next((row.energy_reason for row in rows if row.energy_reason), None),
        "mean_power_w": ratio(energy_j, measured_s),
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
        "energy_reason": None,
        "mean_power_w": ratio(energy_j, time_s),
        "requested_mhz": None,
        "governor_time_fraction": None,
        "achieved_mhz": None,
        "idle_fraction": None,
        "capped_fraction": None,
    }


def gpus(run: Run) -> list[dict[str, Any]]:
    """A row per GPU, by node and index; energies over the exclusive phases beside the total."""
    time_s = elapsed_s(run)
    return [_gpu(gpu, time_s) for gpu in _ordered(run)]


def _ordered(run: Run) -> list[GpuRow]:
    order = {name: place for place, name in enumerate(run.nodes)}
    return sorted(
        run.gpus.values(),
        key=lambda gpu: (
            order.get(gpu.node or "", len(order)),
            -1 if gpu.index is None else gpu.index,
            gpu.uuid,
        ),
    )


def _gpu(gpu: GpuRow, time_s: float) -> dict[str, Any]:
    energy_j = gpu.energy_j
    attributed_j = sum(gpu.phase_energy_j.values())
    busy = ratio(gpu.busy_fraction_s, gpu.busy_known_s)
    return {
        "node": gpu.node,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pools": list(gpu.pools),
        "elapsed_s": time_s,
        "energy_j": energy_j,
        "energy_kwh": kwh(energy_j),
        "mean_power_w": ratio(energy_j, time_s),
        "achieved_mhz": ratio(gpu.achieved_mhz_s, gpu.achieved_s),
        "idle_fraction": None if busy is None else 1.0 - busy,
        "coverage_fraction": gpu.coverage,
        "energy_method": None if energy_j is None else ("power samples" if gpu.estimated else "counter"),
        "energy_scope": gpu.scope,
        "mig": gpu.mig,
        "phase_energy_j": dict(gpu.phase_energy_j),
        "subphase_energy_j": dict(gpu.subphase_energy_j),
        "unattributed_energy_j": None if energy_j is None else energy_j - attributed_j,
        "notes": list(gpu.notes),
    }


def nodes(run: Run) -> list[dict[str, Any]]:
    """A row per node of the job, the silent ones too."""
    rows = []
    for node in run.nodes.values():
        members = [gpu for gpu in run.gpus.values() if gpu.node == node.node]
        energy_j = known_sum(gpu.energy_j for gpu in members)
        coverages = [gpu.coverage for gpu in members if gpu.coverage is not None]
        phase_energy_j: dict[str, float] = {}
        for gpu in members:
            for name, value in gpu.phase_energy_j.items():
                phase_energy_j[name] = phase_energy_j.get(name, 0.0) + value
        rows.append(
            {
                "node": node.node,
                "state": node.state,
                "reason": node.reason,
                "hostname": node.hostname,
                "gpus": len(members),
                "gpu_names": sorted({gpu.name for gpu in members if gpu.name}),
                "energy_j": energy_j,
                "energy_kwh": kwh(energy_j),
                "mean_power_w": ratio(energy_j, elapsed_s(run)),
                "coverage_fraction": sum(coverages) / len(coverages) if coverages else None,
                "energy_scopes": sorted({gpu.scope for gpu in members}),
                "source": node.source,
                "clock_backend": node.backend,
                "clock_backend_reason": node.backend_reason,
                "driver": node.driver,
                "clock_offset_s": node.clock_offset_s,
                "clock_offset_error_s": node.clock_offset_error_s,
                "phase_energy_j": phase_energy_j,
            }
        )
    return rows


def pools(run: Run) -> list[dict[str, Any]]:
    """A row per role; a colocated job has one pool doing both, so both rows have all GPUs."""
    if not run.updates and not run.pools:
        return []
    return [_pool(run, role) for role in dict.fromkeys([*OWN_PHASES, *run.pools])]


def _pool(run: Run, role: str) -> dict[str, Any]:
    members = [run.gpus[uuid] for uuid in run.pools.get(role, []) if uuid in run.gpus] or list(
        run.gpus.values()
    )
    separate = len(members) < len(run.gpus)
    own = OWN_PHASES.get(role, frozenset({role}))
    own_j = other_j = 0.0
    for gpu in members:
        for name, value in gpu.phase_energy_j.items():
            if name.split("/", 1)[0] in own:
                own_j += value
            else:
                other_j += value
    rows = [row for row in run.phases if row.exclusive and row.phase.split("/", 1)[0] in own]
    records = [_record_pool(row, role) for row in run.updates]
    busy = weighted_mean((row.busy_fraction, row.elapsed_s) for row in rows)
    energy_j = known_sum(gpu.energy_j for gpu in members)
    return {
        "pool": role,
        "gpus": len(members),
        "separate": separate,
        "energy_j": energy_j,
        "energy_kwh": kwh(energy_j),
        "own_phase_s": known_sum(row.elapsed_s for row in rows),
        "own_phase_energy_j": own_j if rows else None,
        "other_phase_energy_j": other_j if separate else None,
        "requested_mhz": weighted_mean((row.requested_mhz, row.elapsed_s) for row in rows),
        "achieved_mhz": weighted_mean((row.achieved_mhz, row.elapsed_s) for row in rows),
        "idle_fraction": None if busy is None else 1.0 - busy,
        "busy_s": known_sum(_number(record.get("busy_s")) for record in records),
        "wait_s": known_sum(_number(record.get("wait_s")) for record in records),
    }


def _record_pool(row: UpdateRow, role: str) -> dict[str, Any]:
    found = row.record.get("pools")
    entry = found.get(role) if isinstance(found, dict) else None
    return entry if isinstance(entry, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


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
            (generation_j.get(row.update), row.generated_tokens) for row in run.updates
        ],
        "training_energy_j_per_valid_token": [
            (training_j.get(row.update), row.valid_tokens) for row in run.updates
        ],
        "valid_tokens_per_s": [(row.valid_tokens, row.elapsed_s) for row in run.updates if row.valid_tokens],
    }
    for name, pairs in quotients.items():
        used = [(top, below) for top, below in pairs if top is not None and below]
        result[name] = ratio(sum(top for top, _ in used), sum(below for _, below in used)) if used else None
        result[f"{name}_updates_used"] = len(used)
    return result


def _energy_by_update(run: Run, phase: str) -> dict[int | None, float]:
    sums: dict[int | None, float] = {}
    for row in run.phases:
        if row.update is not None and row.exclusive and row.phase == phase and row.energy_j is not None:
            sums[row.update] = sums.get(row.update, 0.0) + row.energy_j
    return sums
