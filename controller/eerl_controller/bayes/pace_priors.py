"""Priors of the model of time where pools overlap, and where everything stands in its state."""

from __future__ import annotations

from eerl_controller.bayes.curve import PIECES, SlopePrior
from eerl_controller.records import ExecutionMode

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
#: After so many readings all of them are weighed anew by the noise that they have shown: at first it was a guess.
REWEIGHED = (6, 12, 24, 48)


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
