"""One update as the model sees it: seconds and joules of its parts, its work, and the clocks it ran under."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eerl_controller.bayes.curve import DEEPEST
from eerl_controller.clocks import Pair
from eerl_controller.work import GENERATION_PHASES, LEAST, TRAINING_PHASES, Observation

#: A value for each part.
Three = tuple[float, float, float]
#: Parts of an update, in the order of everything that is kept by part.
GENERATION, TRAINING, REST = 0, 1, 2
#: What is left of an update beside its phases is a part of its own from this share on.
LEAST_REST = 0.002


@dataclass(frozen=True, slots=True)
class Clocks:
    """A setting as the model sees it: how deep either clock is below the governor's, and what is locked at all."""

    depths: tuple[float, float]
    locked: tuple[bool, bool]
    idles: bool
    #: Whether clocks change inside every update: an idle clock does that, and two clocks on one pool.
    switches: bool

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        return [*self.depths, *self.locked, self.idles, self.switches]

    @classmethod
    def from_list(cls, values: list[Any]) -> Clocks:
        """What :meth:`to_list` wrote."""
        return cls((values[0], values[1]), (values[2], values[3]), values[4], values[5])

    @property
    def is_governor(self) -> bool:
        """Whether nothing differs from the governor."""
        return not (self.locked[0] or self.locked[1] or self.idles)


#: The governor's own clocks.
GOVERNED = Clocks((0.0, 0.0), (False, False), idles=False, switches=False)


def clocks_of(pair: Pair, ceilings_mhz: tuple[float, float], *, one_pool: bool) -> Clocks:
    """A pair of clocks relative to the ones that the governor reaches; ``one_pool`` when phases share their GPUs."""
    depths = []
    for mhz, ceiling in zip(pair.phases, ceilings_mhz, strict=True):
        depth = 0.0 if mhz is None else math.log(ceiling / mhz)
        depths.append(min(max(depth, 0.0), DEEPEST))
    locked = (pair.generation_mhz is not None, pair.training_mhz is not None)
    idles = pair.idle_mhz is not None and not one_pool
    switches = idles or (one_pool and pair.generation_mhz != pair.training_mhz)
    return Clocks((depths[0], depths[1]), locked, idles, switches)


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds and joules by part (generation, training, rest); joules None when not known for each."""

    seconds: tuple[float, float, float]
    joules: tuple[float, float, float] | None


def parts_of(observation: Observation) -> Parts | None:
    """The update's parts; None when its phases are not known."""
    seconds, joules, complete = [0.0, 0.0], [0.0, 0.0], observation.energy_j is not None
    for axis, names in enumerate((GENERATION_PHASES, TRAINING_PHASES)):
        for name in names:
            if name in observation.phases:
                part_s, part_j = observation.phases[name]
                seconds[axis] += part_s
                joules[axis] += part_j or 0.0
                complete = complete and part_j is not None
    if min(seconds) < LEAST:
        return None
    rest_s = max(observation.elapsed_s - sum(seconds), 0.0)
    rest_j = max((observation.energy_j or 0.0) - sum(joules), 0.0)
    complete = complete and min(joules) >= LEAST
    return Parts((seconds[0], seconds[1], rest_s), (joules[0], joules[1], rest_j) if complete else None)
