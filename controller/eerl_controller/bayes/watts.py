"""The model of power where pools overlap: log watts of each pool at work and otherwise, by its own clock.

Nothing here bounds anything: power only decides which of the permitted settings saves most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import PIECES, SlopePrior, basis
from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.sides import Lowered, Sides
from eerl_controller.bayes.warm import extract, insert

Array = NDArray[np.float64]

#: Elasticity of power at work: from mostly floor to V squared f (paper, section 2.3).
SLOPES = SlopePrior(mean=0.7, sd=0.4)
#: The same of a pool that waits: floor and clock have about equal parts in it.
OTHER_MEAN, OTHER_SD = 0.3, 0.2
#: Log of a waiting GPU's power at the governor's clock over that at the idle clock (71 and 122 W: section 3.2).
IDLE_MEAN, IDLE_SD = 0.5, 0.3
LEVEL_SD = 0.5
#: Noise of a pool's power at work and otherwise; then of the other pool.
NOISE = (0.005, 0.02, 0.005, 0.02)
CORRELATION = 0.7
WHITE = 0.3
LEVEL_WALK = 3e-4
SLOPE_WALK = 5e-4
#: A pool's other time is known well enough from this share of an update on.
LEAST_OTHER = 0.01


class Layout:
    """Where everything is in the state, by pool."""

    busy = (0, 5 + PIECES)
    other = (1, 6 + PIECES)
    curve = (slice(2, 2 + PIECES), slice(7 + PIECES, 7 + 2 * PIECES))
    slope = (2 + PIECES, 7 + 2 * PIECES)
    idle = (3 + PIECES, 8 + 2 * PIECES)
    own = (4 + PIECES, 9 + 2 * PIECES)
    size = 10 + 2 * PIECES


#: The states that say how either pool's power answers clocks.
CLOCK_STATES = [
    state
    for pool in (0, 1)
    for state in (
        *range(Layout.curve[pool].start, Layout.curve[pool].stop),
        Layout.slope[pool],
        Layout.idle[pool],
    )
]


class Watts:
    """What is believed about watts."""

    def __init__(self) -> None:
        self._bank: FilterBank | None = None
        #: What an earlier run knew (``warm``).
        self.prior: dict[str, Any] | None = None
        self._decay = np.ones((1, Layout.size))
        self._decay[0, list(Layout.own)] = CORRELATION
        self._walk = np.zeros((1, Layout.size))
        self._walk[0, [*Layout.busy, *Layout.other]] = LEVEL_WALK**2
        for curve in Layout.curve:
            self._walk[0, curve] = SLOPE_WALK**2

    @property
    def known(self) -> bool:
        """Whether there is a first reading."""
        return self._bank is not None

    @property
    def mean(self) -> Array:
        """The state's mean."""
        if self._bank is None:
            raise RuntimeError("no power was read yet: a bug in the controller")
        return np.asarray(self._bank.mean[0])

    def begin(self, busy_w: tuple[float, float], other_w: tuple[float, float]) -> None:
        """Start from typical watts of the governor, by pool."""
        mean, variance = np.zeros(Layout.size), np.zeros(Layout.size)
        covariance = np.zeros((Layout.size, Layout.size))
        for pool in (0, 1):
            mean[Layout.busy[pool]] = math.log(max(busy_w[pool], 1e-6))
            mean[Layout.other[pool]] = math.log(max(other_w[pool], 1e-6))
            mean[Layout.curve[pool]] = SLOPES.mean
            covariance[Layout.curve[pool], Layout.curve[pool]] = SLOPES.covariance()
            mean[Layout.slope[pool]], variance[Layout.slope[pool]] = OTHER_MEAN, OTHER_SD**2
            mean[Layout.idle[pool]], variance[Layout.idle[pool]] = IDLE_MEAN, IDLE_SD**2
        variance[[*Layout.busy, *Layout.other]] = LEVEL_SD**2
        variance[list(Layout.own)] = 1.0
        covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
        insert(mean, covariance, CLOCK_STATES, self.prior)
        self._bank = FilterBank(mean, covariance, self._decay, self._walk, np.array(NOISE))

    def posterior(self) -> dict[str, Any] | None:
        """What is known of how power answers clocks, ready for JSON."""
        if self._bank is None:
            return None
        return extract(self._bank.mean[0], self._bank.covariance[0], CLOCK_STATES)

    def read(self, sides: Sides, setting: Lowered) -> None:
        """Learn from an update whose joules are known."""
        bank = self._bank
        if bank is None:
            raise RuntimeError("watts were never begun: a bug in the controller")
        if sides.busy_j is None or sides.other_j is None:
            return
        whole_s = sides.running_s + sides.seconds[2]
        for pool in (0, 1):
            row = np.zeros(Layout.size)
            row[Layout.busy[pool]] = 1.0
            row[Layout.curve[pool]] = -basis(setting.depths[pool])
            self._read(2 * pool, pool, row, sides.busy_j[pool] / sides.busy_s[pool])
            other_s = sides.other_s(pool)
            if sides.visited or other_s < LEAST_OTHER * whole_s or sides.other_j[pool] <= 0.0:
                continue
            idling = min(max(sides.waits_s[pool], 0.0) / other_s, 1.0) if setting.idles else 0.0
            row = np.zeros(Layout.size)
            row[Layout.other[pool]] = 1.0
            row[Layout.slope[pool]] = -setting.below[pool] * (1.0 - idling)
            row[Layout.idle[pool]] = -idling
            self._read(2 * pool + 1, pool, row, sides.other_j[pool] / other_s)

    def _read(self, series: int, pool: int, row: Array, watts: float) -> None:
        bank = self._bank
        if bank is None or watts <= 0.0:
            return
        scale = bank.scales[:, series]
        row[Layout.own[pool]] = float(scale[0]) * math.sqrt(1.0 - WHITE)
        bank.read(series, row[None, :], scale**2 * WHITE, math.log(watts))

    def advance(self, updates: int) -> None:
        """Let time pass."""
        if self._bank is not None:
            self._bank.advance(updates)

    def busy_w(self, pool: int, depths: Array) -> Array:
        """Watts of a pool at work, by depth; never more at a lower clock."""
        mean = self.mean
        drop = basis(depths) @ mean[Layout.curve[pool]]
        return np.asarray(np.exp(mean[Layout.busy[pool]] - np.maximum.accumulate(drop)))

    def other_w(self, pool: int, below: Array, idling: Array | float) -> Array:
        """Watts of a pool otherwise, by depth below the highest clock and by the share of it at the idle clock."""
        mean = self.mean
        slope, idle = max(float(mean[Layout.slope[pool]]), 0.0), max(float(mean[Layout.idle[pool]]), 0.0)
        return np.asarray(
            np.exp(mean[Layout.other[pool]] - slope * below * (1.0 - idling) - idle * np.asarray(idling))
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"bank": self._bank.to_dict() if self._bank else None, "prior": self.prior}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.prior = values["prior"]
        if values["bank"] is not None:
            self.begin((1.0, 1.0), (1.0, 1.0))
            assert self._bank is not None
            self._bank.load(values["bank"])


def first_watts(found: Sequence[Sides]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Typical watts of either pool at work, and otherwise, of updates whose joules are known."""
    busy, other = [], []
    for pool in (0, 1):
        works, rests = [], []
        for sides in found:
            if sides.busy_j is not None and sides.other_j is not None:
                works.append(sides.busy_j[pool] / sides.busy_s[pool])
                if sides.other_s(pool) > 0.0 and sides.other_j[pool] > 0.0:
                    rests.append(sides.other_j[pool] / sides.other_s(pool))
        busy.append(median(works))
        other.append(median(rests) if rests else busy[pool])
    return (busy[0], busy[1]), (other[0], other[1])
