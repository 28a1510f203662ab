"""The model of power: log watts of the allocation in each part of an update = level + work + clock response + noise.

A lowered clock lowers the power of its own phase along a curve, and that of a pool which waits meanwhile a little.
Nothing here bounds anything: power only decides which of the permitted settings saves most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import PIECES, SlopePrior, basis
from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Clocks
from eerl_controller.bayes.warm import extract, insert

Array = NDArray[np.float64]

#: Elasticity of power: from mostly floor to V squared f (paper, section 2.3).
SLOPES = SlopePrior(mean=0.7, sd=0.4)
#: The same of a pool that waits, seen in the other's phase, and of what belongs to neither.
CROSS_MEAN, CROSS_SD = 0.05, 0.1
REST_MEAN, REST_SD = 0.25, 0.2
#: What the idle clock saves of a phase's power while the other pool waits.
IDLE_MEAN, IDLE_SD = 0.05, 0.1
#: A tail of long responses loads GPUs less than full batches do.
WORK_SD = 0.2
LEVEL_SD = 0.5
NOISE = (0.005, 0.005, 0.02)
CORRELATION = 0.7
WHITE = 0.3
LEVEL_WALK = 3e-4
SLOPE_WALK = 5e-4
FEATURES = ("generated", "steps")


class Layout:
    """Where everything is in the state."""

    level = (0, 1, 2)
    work = slice(3, 5)
    curve = (slice(5, 5 + PIECES), slice(5 + PIECES, 5 + 2 * PIECES))
    cross = (5 + 2 * PIECES, 6 + 2 * PIECES)
    idle = (7 + 2 * PIECES, 8 + 2 * PIECES, 9 + 2 * PIECES)
    rest = slice(10 + 2 * PIECES, 12 + 2 * PIECES)
    own = (12 + 2 * PIECES, 13 + 2 * PIECES, 14 + 2 * PIECES)
    size = 15 + 2 * PIECES


#: The states that say how everything answers its clock: what a run may learn from an earlier one.
CLOCK_STATES = [
    *(
        state
        for part in (GENERATION, TRAINING)
        for state in range(Layout.curve[part].start, Layout.curve[part].stop)
    ),
    *Layout.cross,
    *Layout.idle,
    *range(Layout.rest.start, Layout.rest.stop),
]


@lru_cache(maxsize=512)
def response_row(part: int, clocks: Clocks) -> Array:
    """The row that maps the state to how much lower the log power of a part is under these clocks; read-only."""
    row = np.zeros(Layout.size)
    row[Layout.idle[part]] = float(clocks.idles)
    if part == REST:
        row[Layout.rest] = clocks.depths
    else:
        row[Layout.curve[part]] = basis(clocks.depths[part])
        if not clocks.idles:
            row[Layout.cross[part]] = clocks.depths[1 - part]
    row.flags.writeable = False
    return row


class Powers:
    """What is believed about watts."""

    def __init__(self) -> None:
        self._centres: dict[str, float] = {}
        self._bank: FilterBank | None = None
        #: What an earlier run knew (``warm``).
        self.prior: Mapping[str, Any] | None = None
        self._decay = np.ones((1, Layout.size))
        self._decay[0, list(Layout.own)] = CORRELATION
        self._walk = np.zeros((1, Layout.size))
        self._walk[0, list(Layout.level)] = LEVEL_WALK**2
        for part in (GENERATION, TRAINING):
            self._walk[0, Layout.curve[part]] = SLOPE_WALK**2

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

    def begin(self, watts: tuple[float, float, float], counts: Mapping[str, float]) -> None:
        """Start from typical watts of the governor for this work."""
        self._centres = {name: math.log1p(value) for name, value in counts.items()}
        mean, variance = np.zeros(Layout.size), np.zeros(Layout.size)
        covariance = np.zeros((Layout.size, Layout.size))
        for part in (GENERATION, TRAINING, REST):
            mean[Layout.level[part]] = math.log(max(watts[part], 1e-6))
            mean[Layout.idle[part]] = IDLE_MEAN
        variance[list(Layout.level)] = LEVEL_SD**2
        variance[list(Layout.idle)] = IDLE_SD**2
        variance[Layout.work] = WORK_SD**2
        for part in (GENERATION, TRAINING):
            mean[Layout.curve[part]] = SLOPES.mean
            covariance[Layout.curve[part], Layout.curve[part]] = SLOPES.covariance()
        mean[list(Layout.cross)], variance[list(Layout.cross)] = CROSS_MEAN, CROSS_SD**2
        mean[Layout.rest], variance[Layout.rest] = REST_MEAN, REST_SD**2
        variance[list(Layout.own)] = 1.0
        covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
        insert(mean, covariance, CLOCK_STATES, self.prior)
        self._bank = FilterBank(mean, covariance, self._decay, self._walk, np.array(NOISE))

    def read(self, watts: tuple[float, float, float], counts: Mapping[str, float], clocks: Clocks) -> None:
        """Learn from an update; a part without watts is left out."""
        bank = self._bank
        if bank is None:
            raise RuntimeError("powers were never begun: a bug in the controller")
        for part in (GENERATION, TRAINING, REST):
            if watts[part] <= 0.0:
                continue
            row = -response_row(part, clocks)
            row[Layout.level[part]] = 1.0
            if part == GENERATION:
                for i, name in enumerate(FEATURES):
                    if name in counts and name in self._centres:
                        row[Layout.work.start + i] = math.log1p(counts[name]) - self._centres[name]
            scale = bank.scales[:, part]
            row[Layout.own[part]] = float(scale[0]) * math.sqrt(1.0 - WHITE)
            bank.read(part, row[None, :], scale**2 * WHITE, math.log(watts[part]))

    def advance(self, updates: int) -> None:
        """Let time pass."""
        if self._bank is not None:
            self._bank.advance(updates)

    def posterior(self) -> dict[str, Any] | None:
        """What is known of how power answers the clocks, ready for JSON; None before anything is."""
        return extract(*self._bank.pooled(), CLOCK_STATES) if self._bank else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "centres": self._centres,
            "bank": self._bank.to_dict() if self._bank else None,
            "prior": self.prior,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._centres = dict(values["centres"])
        self.prior = values["prior"]
        if values["bank"] is not None:
            self.begin((1.0, 1.0, 1.0), {name: math.expm1(value) for name, value in self._centres.items()})
            assert self._bank is not None
            self._bank.load(values["bank"])
