"""What is supposed about time before any data, and where it stands in the model's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import PIECES, SlopePrior, basis
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Clocks

Array = NDArray[np.float64]

#: Elasticity of time: between free (0) and the clock itself (1), and nothing in there is unlikely.
SLOPES = SlopePrior(mean=0.4, sd=0.3)
#: Any locked clock costs 0 to 2 % (paper, appendix C: 1980/1980 rows).
OFFSET_MEAN, OFFSET_SD = 0.006, 0.006
#: Elasticities of work: more tokens take more time, at most in proportion. What is done once a round, or once an
#: update and not a round, makes generation again cost more or less than its tokens.
WORK = {
    GENERATION: (("generated", 0.5, 0.3), ("steps", 0.3, 0.3), ("valid", 0.0, 0.3), ("rounds", 0.0, 0.3)),
    TRAINING: (("valid", 0.4, 0.3), ("consumed", 0.4, 0.3)),
}
#: Refit and the like follow a clock little (they wait for the network), and switching costs them something.
REST_SLOPE_MEAN, REST_SLOPE_SD = 0.1, 0.15
SWITCH_MEAN, SWITCH_SD = 0.05, 0.2
#: What the first update under other clocks takes more of either phase, whatever the clocks (caches, the network):
#: setting them takes up to 0.3 s, of a minute's update.
FRESH_SD = 0.005
#: The level of the first updates' median, and of what is seen only now and then.
LEVEL_SD = 0.1
#: Noise of an update's parts before any data (paper, appendix B: 0.3 to 1 % over three updates, so about twice that
#: in one); of the rest, which is short, more.
NOISE = (0.01, 0.01, 0.05)
#: Suppositions: correlation of successive updates, share of the noise that parts have in common, and the random walk
#: of the level by update (appendix E: governors of one configuration differ by 0.7 % over some hundred updates).
CORRELATIONS = (0.2, 0.6, 0.9)
COMMON = (0.1, 0.6)
LEVEL_WALKS = (2e-4, 1e-3)
#: Part of a part's own noise without memory.
WHITE = 0.3
#: Random walk by update of what a clock costs, and of the work's elasticities.
OFFSET_WALK = 1e-4
SLOPE_WALK = 5e-4
WORK_WALK = 2e-3


class Layout:
    """Where everything is in the state."""

    level = (0, 1, 2)
    work = (slice(3, 7), slice(7, 9))
    curve = (slice(9, 9 + PIECES), slice(9 + PIECES, 9 + 2 * PIECES))
    offset = (9 + 2 * PIECES, 10 + 2 * PIECES)
    rest = slice(11 + 2 * PIECES, 14 + 2 * PIECES)
    common = 14 + 2 * PIECES
    own = (15 + 2 * PIECES, 16 + 2 * PIECES, 17 + 2 * PIECES)
    lost = 18 + 2 * PIECES
    fresh = (19 + 2 * PIECES, 20 + 2 * PIECES)
    size = 21 + 2 * PIECES


#: The states that say how everything answers its clock: what a run may learn from an earlier one.
CLOCK_STATES = [
    *(
        state
        for part in (GENERATION, TRAINING)
        for state in range(Layout.curve[part].start, Layout.curve[part].stop)
    ),
    *Layout.offset,
    *range(Layout.rest.start, Layout.rest.stop),
]


class Suppositions:
    """What the filters of the bank differ in, by filter: noise in common, and by state its memory and its walk."""

    def __init__(self) -> None:
        suppositions = list(product(CORRELATIONS, COMMON, LEVEL_WALKS))
        self.common: Array = np.array([common for _, common, _ in suppositions])
        self.decay: Array = np.ones((len(suppositions), Layout.size))
        self.walk: Array = np.zeros((len(suppositions), Layout.size))
        for i, (correlation, _, level_walk) in enumerate(suppositions):
            self.decay[i, [Layout.common, *Layout.own]] = correlation
            self.walk[i, list(Layout.level)] = level_walk**2
        self.walk[:, list(Layout.offset)] = OFFSET_WALK**2
        for part in (GENERATION, TRAINING):
            self.walk[:, Layout.curve[part]] = SLOPE_WALK**2
            self.walk[:, Layout.work[part]] = WORK_WALK**2


def prior(seconds: Sequence[float]) -> tuple[Array, Array]:
    """Mean and covariance of the state before any data, for a governor that typically takes ``seconds`` by part."""
    mean, variance = np.zeros(Layout.size), np.zeros(Layout.size)
    covariance = np.zeros((Layout.size, Layout.size))
    for part in (GENERATION, TRAINING, REST):
        mean[Layout.level[part]] = math.log(max(seconds[part], 1e-6))
        variance[Layout.level[part]] = LEVEL_SD**2
    for part in (GENERATION, TRAINING):
        for i, (_, slope, sd) in enumerate(WORK[part]):
            mean[Layout.work[part].start + i], variance[Layout.work[part].start + i] = slope, sd**2
        mean[Layout.curve[part]] = SLOPES.mean
        covariance[Layout.curve[part], Layout.curve[part]] = SLOPES.covariance()
        mean[Layout.offset[part]], variance[Layout.offset[part]] = OFFSET_MEAN, OFFSET_SD**2
    mean[Layout.rest] = (REST_SLOPE_MEAN, REST_SLOPE_MEAN, SWITCH_MEAN)
    variance[Layout.rest] = (REST_SLOPE_SD**2, REST_SLOPE_SD**2, SWITCH_SD**2)
    variance[[Layout.common, *Layout.own]] = 1.0
    variance[list(Layout.fresh)] = FRESH_SD**2
    covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
    return mean, covariance


@lru_cache(maxsize=512)
def response_row(part: int, clocks: Clocks) -> Array:
    """The row that maps the state to the log slowdown of a part under these clocks; read-only."""
    row = np.zeros(Layout.size)
    if part == REST:
        row[Layout.rest] = (*clocks.depths, float(clocks.switches))
    else:
        row[Layout.curve[part]] = basis(clocks.depths[part])
        row[Layout.offset[part]] = float(clocks.locked[part])
    row.flags.writeable = False
    return row
