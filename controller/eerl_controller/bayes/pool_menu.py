"""The settings of two overlapping pools to choose among, idle clock included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eerl_controller.bayes.curve import DEEPEST, basis
from eerl_controller.bayes.menu import thinned
from eerl_controller.bayes.outcomes import Array, Index
from eerl_controller.bayes.pace_priors import Layout
from eerl_controller.clocks import Pair


class PoolMenu:
    """The clocks that either pool may take, the governor first, and whether waiting pools may idle."""

    def __init__(
        self,
        clocks: Sequence[int],
        ceilings_mhz: tuple[float, float],
        top_mhz: float,
        idle_mhz: int | None,
    ) -> None:
        self.idle_mhz = idle_mhz
        self.mhz: list[list[int | None]] = []
        self.depths: list[Array] = []
        #: Depths from the highest clock there is (:class:`~eerl_controller.bayes.sides.Lowered`).
        self.below: list[Array] = []
        self.locked: list[Array] = []
        self.rows: list[Array] = []
        for part, ceiling in enumerate(ceilings_mhz):
            mhz: list[int | None] = [
                None,
                *(clock for clock in thinned(clocks, ceiling) if math.log(ceiling / clock) <= DEEPEST),
            ]
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
