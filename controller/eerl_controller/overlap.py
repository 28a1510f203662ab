"""Two pools side by side: which has time to spare, and how far one may slow down before the update does.

Drained updates (paper, section 6.2) last until the later arrival at the rendezvous, plus what follows it. Replaying
the governor's recorded arrivals with one of them stretched tells what a slower pool would have cost. In-flight
updates (section 6.3) have no rendezvous; there a pool's busy seconds take the place of its arrival, which is the
same bound for a queue: no update is shorter than either pool's work in it. That is used for proposals only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eerl_controller.quantity import MIN_REFERENCES, fit_overlapping, pool_features
from eerl_controller.records import ExecutionMode
from eerl_controller.regression import LogLinear, fit_log_linear
from eerl_controller.work import Observation

Seconds = Callable[[Observation], "tuple[float, float] | None"]


def arrivals_s(observation: Observation) -> tuple[float, float] | None:
    """Seconds until either pool arrives at the rendezvous, generation first."""
    return observation.arrivals_s


def busy_s(observation: Observation) -> tuple[float, float] | None:
    """Seconds in which either pool is busy, generation first."""
    busy = observation.busy
    return (busy[0] * observation.elapsed_s, busy[1] * observation.elapsed_s) if busy else None


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long as the governor's a pool took for equal work, and its standard error."""

    ratio: float
    se: float


class Overlap:
    """The governor's seconds of both pools by reference update, and what is left of the update after them."""

    def __init__(
        self, seconds: Seconds, terms: Mapping[str, LogLinear], references: Sequence[Observation]
    ) -> None:
        found = [(item.elapsed_s, seconds(item)) for item in references]
        known = [(elapsed_s, pools) for elapsed_s, pools in found if pools is not None]
        self._seconds = seconds
        self._terms = terms
        self._pools = tuple(pools for _, pools in known)
        self._rest_s = sum(elapsed_s - max(pools) for elapsed_s, pools in known)
        self._elapsed_s = sum(elapsed_s for elapsed_s, _ in known)

    @property
    def first_axis(self) -> int:
        """The pool that usually has time to spare, because the other takes longer: 0 generation, 1 training."""
        training = sum(training_s <= generation_s for generation_s, training_s in self._pools)
        return 1 if 2 * training >= len(self._pools) else 0

    @property
    def mean_ratio(self) -> float:
        """The longer pool's seconds over the shorter's, all updates together."""
        totals = [sum(pools[axis] for pools in self._pools) for axis in (0, 1)]
        return max(totals) / min(totals)

    def added_time(self, generation_ratio: float, training_ratio: float) -> float:
        """Added time, as a fraction of the governor's, had the pools taken this many times as long."""
        later = sum(max(g * generation_ratio, t * training_ratio) for g, t in self._pools)
        return (later + self._rest_s) / self._elapsed_s - 1.0

    def added_now(self, training_ratio: float, observations: Sequence[Observation]) -> float | None:
        """What training that takes this many times as long adds to these updates; None without their arrivals.

        Their generation ran on the governor, and their training would have arrived earlier by the ratio: so they
        tell of today's balance between the pools, of which older references may know nothing.
        """
        found = [(item.elapsed_s, self._seconds(item)) for item in observations]
        known = [(elapsed_s, pools) for elapsed_s, pools in found if pools is not None]
        if not known:
            return None
        saved_s = sum(max(g, t) - max(g, t / training_ratio) for _, (g, t) in known)
        elapsed_s = sum(elapsed_s for elapsed_s, _ in known)
        return saved_s / (elapsed_s - saved_s)

    def parts(self, generation_ratio: float, training_ratio: float) -> tuple[float, float]:
        """The same, shared out to the pools by what each would have added alone."""
        both = self.added_time(generation_ratio, training_ratio)
        alone = (
            max(self.added_time(generation_ratio, 1.0), 0.0),
            max(self.added_time(1.0, training_ratio), 0.0),
        )
        share = alone[0] / sum(alone) if sum(alone) > 0.0 else 0.5
        return share * both, (1.0 - share) * both

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
        """How much longer than the governor's the pool of this axis took for its work; None when unknown."""
        found = [(item, self._seconds(item)) for item in observations]
        known = [(item, pools[axis]) for item, pools in found if pools is not None]
        if not known:
            return None
        term = self._terms[("generation", "training")[axis]]
        ratio = sum(value for _, value in known) / sum(term.predict(item.counts) for item, _ in known)
        se = term.residual_sd * math.sqrt(1.0 / len(known) + 1.0 / len(self._pools))
        return Slowdown(ratio, ratio * se)

    def added_rest(self, observations: Sequence[Observation]) -> float:
        """Added time of what both pools wait for (refit under other clocks), as a fraction of the governor's."""
        found = [(item.elapsed_s, self._seconds(item)) for item in observations]
        rests = [elapsed_s - max(pools) for elapsed_s, pools in found if pools is not None]
        if not rests:
            return 0.0
        return (len(self._pools) * sum(rests) / len(rests) - self._rest_s) / self._elapsed_s


def fit_overlap(references: Sequence[Observation], mode: ExecutionMode) -> Overlap | None:
    """How the pools of these governor updates overlap; None in synchronous modes, or when it is not known."""
    if mode is ExecutionMode.ASYNC_DRAINED:
        model = fit_overlapping(references, mode)
        return Overlap(arrivals_s, model.terms, references) if model else None
    if mode is not ExecutionMode.ASYNC_INFLIGHT:
        return None
    found = [(item.counts, busy_s(item)) for item in references]
    known = [(counts, pools) for counts, pools in found if pools is not None and min(pools) > 0.0]
    if len(known) < MIN_REFERENCES:
        return None
    rows = [counts for counts, _ in known]
    terms = {
        name: fit_log_linear(pool_features(name, mode, rows), rows, [pools[axis] for _, pools in known])
        for axis, name in enumerate(("generation", "training"))
    }
    return Overlap(busy_s, terms, references)
