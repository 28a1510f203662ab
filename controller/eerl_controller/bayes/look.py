"""What an update of two overlapping pools showed, from its record and from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from eerl_controller.bayes.consumed import Consumed
from eerl_controller.bayes.paces import Paces
from eerl_controller.bayes.sides import GENERATION, TRAINING, Sides, own_seconds, sides_of
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.records import ExecutionMode
from eerl_controller.regression import robust_sd
from eerl_controller.strategy import Evidence


@dataclass(frozen=True, slots=True)
class Look:
    """What an update showed: its sides, the tokens that they worked on, and the age of the oldest it consumed."""

    sides: Sides
    counts: Mapping[str, float]
    age: float

    def without_joules(self) -> Look:
        """The same without power, which follows temperature too, and that follows clocks late."""
        return replace(self, sides=replace(self.sides, busy_j=None, other_j=None))

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        return [self.sides.to_list(), dict(self.counts), self.age]

    @classmethod
    def from_list(cls, values: list[Any]) -> Look:
        """What :meth:`to_list` wrote."""
        sides, counts, age = values
        return cls(Sides.from_list(sides), dict(counts), age)


class Looks:
    """Makes looks of updates in the order they came."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._mode = mode
        self._consumed = Consumed(mode)
        #: What either pool last took to its rendezvous beside its phases, seconds.
        self._gaps_s = [0.0, 0.0]

    def of(self, evidence: Evidence) -> Look | None:
        """What the update showed; None when its sides are not known."""
        observation, record = evidence.observation, evidence.record
        sides = None
        if observation is not None:
            sides = sides_of(observation, record, self._mode, (self._gaps_s[0], self._gaps_s[1]))
        counts = dict(observation.counts) if observation is not None else {}
        self._consumed.generated(record.update, counts.get("generated"), sides)
        if observation is None or sides is None:
            return None
        own = own_seconds(observation)
        if own is not None and not sides.visited:
            self._gaps_s = [max(sides.seconds[axis] - own[axis], 0.0) for axis in (0, 1)]
        age = float(record.policy_age_max or 0.0)
        consumed = self._consumed.by(record.update, age, counts.get("valid"))
        if consumed is not None:
            counts["consumed"] = consumed
        return Look(sides, counts, age)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"consumed": self._consumed.to_list(), "gaps_s": list(self._gaps_s)}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._consumed.load(values["consumed"])
        self._gaps_s = list(values["gaps_s"])


def usual(first: Sequence[Look], paces: Paces) -> list[Look]:
    """The first updates that are near the others at equal work: the very first are slow for theirs."""
    kept = list(first)
    for part in (GENERATION, TRAINING):
        logs = [math.log(look.sides.seconds[part]) - paces.work_log(part, look.counts) for look in first]
        middle = median(logs)
        limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
        near = {id(look) for look, log in zip(first, logs, strict=True) if abs(log - middle) <= limit}
        kept = [look for look in kept if id(look) in near]
    return kept or list(first)
