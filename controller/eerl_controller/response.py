"""How a clock's phases answer to it, learned from all trials of a search: one number for time, one for power.

Only proposals use this; a setting is accepted on its own measurements alone. With x = ceiling/clock - 1, work of
which the share a is bound by the clock takes 1 + a*x of its time. Its power falls to 1 - d*(1 - (1 + x)^-2), d
being the dynamic share: power goes with V^2 f (paper, section 2.3), between linear where the voltage no longer
falls and cubic where it falls along, so the square stands in the middle. Energy is their product, and turns up
again where added time outweighs saved power (section 4.1). Two numbers, because a few noisy trials cannot bear
more: a freely fitted curve saw minima in the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from eerl_controller.overlap import Overlap

#: The least share of a phase's time taken to be bound by the clock: a noisy trial may show a gain that cannot be.
MIN_CLOCK_BOUND = 0.01
#: The dynamic share of power taken before any trial: with work wholly bound by the clock, nothing to gain.
UNKNOWN_DYNAMIC = 0.5


@dataclass(frozen=True, slots=True)
class Response:
    """Added time and energy, as fractions of the governor's whole update, by x = ceiling/clock - 1.

    The phases take ``time_share`` of the governor's time and ``energy_share`` of its energy.
    """

    time_share: float
    energy_share: float
    clock_bound: float
    dynamic: float

    @property
    def time_slope(self) -> float:
        """Added time per x, as a fraction of the whole update."""
        return self.time_share * self.clock_bound

    def added_time(self, x: float) -> float:
        """Predicted added time at x."""
        return self.time_slope * x

    def added_energy(self, x: float) -> float:
        """Predicted added energy at x; negative is a saving."""
        power = 1.0 - self.dynamic * _power_drop(x)
        return self.energy_share * ((1.0 + self.clock_bound * x) * power - 1.0)


class Curve(Protocol):
    """Added time and energy, as fractions of the governor's whole update, by x = ceiling/clock - 1."""

    def added_time(self, x: float) -> float:
        """Predicted added time at x."""
        ...

    def added_energy(self, x: float) -> float:
        """Predicted added energy at x; negative is a saving."""
        ...


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A pool's own response, of whose added time only that shows which the other pool does not hide.

    ``other_ratio`` is how many times as long the other pool takes, for its own clock. What the overlap does not
    explain is added: a ``constant`` of what the clock is lowered on top of, and ``beyond`` per x.
    """

    own: Response
    overlap: Overlap
    axis: int
    other_ratio: float = 1.0
    constant: float = 0.0
    beyond: float = 0.0

    def added_time(self, x: float) -> float:
        """Predicted added time at x, the other pool's included, by replaying the governor's updates."""
        return self._replayed(1.0 + self.own.added_time(x)) + self.constant + self.beyond * x

    def worst_time(self, x: float, known_x: float) -> float:
        """Added time at x if work is wholly bound by the clock beyond ``known_x``, where it was last measured."""
        ratio = 1.0 + self.own.added_time(min(x, known_x))
        further = (1.0 + max(x, known_x)) / (1.0 + known_x)
        return self._replayed(ratio * further) + self.constant + self.beyond * x

    def _replayed(self, ratio: float) -> float:
        ratios = (ratio, self.other_ratio) if self.axis == 0 else (self.other_ratio, ratio)
        return self.overlap.added_time(*ratios)

    def added_energy(self, x: float) -> float:
        """Predicted added energy at x; negative is a saving."""
        return self.own.added_energy(x)


def _power_drop(x: float) -> float:
    """The part of dynamic power that is gone at x."""
    return 1.0 - (1.0 + x) ** -2


def slope(xs: Sequence[float], values: Sequence[float], weights: Sequence[float]) -> float:
    """The least-squares slope of values through the origin; 0 without a positive x."""
    sxx = sum(w * x * x for w, x in zip(weights, xs, strict=True))
    if sxx <= 0.0:
        return 0.0
    return sum(w * x * value for w, x, value in zip(weights, xs, values, strict=True)) / sxx


def fit_response(
    xs: Sequence[float],
    added_time: Sequence[float],
    added_energy: Sequence[float],
    weights: Sequence[float],
    time_share: float,
    energy_share: float,
) -> Response:
    """Least squares through the governor (x = 0 adds nothing), weighted by updates.

    Before any trial lowered this clock, its phases are taken as wholly bound by it; trials correct this.
    """
    if (
        not any(w * x * x > 0.0 for w, x in zip(weights, xs, strict=True))
        or min(time_share, energy_share) <= 0.0
    ):
        return Response(time_share, energy_share, 1.0, UNKNOWN_DYNAMIC)
    bound = max(slope(xs, added_time, weights) / time_share, MIN_CLOCK_BOUND)
    above = below = 0.0
    for w, x, energy in zip(weights, xs, added_energy, strict=True):
        time = 1.0 + bound * x
        saved = time * _power_drop(x)
        above += w * saved * (time - 1.0 - energy / energy_share)
        below += w * saved * saved
    return Response(time_share, energy_share, bound, min(max(above / below, 0.0), 1.0))


def overlapped(
    own: Response,
    overlap: Overlap,
    axis: int,
    other_ratio: float,
    held_time: float,
    xs: Sequence[float],
    added_time: Sequence[float],
    weights: Sequence[float],
) -> Overlapped:
    """The response of a pool beside another one, from its own and from the added time of whole updates.

    ``held_time`` is the added time of the setting that the clock is lowered on top of. What the overlap does not
    explain (a refit between both clocks; a queue is not a sum) is taken to grow with x.
    """
    curve = Overlapped(own, overlap, axis, other_ratio)
    if other_ratio != 1.0 or held_time != 0.0:
        curve = replace(curve, constant=held_time - curve.added_time(0.0))
    beyond = [added - curve.added_time(x) for x, added in zip(xs, added_time, strict=True)]
    return replace(curve, beyond=max(slope(xs, beyond, weights), 0.0))
