"""Priors of the model of time where pools overlap, and where everything stands in its state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.sides import GENERATION, REST, TRAINING, Lowered
from eerl_controller.bayes.time_states import CORRELATIONS, States, Work, beginning, own_row, passing
from eerl_controller.bayes.warm import insert
from eerl_controller.records import ExecutionMode

Array = NDArray[np.float64]

#: Names of the sides, in their order.
SIDES = ("generation", "training")
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
#: The idle clock costs refit something to be lifted.
IDLE = (0.02, 0.05)
#: In flight a generation that never waits for training may still follow it: slots that requests' age leaves empty
#: make its tokens slower to come, and busy it is all the same. By how much of training's depth, nobody knows before.
FOLLOWING_SD = 0.15
#: Probability beforehand that it does not: an even chance.
NOT_FOLLOWING = 0.5
#: Noise of an update's sides before any data (paper, appendix B: 0.3 to 1 % over three updates); of the rest, more.
NOISE = (0.015, 0.015, 0.05)
#: Suppositions: correlation of successive updates; shares of the noise that both sides have in common, in the same
#: update and on the same batch (its lengths take generation, and training an update later, more time than its token
#: counts tell); and the random walk of the level by update (appendix E: governors of one configuration differ by
#: 0.7 % over some hundred updates).
COMMON = ((0.1, 0.0), (0.5, 0.0), (0.85, 0.0))
BATCH = ((0.1, 0.6), (0.05, 0.85))
LEVEL_WALKS = (1e-4, 5e-4)


class Layout(States):
    """Where everything is in the state."""

    work = (slice(3, 6), slice(6, 9))
    batch = States.more
    #: How much of training's depth generation's pace follows.
    following = States.more + 1


class Suppositions:
    """What the filters of the bank differ in, by filter: noise in common, and by state its memory and its walk."""

    def __init__(self, *, drained: bool) -> None:
        # Without a rendezvous nobody knows in which update the batch was generated that is trained on.
        shared = COMMON + (BATCH if drained else ())
        suppositions = list(product(CORRELATIONS, shared, LEVEL_WALKS))
        #: Shares of a side's noise: in common with the other side, and with the batch.
        self.common: Array = np.array([common for _, (common, _), _ in suppositions])
        self.batch: Array = np.array([batch for _, (_, batch), _ in suppositions])
        self.decay, self.walk = passing(
            Layout, [(correlation, walk) for correlation, _, walk in suppositions]
        )


def prior(
    seconds: Sequence[float], work: tuple[Work, Work], known: Mapping[str, Any] | None, *, may_follow: bool
) -> tuple[Array, Array]:
    """Mean and covariance of the state before any data, for a governor that typically takes ``seconds`` by part.

    ``known``: what an earlier run knew of how the sides answer their clocks, by side (``warm``).
    """
    mean, variance, covariance = beginning(Layout, seconds, work, IDLE)
    if may_follow:
        variance[Layout.following] = FOLLOWING_SD**2
    variance[Layout.batch] = 1.0
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
    if part == REST:
        row = np.zeros(Layout.size)
        row[Layout.rest] = (*setting.below, float(setting.idles))
    else:
        row = own_row(part, setting)
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
