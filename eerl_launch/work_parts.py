"""A recorded update in the parts that answer to clocks: generation, training, the rest, and what pools wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eerl_controller import ExecutionMode, UpdateRecord
from eerl_controller.work import (
    ARRIVAL_SLACK,
    ARRIVAL_SLACK_S,
    GENERATION_PHASES,
    TRAINING_PHASES,
    counts_of,
    phase_totals,
    visitors,
)

POOLS = ("generation", "training")
GENERATION, TRAINING, REST = 0, 1, 2
#: Modes in which both pools work at the same time.
SIDE_BY_SIDE = (ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT)


class Clocks(NamedTuple):
    """Requested clocks in MHz; None is the governor."""

    generation_mhz: int | None = None
    training_mhz: int | None = None
    idle_mhz: int | None = None


GOVERNOR = Clocks()


class Waiting(NamedTuple):
    """What a separate pool spent outside its own phases: mean watts, and the share in which it waited."""

    watts: float
    share: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds and joules (None: unknown) of generation, training and the rest, without validation and checkpoint.

    Of pools side by side the rest is what follows both, its joules are not known apart, and ``waits`` has by pool
    how it spent what is outside its own phases.
    """

    counts: Mapping[str, float]
    seconds: tuple[float, float, float]
    joules: tuple[float | None, float | None, float | None]
    waits: tuple[Waiting | None, Waiting | None]


def part_of(phase: str) -> int:
    """Which clock a phase answers to (contract 3.7): generation's, training's, or neither alone."""
    name = phase.split("/", 1)[0]
    if name in (*GENERATION_PHASES, "validation"):
        return GENERATION
    return TRAINING if name in TRAINING_PHASES else REST


def parts_of(record: UpdateRecord, mode: ExecutionMode) -> Parts | None:
    """The update's parts; None when it has no length, or generation, training or their meeting is not known."""
    totals = phase_totals(record)
    seconds: list[float] = []
    joules: list[float | None] = []
    for names in (GENERATION_PHASES, TRAINING_PHASES):
        own = [totals[name] for name in names if name in totals]
        known = [item[1] for item in own if item[1] is not None]
        seconds.append(sum(item[0] for item in own))
        joules.append(sum(known) if own and len(known) == len(own) else None)
    if min(seconds) <= 0.0 or record.elapsed_s is None:
        return None
    visit_s, visit_j = visitors(record)
    if mode is ExecutionMode.ASYNC_DRAINED:
        if record.generation_arrival_s is None or record.training_arrival_s is None:
            return None
        met_s = max(record.generation_arrival_s, record.training_arrival_s)
        if met_s > ARRIVAL_SLACK * record.elapsed_s + ARRIVAL_SLACK_S:
            return None
        rest_s = record.elapsed_s - met_s
    else:
        busy_s = max(seconds) if mode is ExecutionMode.ASYNC_INFLIGHT else sum(seconds)
        rest_s = record.elapsed_s - visit_s - busy_s
    rest_j = None
    if mode not in SIDE_BY_SIDE and record.energy_j is not None:
        own_j = [value for value in joules if value is not None]
        rest_j = record.energy_j - visit_j - sum(own_j) if len(own_j) == 2 else None
    waits = [_waiting(record, pool, seconds[axis], joules[axis]) for axis, pool in enumerate(POOLS)]
    return Parts(
        counts_of(record),
        (seconds[0], seconds[1], max(rest_s, 0.0)),
        (joules[0], joules[1], rest_j),
        (waits[0], waits[1]) if mode in SIDE_BY_SIDE else (None, None),
    )


def _waiting(record: UpdateRecord, name: str, own_s: float, own_j: float | None) -> Waiting | None:
    pool, elapsed_s = record.pools.get(name), record.elapsed_s
    if pool is None or pool.energy_j is None or pool.wait_s is None or own_j is None or elapsed_s is None:
        return None
    other_s = elapsed_s - own_s
    if other_s <= 0.0:
        return None
    return Waiting(max(pool.energy_j - own_j, 0.0) / other_s, min(pool.wait_s / other_s, 1.0))
