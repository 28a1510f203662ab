"""How a phase answers to its clock, learned from all trials of a search together.

Only proposals use this; a setting is accepted on its own measurements alone. With x = ceiling/clock - 1, the
added time of work bound by the clock to the share a is a*x (time = 1 - a + a*ceiling/clock). Energy falls at
first and rises again when the added time outweighs the power saved (paper, section 4.1): s*x + c*x*x, c >= 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The least share of a phase's time taken to be bound by the clock, whatever a noisy trial says.
MIN_CLOCK_BOUND = 0.05


@dataclass(frozen=True, slots=True)
class Response:
    """Added time and energy, as fractions of the governor's whole update, by x = ceiling/clock - 1."""

    time_slope: float
    energy_slope: float
    energy_curve: float

    def added_time(self, x: float) -> float:
        """Predicted added time at x."""
        return self.time_slope * x

    def added_energy(self, x: float) -> float:
        """Predicted added energy at x; negative is a saving."""
        return self.energy_slope * x + self.energy_curve * x * x


def fit_response(
    xs: Sequence[float],
    added_time: Sequence[float],
    added_energy: Sequence[float],
    weights: Sequence[float],
    time_share: float,
    energy_share: float,
) -> Response:
    """Least squares through the governor (x = 0 adds nothing), weighted by updates.

    Before any trial lowered this clock, the phase is taken as wholly bound by it, with the power of one watt
    per hertz: time +share*x, energy unchanged; trials correct this.
    """
    sxx = sum(w * x * x for w, x in zip(weights, xs, strict=True))
    if sxx <= 0.0:
        return Response(time_share, -energy_share * 0.5, 0.0)
    slope = sum(w * x * t for w, x, t in zip(weights, xs, added_time, strict=True)) / sxx
    slope = max(slope, MIN_CLOCK_BOUND * time_share)
    sx3 = sum(w * x**3 for w, x in zip(weights, xs, strict=True))
    sx4 = sum(w * x**4 for w, x in zip(weights, xs, strict=True))
    sxe = sum(w * x * e for w, x, e in zip(weights, xs, added_energy, strict=True))
    sx2e = sum(w * x * x * e for w, x, e in zip(weights, xs, added_energy, strict=True))
    determinant = sxx * sx4 - sx3 * sx3
    linear, curve = sxe / sxx, 0.0
    # Two clocks that are nearly one tell nothing about a curve.
    if determinant > 1e-3 * sxx * sx4:
        curve = max((sxx * sx2e - sx3 * sxe) / determinant, 0.0)
        linear = (sxe - curve * sx3) / sxx
    return Response(slope, linear, curve)
