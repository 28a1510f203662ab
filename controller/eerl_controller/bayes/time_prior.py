"""What is supposed about time before any data, and where it stands in the model's state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Clocks
from eerl_controller.bayes.time_states import CORRELATIONS, States, beginning, own_row, passing

Array = NDArray[np.float64]

#: Elasticities of work: more tokens take more time, at most in proportion. What is done once a round, or once an
#: update and not a round, makes generation again cost more or less than its tokens.
WORK = {
    GENERATION: (("generated", 0.5, 0.3), ("steps", 0.3, 0.3), ("valid", 0.0, 0.3), ("rounds", 0.0, 0.3)),
    TRAINING: (("valid", 0.4, 0.3), ("consumed", 0.4, 0.3)),
}
#: Switching costs refit and the like something.
SWITCH = (0.05, 0.2)
#: What the first update under other clocks takes more of either phase, whatever the clocks (caches, the network):
#: setting them takes up to 0.3 s, of a minute's update.
FRESH_SD = 0.005
#: Noise of an update's parts before any data (paper, appendix B: 0.3 to 1 % over three updates, so about twice that
#: in one); of the rest, which is short, more.
NOISE = (0.01, 0.01, 0.05)
#: Suppositions: correlation of successive updates, share of the noise that parts have in common, and the random walk
#: of the level by update (appendix E: governors of one configuration differ by 0.7 % over some hundred updates).
COMMON = (0.1, 0.6)
LEVEL_WALKS = (2e-4, 1e-3)


class Layout(States):
    """Where everything is in the state."""

    work = (slice(3, 7), slice(7, 9))
    fresh = (States.more, States.more + 1)


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
        self.decay, self.walk = passing(
            Layout, [(correlation, walk) for correlation, _, walk in suppositions]
        )


def prior(seconds: Sequence[float]) -> tuple[Array, Array]:
    """Mean and covariance of the state before any data, for a governor that typically takes ``seconds`` by part."""
    work = [WORK[part] for part in (GENERATION, TRAINING)]
    mean, variance, covariance = beginning(Layout, seconds, work, SWITCH)
    variance[list(Layout.fresh)] = FRESH_SD**2
    covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
    return mean, covariance


@lru_cache(maxsize=512)
def response_row(part: int, clocks: Clocks) -> Array:
    """The row that maps the state to the log slowdown of a part under these clocks; read-only."""
    if part == REST:
        row = np.zeros(Layout.size)
        row[Layout.rest] = (*clocks.depths, float(clocks.switches))
    else:
        row = own_row(part, clocks)
    row.flags.writeable = False
    return row
