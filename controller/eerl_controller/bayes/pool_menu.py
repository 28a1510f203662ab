"""The settings of two overlapping pools to choose among, and the words in which they are chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import DEEPEST, basis
from eerl_controller.bayes.pace_priors import Layout
from eerl_controller.clocks import Pair

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Index = tuple[int, int, int]

#: Standard deviations of a one-sided 99 %.
SURE = 2.326
#: Clocks nearer than this (a log) are not worth telling apart.
LEAST_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be lost: ``limit`` of all the time, ``past_s`` seconds of which are over and ``left`` updates to come.

    ``told`` is False when nobody said how many updates are left; ``governed`` of them are expected to be the
    governor's, for comparison.
    """

    limit: float
    past_s: float
    left: float
    told: bool
    governed: float = 0.0


@dataclass(frozen=True, slots=True)
class Hope:
    """One side is kinder than believed, by so many ``deviations`` of what is not known beyond the depth ``beyond``.

    ``readings``: as many usable updates are given to show it.
    """

    axis: int
    deviations: float
    beyond: float
    readings: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and what is expected of it, by update, as fractions of the governor's energy and time.

    ``price`` is what another unit of allowed loss would save, ``loss_sd`` the standard deviation of ``loss``.
    """

    pair: Pair
    saving: float
    loss: float
    loss_sd: float
    price: float
    #: Maps the state of time to ``loss``, for what a probe would make of its standard deviation.
    gradient: Array

    @property
    def net(self) -> float:
        """What an update at this setting is worth once its loss is paid for."""
        return max(self.saving - self.price * self.loss, 0.1 * self.saving)

    def worth_knowing(self, less_sd: float) -> float:
        """What knowing the loss this much better is worth by update: so much of the allowance is free again."""
        return self.price * SURE * less_sd

    def __str__(self) -> str:
        return (
            f"{100 * self.saving:.1f} % saving and {100 * self.loss:.2f} % loss expected, "
            f"known to {100 * self.loss_sd:.2f} points"
        )


class PoolMenu:
    """The clocks that either pool may take, the governor first, and whether waiting pools may idle."""

    def __init__(
        self,
        clocks: Sequence[int],
        ceilings_mhz: tuple[float, float],
        top_mhz: float,
        idle_mhz: int | None,
        step: float = LEAST_STEP,
    ) -> None:
        self.idle_mhz = idle_mhz
        self.mhz: list[list[int | None]] = []
        self.depths: list[Array] = []
        #: Depths from the highest clock there is (:class:`~eerl_controller.bayes.sides.Lowered`).
        self.below: list[Array] = []
        self.locked: list[Array] = []
        self.rows: list[Array] = []
        for part, ceiling in enumerate(ceilings_mhz):
            mhz: list[int | None] = [None, *thinned(clocks, ceiling, step)]
            depths = np.array([0.0 if clock is None else math.log(ceiling / clock) for clock in mhz])
            rows = np.zeros((len(mhz), Layout.size))
            rows[:, Layout.curve[part]] = basis(depths)
            rows[1:, Layout.offset[part]] = 1.0
            self.mhz.append(mhz)
            self.depths.append(depths)
            self.below.append(np.array([0.0 if c is None else max(math.log(top_mhz / c), 0.0) for c in mhz]))
            self.locked.append(np.array([0.0, *[1.0] * (len(mhz) - 1)]))
            #: Rows by clock that map the state of time to the log slowdown of the pool's side.
            self.rows.append(rows)
        self.idles: Array = np.array([0.0] if idle_mhz is None else [0.0, 1.0])

    def pair(self, at: Index) -> Pair:
        """The clocks with this index."""
        return Pair(self.mhz[0][at[1]], self.mhz[1][at[2]], self.idle_mhz if at[0] == 1 else None)

    def index(self, pair: Pair) -> Index | None:
        """Where a pair stands; None when it is not among the settings."""
        idle = 0 if pair.idle_mhz is None else 1
        if pair.generation_mhz not in self.mhz[0] or pair.training_mhz not in self.mhz[1]:
            return None
        if idle >= len(self.idles):
            return None
        return idle, self.mhz[0].index(pair.generation_mhz), self.mhz[1].index(pair.training_mhz)


def thinned(clocks: Sequence[int], ceiling_mhz: float, step: float) -> list[int]:
    """The clocks below the ceiling, from the top, no nearer to each other than this step (a log)."""
    kept: list[int] = []
    last = ceiling_mhz
    for mhz in sorted((clock for clock in clocks if clock < ceiling_mhz), reverse=True):
        if math.log(ceiling_mhz / mhz) > DEEPEST:
            break
        if math.log(last / mhz) >= step - 1e-9:
            kept.append(mhz)
            last = float(mhz)
    return kept
