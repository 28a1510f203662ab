"""A recorded update as it would have been under other clocks: its work, its noise and its events stay its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eerl_controller import ExecutionMode, PhaseRecord, PoolRecord, RecordError, UpdateRecord
from eerl_launch.clock_effect import ClockEffect, Factors
from eerl_launch.work_parts import POOLS, REST, SIDE_BY_SIDE, Clocks, Parts, part_of, parts_of


def move(record: UpdateRecord, effect: ClockEffect, source: Clocks, target: Clocks) -> UpdateRecord | None:
    """The update under ``target`` instead of ``source``; None where a phase or an arrival is not known.

    None too where what comes out cannot be an update. Energy is None in it where a part of it is. Raises ValueError
    where :meth:`ClockEffect.unknown` has an answer.
    """
    if source == target:
        return record
    missing = effect.unknown(target) or effect.unknown(source)
    if missing is not None:
        raise ValueError(missing)
    try:
        return _moved(record, effect, source, target)
    except RecordError:
        return None


def _moved(record: UpdateRecord, effect: ClockEffect, source: Clocks, target: Clocks) -> UpdateRecord | None:
    before = parts_of(record, effect.mode)
    if before is None:
        return None
    factors = [effect.factors(source, target, part) for part in range(3)]
    phases = {name: _phase(phase, factors[part_of(name)]) for name, phase in record.phases.items()}
    if effect.mode not in SIDE_BY_SIDE:
        return _in_turn(record, phases, effect, target, factors)
    after = parts_of(_arrived(replace(record, phases=phases), before, effect.mode), effect.mode)
    if after is None:
        return None
    return _side_by_side(record, phases, (before, after), effect, (source, target), factors)


def _phase(phase: PhaseRecord, factors: Factors) -> PhaseRecord:
    return PhaseRecord(
        elapsed_s=None if phase.elapsed_s is None else phase.elapsed_s * factors.time,
        energy_j=None if phase.energy_j is None else phase.energy_j * factors.time * factors.power,
    )


def _seconds(phases: Mapping[str, PhaseRecord]) -> float:
    return sum(phase.elapsed_s or 0.0 for phase in phases.values())


def _joules(phases: Mapping[str, PhaseRecord]) -> float:
    return sum(phase.energy_j or 0.0 for phase in phases.values())


def _pool(
    pool: PoolRecord,
    effect: ClockEffect,
    axis: int,
    clocks: Clocks,
    energy_j: float | None,
    busy_s: float | None,
    wait_s: float | None,
) -> PoolRecord:
    ceiling = effect.ceilings_mhz[axis]
    reached = None if pool.achieved_mhz is None else min(ceiling, clocks[axis] or ceiling)
    return PoolRecord(
        requested_mhz=clocks[axis], achieved_mhz=reached, energy_j=energy_j, busy_s=busy_s, wait_s=wait_s
    )


def _in_turn(
    record: UpdateRecord,
    phases: Mapping[str, PhaseRecord],
    effect: ClockEffect,
    target: Clocks,
    factors: Sequence[Factors],
) -> UpdateRecord:
    """Synchronous: phases follow each other, and what is not marked is part of the rest."""
    assert record.elapsed_s is not None, "an update without length has no parts"
    rest = factors[REST]
    elapsed_s = _seconds(phases) + max(record.elapsed_s - _seconds(record.phases), 0.0) * rest.time
    energy_j = None
    if record.energy_j is not None:
        energy_j = _joules(phases)
        energy_j += max(record.energy_j - _joules(record.phases), 0.0) * rest.time * rest.power
    pools = dict(record.pools)
    for axis, name in enumerate(POOLS):
        if name in pools:
            pool, own = pools[name], factors[axis]
            energy = None if pool.energy_j is None else pool.energy_j * own.time * own.power
            busy = None if pool.busy_s is None else pool.busy_s * own.time
            wait = None if pool.wait_s is None else pool.wait_s * factors[1 - axis].time
            pools[name] = _pool(pool, effect, axis, target, energy, busy, wait)
    return replace(record, elapsed_s=elapsed_s, energy_j=energy_j, phases=phases, pools=pools)


def _arrived(moved: UpdateRecord, before: Parts, mode: ExecutionMode) -> UpdateRecord:
    """With arrivals as late as the phases' new lengths make them (drained)."""
    if mode is not ExecutionMode.ASYNC_DRAINED:
        return moved
    after = parts_of(moved, mode)
    if after is None:
        return moved
    later = [after.seconds[axis] - before.seconds[axis] for axis in (0, 1)]
    return replace(
        moved,
        generation_arrival_s=max((moved.generation_arrival_s or 0.0) + later[0], 0.0),
        training_arrival_s=max((moved.training_arrival_s or 0.0) + later[1], 0.0),
        elapsed_s=_met(moved, later),
    )


def _met(record: UpdateRecord, later: Sequence[float]) -> float:
    """Seconds of a drained update whose pools arrive so much later: what follows the rendezvous stays."""
    arrivals = (record.generation_arrival_s or 0.0, record.training_arrival_s or 0.0)
    moved = max(arrivals[0] + later[0], arrivals[1] + later[1])
    return (record.elapsed_s or 0.0) - max(arrivals) + moved


def _side_by_side(
    record: UpdateRecord,
    phases: Mapping[str, PhaseRecord],
    parts: tuple[Parts, Parts],
    effect: ClockEffect,
    clocks: tuple[Clocks, Clocks],
    factors: Sequence[Factors],
) -> UpdateRecord:
    """Two pools at work at the same time: how long both take together, and what either draws while it waits."""
    assert record.elapsed_s is not None, "an update without length has no parts"
    before, after = parts
    later = [after.seconds[axis] - before.seconds[axis] for axis in (0, 1)]
    values: dict[str, Any] = {}
    if effect.mode is ExecutionMode.ASYNC_INFLIGHT:
        elapsed_s = record.elapsed_s * effect.paced_s(clocks[1]) / effect.paced_s(clocks[0])
    else:
        elapsed_s = _met(record, later) + before.seconds[REST] * (factors[REST].time - 1.0)
        for axis, name in enumerate(POOLS):
            values[f"{name}_arrival_s"] = max(getattr(record, f"{name}_arrival_s") + later[axis], 0.0)
    pools = dict(record.pools)
    for axis, name in enumerate(POOLS):
        share = getattr(record, f"{name}_busy_fraction")
        if share is not None:
            share *= factors[axis].time * record.elapsed_s / elapsed_s
            values[f"{name}_busy_fraction"] = min(share, 1.0)
        if name in pools:
            lengths = record.elapsed_s, elapsed_s
            pools[name] = _pool_beside(pools[name], axis, parts, lengths, effect, clocks, factors[axis].time)
    values["energy_j"] = None
    changes = [
        (pool.energy_j, was.energy_j)
        for name in POOLS
        if (pool := pools.get(name)) is not None and (was := record.pools.get(name)) is not None
    ]
    known = [(now, was) for now, was in changes if now is not None and was is not None]
    if record.energy_j is not None and len(known) == len(POOLS):
        values["energy_j"] = max(record.energy_j + sum(now - was for now, was in known), 0.0)
    capped = {
        name: replace(phase, elapsed_s=None if phase.elapsed_s is None else min(phase.elapsed_s, elapsed_s))
        for name, phase in phases.items()
    }
    return replace(record, elapsed_s=elapsed_s, phases=capped, pools=pools, **values)


def _pool_beside(
    pool: PoolRecord,
    axis: int,
    parts: tuple[Parts, Parts],
    lengths: tuple[float, float],
    effect: ClockEffect,
    clocks: tuple[Clocks, Clocks],
    slower: float,
) -> PoolRecord:
    """One pool's energy, work and waiting; ``lengths`` are the update's seconds before and after."""
    own_s = parts[0].seconds[axis], parts[1].seconds[axis]
    own_j = parts[0].joules[axis], parts[1].joules[axis]
    wait_s = pool_j = None
    if pool.wait_s is not None:
        wait_s = max(pool.wait_s + lengths[1] - lengths[0] - (own_s[1] - own_s[0]), 0.0)
    if pool.energy_j is not None and own_j[0] is not None and own_j[1] is not None:
        other_j = max(pool.energy_j - own_j[0], 0.0)
        if effect.mode is ExecutionMode.ASYNC_INFLIGHT:
            other_s = [max(length - own, 0.0) for length, own in zip(lengths, own_s, strict=True)]
            other_j *= effect.other_power(*clocks, axis) * (other_s[1] / other_s[0] if other_s[0] else 1.0)
        elif wait_s is not None and pool.wait_s is not None:
            other_j += effect.wait_w(clocks[1], axis) * wait_s - effect.wait_w(clocks[0], axis) * pool.wait_s
        pool_j = own_j[1] + max(other_j, 0.0)
    busy_s = None if pool.busy_s is None else min(pool.busy_s * slower, lengths[1])
    return _pool(pool, effect, axis, clocks[1], pool_j, busy_s, wait_s)
