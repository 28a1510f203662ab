"""Priors of the model of time where pools overlap, and where everything stands in its state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import PIECES, SlopePrior, basis
from eerl_controller.bayes.sides import GENERATION, REST, TRAINING, Lowered
from eerl_controller.bayes.warm import insert
from eerl_controller.records import ExecutionMode

Array = NDArray[np.float64]

#: Names of the sides, in their order.
SIDES = ("generation", "training")
#: Names, prior means and standard deviations of the elasticities of a side's work.
Work = tuple[tuple[str, float, float], ...]

#: Elasticity of time: between free (0) and the clock itself (1), and nothing in there is unlikely.
SLOPES = SlopePrior(mean=0.4, sd=0.3)
#: Any locked clock costs 0 to 2 % (paper, appendix C: 1980/1980 rows).
OFFSET_MEAN, OFFSET_SD = 0.006, 0.006
#: Training follows what it consumes: its valid tokens, or all that was generated for it where many are masked, and
#: the longest of it. Two suppositions, for one could not become the other while it takes what it misses for noise.
TRAINING_WORK: tuple[Work, ...] = (
    (("valid", 0.7, 0.3), ("consumed", 0.2, 0.3), ("longest_consumed", 0.0, 0.2)),
    (("valid", 0.0, 0.1), ("consumed", 1.0, 0.3), ("longest_consumed", 0.0, 0.2)),
)
#: Generation of a whole batch follows its tokens and the longest response; without a rendezvous slots are refilled
#: at once, and what is generated is what is paid for.
GENERATION_WORK: dict[ExecutionMode, Work] = {
    ExecutionMode.ASYNC_DRAINED: (("generated", 0.5, 0.3), ("longest", 0.3, 0.3), ("valid", 0.0, 0.0)),
    ExecutionMode.ASYNC_INFLIGHT: (("generated", 1.0, 0.05), ("longest", 0.0, 0.1), ("valid", 0.0, 0.1)),
}
#: Refit follows the clocks little (it waits for the network); the idle clock costs it something to be lifted.
REST_SLOPE_MEAN, REST_SLOPE_SD = 0.1, 0.15
IDLE_MEAN, IDLE_SD = 0.02, 0.05
#: In flight a generation that never waits for training may still follow it: slots that requests' age leaves empty
#: make its tokens slower to come, and busy it is all the same. By how much of training's depth, nobody knows before.
FOLLOWING_SD = 0.15
#: Probability beforehand that it does not: an even chance.
NOT_FOLLOWING = 0.5
LEVEL_SD = 0.1
#: Noise of an update's sides before any data (paper, appendix B: 0.3 to 1 % over three updates); of the rest, more.
NOISE = (0.015, 0.015, 0.05)
#: Suppositions: correlation of successive updates; shares of the noise that both sides have in common, in the same
#: update and on the same batch (its lengths take generation, and training an update later, more time than its token
#: counts tell); and the random walk of the level by update (appendix E: governors of one configuration differ by
#: 0.7 % over some hundred updates).
CORRELATIONS = (0.2, 0.6, 0.9)
COMMON = ((0.1, 0.0), (0.5, 0.0), (0.85, 0.0))
BATCH = ((0.1, 0.6), (0.05, 0.85))
LEVEL_WALKS = (1e-4, 5e-4)
#: Part of a side's own noise without memory.
WHITE = 0.3
OFFSET_WALK = 1e-4
SLOPE_WALK = 5e-4
WORK_WALK = 2e-3


class Layout:
    """Where everything is in the state."""

    level = (0, 1, 2)
    work = (slice(3, 6), slice(6, 9))
    curve = (slice(9, 9 + PIECES), slice(9 + PIECES, 9 + 2 * PIECES))
    offset = (9 + 2 * PIECES, 10 + 2 * PIECES)
    rest = slice(11 + 2 * PIECES, 14 + 2 * PIECES)
    common = 14 + 2 * PIECES
    own = (15 + 2 * PIECES, 16 + 2 * PIECES, 17 + 2 * PIECES)
    lost = 18 + 2 * PIECES
    batch = 19 + 2 * PIECES
    #: How much of training's depth generation's pace follows.
    following = 20 + 2 * PIECES
    size = 21 + 2 * PIECES


class Suppositions:
    """What the filters of the bank differ in, by filter: noise in common, and by state its memory and its walk."""

    def __init__(self, *, drained: bool) -> None:
        # Without a rendezvous nobody knows in which update the batch was generated that is trained on.
        shared = COMMON + (BATCH if drained else ())
        suppositions = list(product(CORRELATIONS, shared, LEVEL_WALKS))
        #: Shares of a side's noise: in common with the other side, and with the batch.
        self.common: Array = np.array([common for _, (common, _), _ in suppositions])
        self.batch: Array = np.array([batch for _, (_, batch), _ in suppositions])
        self.decay: Array = np.ones((len(suppositions), Layout.size))
        self.walk: Array = np.zeros((len(suppositions), Layout.size))
        for i, (correlation, _, level_walk) in enumerate(suppositions):
            self.decay[i, [Layout.common, *Layout.own]] = correlation
            self.walk[i, list(Layout.level)] = level_walk**2
        self.walk[:, list(Layout.offset)] = OFFSET_WALK**2
        for part in (GENERATION, TRAINING):
            self.walk[:, Layout.curve[part]] = SLOPE_WALK**2
            self.walk[:, Layout.work[part]] = WORK_WALK**2


def prior(
    seconds: Sequence[float], work: tuple[Work, Work], known: Mapping[str, Any] | None, *, may_follow: bool
) -> tuple[Array, Array]:
    """Mean and covariance of the state before any data, for a governor that typically takes ``seconds`` by part.

    ``known``: what an earlier run knew of how the sides answer their clocks, by side (``warm``).
    """
    mean, variance = np.zeros(Layout.size), np.zeros(Layout.size)
    covariance = np.zeros((Layout.size, Layout.size))
    for part in (GENERATION, TRAINING, REST):
        mean[Layout.level[part]] = math.log(max(seconds[part], 1e-6))
        variance[Layout.level[part]] = LEVEL_SD**2
    for part in (GENERATION, TRAINING):
        for i, (_, slope, sd) in enumerate(work[part]):
            mean[Layout.work[part].start + i], variance[Layout.work[part].start + i] = slope, sd**2
        mean[Layout.curve[part]] = SLOPES.mean
        covariance[Layout.curve[part], Layout.curve[part]] = SLOPES.covariance()
        mean[Layout.offset[part]], variance[Layout.offset[part]] = OFFSET_MEAN, OFFSET_SD**2
    mean[Layout.rest] = (REST_SLOPE_MEAN, REST_SLOPE_MEAN, IDLE_MEAN)
    variance[Layout.rest] = (REST_SLOPE_SD**2, REST_SLOPE_SD**2, IDLE_SD**2)
    if may_follow:
        variance[Layout.following] = FOLLOWING_SD**2
    variance[[Layout.common, Layout.batch, *Layout.own]] = 1.0
    covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
    if isinstance(known, Mapping):
        for part, name in enumerate(SIDES):
            insert(mean, covariance, clock_states(part), known.get(name))
    return mean, covariance


def clock_states(part: int) -> list[int]:
    """The states that say how a side answers its clock."""
    curve = Layout.curve[part]
    return [*range(curve.start, curve.stop), Layout.offset[part]]


@lru_cache(maxsize=512)
def response_row(part: int, setting: Lowered) -> Array:
    """The row that maps the state to the log slowdown of a part under this setting; read-only."""
    row = np.zeros(Layout.size)
    if part == REST:
        row[Layout.rest] = (*setting.below, float(setting.idles))
    else:
        row[Layout.curve[part]] = basis(setting.depths[part])
        row[Layout.offset[part]] = float(setting.locked[part])
        if part == GENERATION:
            row[Layout.following] = setting.depths[TRAINING]
    row.flags.writeable = False
    return row


def doubt_following(mean: Array, covariance: Array) -> None:
    """Most likely generation does not follow training at all; how likely, the evidence says (Savage and Dickey)."""
    at = Layout.following
    found, variance = float(mean[at]), float(covariance[at, at])
    ratio = FOLLOWING_SD / math.sqrt(variance) * math.exp(-0.5 * found**2 / variance)
    follows = 1.0 / (1.0 + NOT_FOLLOWING / (1.0 - NOT_FOLLOWING) * ratio)
    # What all else would be if it did not, mixed with what it is.
    along = covariance[:, at] / variance
    mean -= (1.0 - follows) * found * along
    covariance -= (1.0 - follows) * (variance - follows * found**2) * np.outer(along, along)
