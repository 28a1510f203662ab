"""What a decision is made from: what is believed of every setting, whatever the model behind it.

A setting has an index on each of three axes: the idle clock (off, on), generation's clock and training's, the
governor first. Arrays have that shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from eerl_controller.clocks import Pair

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Index = tuple[int, int, int]

#: Updates of a block that are evidence, lowered or governor: with one, a single straggler would be all that is known.
BLOCK_UPDATES = 2
#: Blocks that a hope is given to show what there is to it.
HOPE_BLOCKS = 3.0


@dataclass(frozen=True, slots=True)
class Hope:
    """A clock response kinder than believed by so many standard deviations, beyond what one held clock tells of it.

    ``held`` is that clock's place on the axis: what the others have in common with it, holding it will show.
    """

    axis: int
    deviations: float
    held: int


def hoped(rows: Array, covariance: Array, noise_sd: float, hope: Hope) -> tuple[Array, Array]:
    """How much kinder each clock may turn out than the held one tells (a log), and what part of the doubt stays.

    ``rows`` map the state that ``covariance`` is of to the log slowdown by clock.
    """
    carried = rows @ covariance
    variance = np.maximum(np.einsum("ij,ij->i", carried, rows), 0.0)
    if variance[hope.held] > 0.0:
        variance -= (carried @ rows[hope.held]) ** 2 / variance[hope.held]
        variance = np.maximum(variance, 0.0)
    # A trial's noise is in its way: what it may change is less than all that is not known.
    noise = noise_sd**2 / HOPE_BLOCKS
    return hope.deviations * variance / np.sqrt(variance + noise), np.sqrt(noise / (variance + noise))


class Outcomes(Protocol):
    """A model's belief about every setting; seconds are of an update, losses relative to the governor's."""

    @property
    def turn_updates(self) -> float:
        """Updates of a turn: a block, and one before it where clocks need it to settle (``settling``)."""

    @property
    def saving(self) -> Array:
        """Share of the governor's energy that is saved."""

    @property
    def lost_s(self) -> Array:
        """Seconds lost."""

    @property
    def worst_s(self) -> Array:
        """Seconds lost at the very worst, by physics."""

    @property
    def total_s(self) -> float:
        """Seconds of the governor's update."""

    @property
    def past(self) -> tuple[float, float]:
        """Seconds that the run has lost so far, their mean and variance."""

    @property
    def variance(self) -> Array:
        """Variance of the seconds lost by every update to come."""

    @property
    def with_past(self) -> Array:
        """Covariance of these seconds with those that the run has lost so far."""

    @property
    def model_sd(self) -> Array:
        """What is unsure about a loss however much is measured, as a share of it."""

    @property
    def spread_s2(self) -> Array:
        """Variance of what single updates lose, by update of a long sum."""

    @property
    def noise_s2(self) -> Array:
        """Variance of the seconds that an update takes at equal work."""

    @property
    def probe_saving(self) -> Array:
        """What is saved while the setting is compared with the governor."""

    @property
    def probe_lost_s(self) -> Array:
        """What is lost then."""

    @property
    def depths(self) -> tuple[Array, Array]:
        """How deep generation's clocks, and training's, are below the governor's (a log)."""

    @property
    def barred(self) -> Flags | None:
        """Pairs of clocks that must not be chosen; None when all may."""

    def pair(self, at: Index) -> Pair:
        """The clocks with this index."""

    def probe(self, at: Index) -> Pair:
        """The clocks under which these are compared with the governor."""

    def index(self, pair: Pair) -> Index | None:
        """Where a pair stands; None when it is not among the settings."""
