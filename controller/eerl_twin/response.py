"""How work and power answer the clock, in more than one functional form, so that no controller can lean on one.

Everything here takes a clock in MHz as a float or as an array of clocks and gives the like back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: A quantity for one setting, or for many settings at once.
Value = TypeVar("Value", float, Array)

TIME_FORMS = ("power_law", "piecewise", "table")
POWER_FORMS = ("voltage", "quadratic", "table")


@dataclass(frozen=True, slots=True)
class TimeResponse:
    """Time of a phase relative to its time at the top clock; never falls when the clock falls.

    ``power_law``
        ``1 - bound + bound * (top / f) ** exponent``: the memory-bound part is a floor that no clock changes.
    ``piecewise``
        Linear in ``top / f`` between the points (``clocks``, ``values``), as of a roofline with its knee.
    ``table``
        Linear in the logarithms between the points, as of a measured sweep with steps in it.

    ``clocks`` are fractions of the top clock, ascending, ending at 1; ``values`` are the relative times there.
    Below the lowest point time grows as 1/f: nothing is slowed by more than its clock.
    """

    form: str = "power_law"
    bound: float = 0.3
    exponent: float = 1.0
    clocks: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.form not in TIME_FORMS:
            raise ValueError(f"form must be one of {', '.join(TIME_FORMS)}, not {self.form!r}")
        if self.form == "power_law":
            if not 0.0 <= self.bound <= 1.0 or self.exponent < 0.0:
                raise ValueError(
                    f"bound must be 0 to 1 and exponent not negative, not {self.bound}, {self.exponent}"
                )
        else:
            _check_points(self.clocks, self.values, falling=True)

    def relative_time(self, fraction: Array) -> Array:
        """Time at ``fraction`` of the top clock, relative to the top clock."""
        if self.form == "power_law":
            return 1.0 - self.bound + self.bound * fraction**-self.exponent
        lowest = np.maximum(fraction, self.clocks[0])
        if self.form == "piecewise":
            inverse = 1.0 / np.array(self.clocks[::-1])
            inside = np.interp(1.0 / lowest, inverse, np.array(self.values[::-1]))
        else:
            inside = np.exp(np.interp(np.log(lowest), np.log(self.clocks), np.log(self.values)))
        return np.asarray(inside * lowest / fraction, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class PowerShape:
    """The part of power that the clock moves, relative to its value at the top clock; never falls as f rises.

    ``voltage``
        V squared f (paper, section 2.3), the voltage flat up to ``knee`` and linear from there to 1.
    ``quadratic``
        Linear in f up to ``knee``, quadratic above: published fits of data-centre GPUs have this shape.
    ``table``
        Linear between the points (``clocks``, ``values``).
    """

    form: str = "voltage"
    knee: float = 0.56
    lowest_voltage: float = 0.72
    clocks: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.form not in POWER_FORMS:
            raise ValueError(f"form must be one of {', '.join(POWER_FORMS)}, not {self.form!r}")
        if self.form == "table":
            _check_points(self.clocks, self.values, falling=False)
        elif not 0.0 < self.knee < 1.0 or not 0.0 < self.lowest_voltage <= 1.0:
            raise ValueError(
                f"knee and lowest_voltage must lie in (0, 1), not {self.knee}, {self.lowest_voltage}"
            )

    def relative_power(self, fraction: Array) -> Array:
        """Clock-dependent power at ``fraction`` of the top clock, relative to the top clock."""
        above = np.clip((fraction - self.knee) / (1.0 - self.knee), 0.0, None)
        if self.form == "voltage":
            voltage = self.lowest_voltage + (1.0 - self.lowest_voltage) * above
            return np.asarray(voltage**2 * fraction, dtype=np.float64)
        if self.form == "quadratic":
            # The same power at the knee as V^2 f would have there, so that the forms share their parameters.
            linear = self.lowest_voltage**2 * fraction
            return np.asarray(linear + (1.0 - self.lowest_voltage**2) * above**2, dtype=np.float64)
        return np.asarray(np.interp(fraction, self.clocks, self.values), dtype=np.float64)


def _check_points(clocks: tuple[float, ...], values: tuple[float, ...], *, falling: bool) -> None:
    """Raise ValueError unless the points end at (1, 1), rise in clock and are monotone in value."""
    steps = np.diff(np.array(values))
    monotone = bool((steps <= 0).all() if falling else (steps >= 0).all())
    if len(clocks) < 2 or len(clocks) != len(values) or list(clocks) != sorted(set(clocks)) or not monotone:
        raise ValueError(
            f"points must be at least two, ascending in clock and monotone, not {clocks}, {values}"
        )
    if clocks[0] <= 0.0 or clocks[-1] != 1.0 or abs(values[-1] - 1.0) > 1e-9 or min(values) < 0.0:
        raise ValueError(
            f"points must be positive and end at clock 1 with value 1, not {clocks[-1]}, {values[-1]}"
        )
