"""One asynchronous update as the model sees it: what each pool took for its work, and how long both went on.

Drained updates have a rendezvous: a side is a pool's way there, and both go on until the later one arrives. In-flight
updates have none: a side is the pool's busy time, and both go on until the trainer pauses for new weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eerl_controller.bayes.curve import DEEPEST
from eerl_controller.clocks import Pair
from eerl_controller.records import ExecutionMode, UpdateRecord
from eerl_controller.work import GENERATION_PHASES, LEAST, TRAINING_PHASES, Observation, visitors

Two = tuple[float, float]
Three = tuple[float, float, float]
#: Parts of an update's time, in the order of everything that is kept by part; the first two are also the pools.
GENERATION, TRAINING, REST = 0, 1, 2
#: What training waits for but no training clock moves.
BEFORE_TRAINING = ("reward",)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A setting: how deep either clock is below the governor's (a log), what is locked, and whether pools idle.

    ``below``: the same depths from the highest clock there is. A power cap keeps work below it, not what is light.
    """

    depths: Two
    locked: tuple[bool, bool]
    idles: bool
    below: Two

    @property
    def is_governor(self) -> bool:
        """Whether nothing differs from the governor."""
        return not (self.locked[0] or self.locked[1] or self.idles)

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        return [list(self.depths), list(self.locked), self.idles, list(self.below)]

    @classmethod
    def from_list(cls, values: list[Any]) -> Lowered:
        """What :meth:`to_list` wrote."""
        depths, locked, idles, below = values
        return cls((depths[0], depths[1]), (locked[0], locked[1]), idles, (below[0], below[1]))


#: The governor's own clocks.
GOVERNED = Lowered((0.0, 0.0), (False, False), idles=False, below=(0.0, 0.0))


def lowered(pair: Pair, ceilings_mhz: Two, top_mhz: float) -> Lowered:
    """A pair of clocks relative to the ones that the governor reaches at work, and to the highest."""
    depths, below = [], []
    for mhz, ceiling in zip(pair.phases, ceilings_mhz, strict=True):
        depths.append(0.0 if mhz is None else min(max(math.log(ceiling / mhz), 0.0), DEEPEST))
        below.append(0.0 if mhz is None else max(math.log(top_mhz / mhz), 0.0))
    locked = (pair.generation_mhz is not None, pair.training_mhz is not None)
    return Lowered((depths[0], depths[1]), locked, pair.idle_mhz is not None, (below[0], below[1]))


@dataclass(frozen=True, slots=True)
class Sides:
    """Seconds of both sides and of the rest, and of both going on; joules of either pool, busy and otherwise.

    Joules are None when any of them is not known; ``visited`` says that something else ran in the update too.
    """

    seconds: Three
    running_s: float
    busy_s: Two
    busy_j: Two | None
    other_j: Two | None
    visited: bool

    @property
    def waits_s(self) -> Two:
        """Seconds that either pool waits for the other."""
        return self.running_s - self.seconds[0], self.running_s - self.seconds[1]

    def other_s(self, axis: int) -> float:
        """Seconds in which a pool does not do its own work."""
        return max(self.running_s + self.seconds[REST] - self.busy_s[axis], 0.0)

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        joules = [list(part) if part is not None else None for part in (self.busy_j, self.other_j)]
        return [list(self.seconds), self.running_s, list(self.busy_s), *joules, self.visited]

    @classmethod
    def from_list(cls, values: list[Any]) -> Sides:
        """What :meth:`to_list` wrote."""
        seconds, running_s, busy_s, busy_j, other_j, visited = values
        a, b, c = seconds
        two = [(part[0], part[1]) if part is not None else None for part in (busy_j, other_j)]
        return cls((a, b, c), running_s, (busy_s[0], busy_s[1]), two[0], two[1], visited)


def own_seconds(observation: Observation) -> Two | None:
    """Seconds of the phases that each side consists of; None when a side has none."""
    phases = observation.phases
    generation_s = sum(phases[name][0] for name in GENERATION_PHASES if name in phases)
    work_s = sum(phases[name][0] for name in TRAINING_PHASES if name in phases)
    before_s = sum(phases[name][0] for name in BEFORE_TRAINING if name in phases)
    if min(generation_s, work_s) < LEAST:
        return None
    return generation_s, work_s + before_s


def sides_of(
    observation: Observation, record: UpdateRecord, mode: ExecutionMode, gaps_s: Two = (0.0, 0.0)
) -> Sides | None:
    """The update's sides; None when they are not known.

    ``gaps_s``: what a pool usually takes to its rendezvous beside its phases, for an update whose arrivals a
    visitor has moved.
    """
    visit_s = visitors(record)[0]
    own = own_seconds(observation)
    whole_s = observation.elapsed_s
    if mode is ExecutionMode.ASYNC_DRAINED:
        sides = observation.arrivals_s
        if sides is None and visit_s > 0.0 and own is not None and record.generation_arrival_s is not None:
            sides = (own[0] + gaps_s[0], own[1] + gaps_s[1])
        if sides is None:
            return None
        running_s = max(sides)
    else:
        if observation.busy is None:
            return None
        sides = own or (observation.busy[0] * whole_s, observation.busy[1] * whole_s)
        running_s = _running_s(observation, record, sides)
    if min(sides) < LEAST or running_s > whole_s * 1.01 + 0.1:
        return None
    rest_s = max(whole_s - running_s, 0.0)
    busy_s, busy_j, other_j = _joules(observation, record, sides)
    return Sides((*sides, rest_s), running_s, busy_s, busy_j, other_j, visit_s > 0.0)


def _running_s(observation: Observation, record: UpdateRecord, sides: Two) -> float:
    """In-flight: seconds in which both pools could work, from their waits, else all but the refit."""
    known = [
        pool.busy_s + pool.wait_s
        for pool in record.pools.values()
        if pool.busy_s is not None and pool.wait_s is not None
    ]
    refit_s = observation.phases["refit"][0] if "refit" in observation.phases else 0.0
    return max(min([*known, observation.elapsed_s - refit_s]), *sides)


def _joules(observation: Observation, record: UpdateRecord, sides: Two) -> tuple[Two, Two | None, Two | None]:
    """Busy seconds and joules of either pool, and the pool's other joules."""
    busy_s, busy_j, other_j = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    complete = observation.energy_j is not None
    for axis, (pool, names) in enumerate((("generation", GENERATION_PHASES), ("training", TRAINING_PHASES))):
        for name in names:
            if name in observation.phases:
                part_s, part_j = observation.phases[name]
                busy_s[axis] += part_s
                busy_j[axis] += part_j or 0.0
                complete = complete and part_j is not None
        found = record.pools.get(pool)
        whole_j = found.energy_j if found is not None else None
        complete = complete and whole_j is not None and busy_j[axis] >= LEAST
        other_j[axis] = max((whole_j or 0.0) - busy_j[axis], 0.0)
        if busy_s[axis] < LEAST:
            busy_s[axis] = sides[axis]
    two = (busy_s[0], busy_s[1])
    if not complete:
        return two, None, None
    return two, (busy_j[0], busy_j[1]), (other_j[0], other_j[1])
