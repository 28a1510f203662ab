"""Sums by GPU, node and pool; every key carries its unit."""

from __future__ import annotations

from typing import Any

from eerl_launch.report.rows import GpuRow, Run, UpdateRow
from eerl_launch.report.totals import elapsed_s
from eerl_launch.report.values import known_sum, kwh, mean, number, ratio, weighted_mean

#: Contract 3.7: which phases run under which pool's clock; refit, reward and the rest keep the current one.
OWN_PHASES = {
    "generation": frozenset({"generation", "validation"}),
    "training": frozenset({"training", "logprob", "critic"}),
}


def gpus(run: Run) -> list[dict[str, Any]]:
    """A row per GPU, by node and index; energies over the exclusive phases beside the total."""
    time_s = elapsed_s(run)
    asked = {pools: _requested(run, pools) for pools in {gpu.pools for gpu in run.gpus.values()}}
    return [_gpu(gpu, time_s, asked[gpu.pools]) for gpu in _ordered(run)]


def _requested(run: Run, pools: tuple[str, ...]) -> float | None:
    """The mean lock over the phases of a GPU's own pools, all phases when it belongs to none in particular."""
    own = {phase for role in pools for phase in OWN_PHASES.get(role, {role})}
    return weighted_mean(
        (row.requested_mhz, row.elapsed_s)
        for row in run.phases
        if row.exclusive and (not own or row.phase.split("/", 1)[0] in own)
    )


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


def _gpu(gpu: GpuRow, time_s: float, requested_mhz: float | None) -> dict[str, Any]:
    energy_j = gpu.energy_j
    attributed_j = sum(gpu.phase_energy_j.values())
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
        "requested_mhz": requested_mhz,
        "achieved_mhz": gpu.achieved_mhz,
        "idle_fraction": None if gpu.busy_fraction is None else 1.0 - gpu.busy_fraction,
        "capped_fraction": gpu.capped_fraction,
        "slowed_fraction": gpu.slowed_fraction,
        "coverage_fraction": gpu.coverage,
        "energy_method": None if energy_j is None else ("power samples" if gpu.estimated else "counter"),
        "energy_scope": gpu.scope,
        "gpu_only_power_w": gpu.sampled_power_w if gpu.scope != "gpu" else None,
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
        busy = mean(gpu.busy_fraction for gpu in members)
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
                "achieved_mhz": mean(gpu.achieved_mhz for gpu in members),
                "idle_fraction": None if busy is None else 1.0 - busy,
                "capped_fraction": mean(gpu.capped_fraction for gpu in members),
                "slowed_fraction": mean(gpu.slowed_fraction for gpu in members),
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
    """A row per role; a colocated job has one pool doing both, so both rows have all GPUs.

    ``waiting_energy_j`` is what a separate pool drew while it had nothing to do; ledgers without the waits of
    updates tell the energy in the phases of others instead.
    """
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
    waits = [entry for row in run.updates if isinstance(entry := row.pool_waits.get(role), dict)]
    waiting_j = known_sum(number(entry.get("energy_j")) for entry in waits) if waits else other_j
    return {
        "pool": role,
        "gpus": len(members),
        "separate": separate,
        "energy_j": energy_j,
        "energy_kwh": kwh(energy_j),
        "own_phase_s": known_sum(row.elapsed_s for row in rows),
        "own_phase_energy_j": own_j if rows else None,
        "other_phase_energy_j": other_j if separate else None,
        "waiting_energy_j": waiting_j if separate else None,
        "requested_mhz": weighted_mean((row.requested_mhz, row.elapsed_s) for row in rows),
        "achieved_mhz": weighted_mean((row.achieved_mhz, row.elapsed_s) for row in rows),
        "idle_fraction": None if busy is None else 1.0 - busy,
        "busy_s": known_sum(number(record.get("busy_s")) for record in records),
        "wait_s": known_sum(number(record.get("wait_s")) for record in records),
    }


def _record_pool(row: UpdateRow, role: str) -> dict[str, Any]:
    found = row.record.get("pools")
    entry = found.get(role) if isinstance(found, dict) else None
    return entry if isinstance(entry, dict) else {}
