"""What both models of time suppose alike: how parts answer work and clocks, and where that stands in a state.

One is of phases that take turns (``time_prior``), one of pools that overlap (``pace_priors``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import PIECES, SlopePrior, basis
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING

Array = NDArray[np.float64]
#: Names, prior means and standard deviations of the elasticities of a part's work.
Work = Sequence[tuple[str, float, float]]

#: Elasticity of time: between free (0) and the clock itself (1), and nothing in there is unlikely.
SLOPES = SlopePrior(mean=0.4, sd=0.3)
#: Any locked clock costs 0 to 2 % (paper, appendix C: 1980/1980 rows), beside what its depth explains.
OFFSET_MEAN, OFFSET_SD = 0.006, 0.006
WORST_OFFSET = 0.02
#: Refit and the like follow a clock little: they wait for the network.
REST_SLOPE_MEAN, REST_SLOPE_SD = 0.1, 0.15
#: The level of the first updates' median, and of what is seen only now and then.
LEVEL_SD = 0.1
#: Correlations of successive updates that are supposed.
CORRELATIONS = (0.2, 0.6, 0.9)
#: Part of a part's own noise without memory.
WHITE = 0.3
#: Random walk by update of what a clock costs, and of the work's elasticities.
OFFSET_WALK = 1e-4
SLOPE_WALK = 5e-4
WORK_WALK = 2e-3


class States:
    """Where everything is that both states hold; the six from 3 on are work's, as either model divides them."""

    level = (0, 1, 2)
    work: tuple[slice, slice]
    curve = (slice(9, 9 + PIECES), slice(9 + PIECES, 9 + 2 * PIECES))
    offset = (9 + 2 * PIECES, 10 + 2 * PIECES)
    rest = slice(11 + 2 * PIECES, 14 + 2 * PIECES)
    common = 14 + 2 * PIECES
    own = (15 + 2 * PIECES, 16 + 2 * PIECES, 17 + 2 * PIECES)
    lost = 18 + 2 * PIECES
    #: The models' own ones stand here.
    more = 19 + 2 * PIECES
    size = 21 + 2 * PIECES


class Locked(Protocol):
    """The clocks of an update, as far as both models see them alike."""

    @property
    def depths(self) -> tuple[float, float]:
        """How deep either clock is below the governor's (a log)."""

    @property
    def locked(self) -> tuple[bool, bool]:
        """Which clocks are locked."""


def passing(states: type[States], supposed: Iterable[tuple[float, float]]) -> tuple[Array, Array]:
    """Memory and random walk by filter and state, of ``supposed`` correlations and walks of the level."""
    pairs = list(supposed)
    decay, walk = np.ones((len(pairs), states.size)), np.zeros((len(pairs), states.size))
    for i, (correlation, level_walk) in enumerate(pairs):
        decay[i, [states.common, *states.own]] = correlation
        walk[i, list(states.level)] = level_walk**2
    walk[:, list(states.offset)] = OFFSET_WALK**2
    for part in (GENERATION, TRAINING):
        walk[:, states.curve[part]] = SLOPE_WALK**2
        walk[:, states.work[part]] = WORK_WALK**2
    return decay, walk


def beginning(
    states: type[States], seconds: Sequence[float], work: Sequence[Work], more_of_rest: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """Mean, variance and covariance (to be added up) for a governor that typically takes ``seconds`` by part.

    ``work``: of generation and training. ``more_of_rest``: mean and standard deviation of what the rest answers to
    beside both clocks.
    """
    mean, variance = np.zeros(states.size), np.zeros(states.size)
    covariance = np.zeros((states.size, states.size))
    for part in (GENERATION, TRAINING, REST):
        mean[states.level[part]] = math.log(max(seconds[part], 1e-6))
        variance[states.level[part]] = LEVEL_SD**2
    for part in (GENERATION, TRAINING):
        for i, (_, slope, sd) in enumerate(work[part]):
            mean[states.work[part].start + i], variance[states.work[part].start + i] = slope, sd**2
        mean[states.curve[part]] = SLOPES.mean
        covariance[states.curve[part], states.curve[part]] = SLOPES.covariance()
        mean[states.offset[part]], variance[states.offset[part]] = OFFSET_MEAN, OFFSET_SD**2
    mean[states.rest] = (REST_SLOPE_MEAN, REST_SLOPE_MEAN, more_of_rest[0])
    variance[states.rest] = (REST_SLOPE_SD**2, REST_SLOPE_SD**2, more_of_rest[1] ** 2)
    variance[[states.common, *states.own]] = 1.0
    return mean, variance, covariance


def own_row(part: int, clocks: Locked) -> Array:
    """The row that maps a state to the log slowdown of generation or training by its own clock."""
    row = np.zeros(States.size)
    row[States.curve[part]] = basis(clocks.depths[part])
    row[States.offset[part]] = float(clocks.locked[part])
    return row
