"""Two pools that meet: which arrives first, and how far one may slow down before the other waits for it.

Drained updates (paper, section 6.2). The update lasts until the later arrival, plus what follows the rendezvous;
replaying the governor's recorded arrivals with one of them stretched tells what a slower pool would have cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eerl_controller.quantity import MIN_REFERENCES, QuantityModel
from eerl_controller.work import Observation


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A pool's measured arrival over the governor's for equal work, and its standard error."""

    ratio: float
    se: float


class Arrivals:
    """The governor's arrivals by reference update: generation and training to the rendezvous, and the rest."""

    def __init__(self, model: QuantityModel, references: Sequence[Observation]) -> None:
        met = [(item, item.arrivals_s) for item in references if item.arrivals_s is not None]
        if not model.overlapping or len(met) < MIN_REFERENCES:
            raise ValueError(f"arrivals of {len(met)} updates are too few to replay")
        self._model = model
        self._met = tuple(arrivals for _, arrivals in met)
        self._rest_s = tuple(item.elapsed_s - max(arrivals) for item, arrivals in met)
        self._elapsed_s = sum(item.elapsed_s for item, _ in met)

    @property
    def first_axis(self) -> int:
        """The pool that usually arrives first: 0 generation, 1 training."""
        earlier = sum(training_s <= generation_s for generation_s, training_s in self._met)
        return 1 if 2 * earlier >= len(self._met) else 0

    def added_time(self, generation_ratio: float, training_ratio: float) -> float:
        """Added time, as a fraction of the governor's, had the pools taken this many times as long to arrive."""
        later = sum(max(g * generation_ratio, t * training_ratio) for g, t in self._met)
        return (later + sum(self._rest_s)) / self._elapsed_s - 1.0

    def longest_ratio(self, axis: int, allowed_time: float, most: float) -> float:
        """How many times as long the pool of this axis may take, at most ``most``, for this much added time."""

        def added(ratio: float) -> float:
            return self.added_time(ratio, 1.0) if axis == 0 else self.added_time(1.0, ratio)

        low, high = 1.0, most
        if added(high) <= allowed_time:
            return high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if added(middle) <= allowed_time else (low, middle)
        return low

    def slowdown(self, axis: int, observations: Sequence[Observation]) -> Slowdown | None:
        """How much longer than the governor's the pool of this axis took to arrive; None without its arrivals."""
        met = [(item, item.arrivals_s[axis]) for item in observations if item.arrivals_s is not None]
        if not met:
            return None
        term = self._model.terms[("generation", "training")[axis]]
        ratio = sum(seconds for _, seconds in met) / sum(term.predict(item.counts) for item, _ in met)
        se = term.residual_sd * math.sqrt(1.0 / len(met) + 1.0 / len(self._met))
        return Slowdown(ratio, ratio * se)

    def added_rest(self, observations: Sequence[Observation]) -> float:
        """Added time after the rendezvous (refit under other clocks), as a fraction of the governor's update."""
        rests = [
            item.elapsed_s - max(item.arrivals_s) for item in observations if item.arrivals_s is not None
        ]
        if not rests:
            return 0.0
        return (
            (sum(rests) / len(rests) - sum(self._rest_s) / len(self._met)) * len(self._met) / self._elapsed_s
        )
