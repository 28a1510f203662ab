"""The best fixed clocks in hindsight: the same work and noise under every pair of clocks at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eerl_controller import ExecutionMode
from eerl_twin.conditions import Conditions
from eerl_twin.machine import Machine, Setting
from eerl_twin.response import Array
from eerl_twin.timeline import timeline
from eerl_twin.world import World

#: The paper's idle clock (Table 3), MHz; the nearest supported one is taken.
IDLE_MHZ = 345
#: Clocks of either axis in the first pass; a second pass tries every supported clock around its best.
FIRST_PASS_CLOCKS = 28


@dataclass(frozen=True, slots=True)
class Sweep:
    """Fixed pairs over one run against the governor, as arrays: NaN MHz is the governor, fractions as in Totals."""

    generation_mhz: Array
    training_mhz: Array
    idle_mhz: int | None
    energy_saving: Array
    throughput_change: Array


@dataclass(frozen=True, slots=True)
class Oracle:
    """The best fixed setting within the limit; all None and 0 when the governor is."""

    generation_mhz: int | None
    training_mhz: int | None
    idle_mhz: int | None
    energy_saving: float
    throughput_change: float


def sweep(
    world: World,
    conditions: Conditions,
    generation_mhz: Array,
    training_mhz: Array,
    idle_mhz: int | None,
    *,
    first: int = 0,
    governor_updates: int = 0,
) -> Sweep:
    """Every pair of the two arrays (element by element) over the same run.

    Updates before index ``first`` run but do not count; the first ``governor_updates`` are left to the governor.
    """
    nobody = np.full(len(generation_mhz), math.nan)
    machines = [Machine(world), Machine(world, world.faults.throttle_factor)]
    chosen: list[Setting[Array]] = []
    governed: list[Setting[Array]] = []
    for machine in machines:
        chosen.append(machine.many(generation_mhz, training_mhz, idle_mhz))
        governed.append(machine.many(nobody, nobody, None))
    actual, governor = timeline(world, conditions), timeline(world, conditions)
    one = [machine.one(None, None, None) for machine in machines]
    elapsed_s, energy_j = np.zeros(len(nobody)), np.zeros(len(nobody))
    governor_s = governor_j = 0.0
    for update in range(conditions.updates):
        throttled = conditions.throttled[update]
        setting = governed[throttled] if update < governor_updates else chosen[throttled]
        step, reference = actual.step(update, setting), governor.step(update, one[throttled])
        if update >= first:
            elapsed_s += step.elapsed_s
            energy_j += step.energy_j
            governor_s += reference.elapsed_s
            governor_j += reference.energy_j
    return Sweep(
        generation_mhz=generation_mhz,
        training_mhz=training_mhz,
        idle_mhz=idle_mhz,
        energy_saving=1.0 - energy_j / governor_j,
        throughput_change=governor_s / elapsed_s - 1.0,
    )


def best_fixed(
    world: World, conditions: Conditions, *, max_loss: float = 0.02, governor_updates: int = 0
) -> Oracle:
    """The oracle: with the idle clock where pools wait apart, without it elsewhere.

    ``governor_updates`` leaves as many first updates to the governor: what no policy that calibrates can beat.
    """
    clocks = np.array(sorted(world.supported_mhz), dtype=np.float64)
    separate = world.mode in (ExecutionMode.DISAGGREGATED_SYNC, ExecutionMode.ASYNC_DRAINED)
    nearest = int(clocks[np.abs(clocks - IDLE_MHZ).argmin()])
    best = Oracle(None, None, None, 0.0, 0.0)
    for idle_mhz in (nearest, None) if separate else (None,):
        stride = max(len(clocks) // FIRST_PASS_CLOCKS, 1)
        axes = (clocks[::stride], clocks[::stride])
        for last in (False, True):
            found = _best(
                sweep(world, conditions, *_grid(*axes), idle_mhz, governor_updates=governor_updates), max_loss
            )
            if found is not None and found.energy_saving > best.energy_saving:
                best = found
            if last or found is None or stride == 1:
                break
            axes = (
                _around(clocks, found.generation_mhz, stride),
                _around(clocks, found.training_mhz, stride),
            )
    return best


def _grid(generation_mhz: Array, training_mhz: Array) -> tuple[Array, Array]:
    """Every pair of the two axes, the governor among both."""
    one, other = np.meshgrid(np.append(generation_mhz, math.nan), np.append(training_mhz, math.nan))
    return one.ravel(), other.ravel()


def _around(clocks: Array, mhz: int | None, stride: int) -> Array:
    """The supported clocks within a stride of this one."""
    middle = len(clocks) - 1 if mhz is None else int(np.searchsorted(clocks, mhz))
    return clocks[max(middle - stride, 0) : middle + stride + 1]


def _best(done: Sweep, max_loss: float) -> Oracle | None:
    """The pair with the largest saving within the limit; None when all are slower."""
    allowed = np.flatnonzero(done.throughput_change >= -max_loss)
    if not len(allowed):
        return None
    at = int(allowed[done.energy_saving[allowed].argmax()])
    pair = [None if math.isnan(mhz[at]) else int(mhz[at]) for mhz in (done.generation_mhz, done.training_mhz)]
    return Oracle(
        pair[0], pair[1], done.idle_mhz, float(done.energy_saving[at]), float(done.throughput_change[at])
    )
