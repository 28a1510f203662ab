"""The settings to choose among: either clock's, and the idle clock where pools are separate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import DEEPEST, basis
from eerl_controller.bayes.powers import Layout as PowerLayout
from eerl_controller.bayes.sample import GENERATION, TRAINING
from eerl_controller.bayes.time_prior import Layout

Array = NDArray[np.float64]

#: Clocks nearer than this (a log) are not worth telling apart.
LEAST_STEP = 0.02


class Axis:
    """The clocks that one axis may take, the governor first, and what is believed of them."""

    def __init__(self, part: int, clocks: Sequence[int], ceiling_mhz: float) -> None:
        below = [mhz for mhz in clocks if mhz < ceiling_mhz and math.log(ceiling_mhz / mhz) <= DEEPEST]
        self.mhz: list[int | None] = [None, *sorted(below, reverse=True)]
        depths = [0.0 if mhz is None else math.log(ceiling_mhz / mhz) for mhz in self.mhz]
        self.depths: Array = np.array(depths)
        self.locked: Array = np.array([0.0 if mhz is None else 1.0 for mhz in self.mhz])

        self._basis = basis(self.depths)
        #: Rows by clock that map the state of time to the log slowdown of the axis' own part.
        self.time_rows: Array = np.zeros((len(self.mhz), Layout.size))
        self.time_rows[:, Layout.curve[part]] = self._basis
        self.time_rows[:, Layout.offset[part]] = self.locked
        self._part = part

    def power_drop(self, mean: Array) -> Array:
        """How much lower the log power of the axis' own part is, by clock."""
        drop = self._basis @ mean[PowerLayout.curve[self._part]]
        return np.asarray(np.maximum.accumulate(drop))


class Menu:
    """Every setting that may be chosen, for the clocks that the governor reaches."""

    def __init__(self, axes: tuple[Axis, Axis], idle_mhz: int | None, *, one_pool: bool) -> None:
        self.axes = axes
        self.idle_mhz = idle_mhz
        #: Whether an update switches clocks inside itself: by idle clock off and on, and both axes' clocks.
        if one_pool:
            codes = [np.array([mhz or 0 for mhz in axis.mhz]) for axis in axes]
            self.switches: Array = 1.0 * (codes[0][:, None] != codes[1][None, :])[None, :, :]
        else:
            idles = np.array([0.0] if idle_mhz is None else [0.0, 1.0])
            self.switches = np.broadcast_to(
                idles[:, None, None], (len(idles), len(axes[0].mhz), len(axes[1].mhz))
            )

    @classmethod
    def of(
        cls, clocks: Sequence[int], ceilings_mhz: tuple[float, float], idle_mhz: int | None, *, one_pool: bool
    ) -> Menu:
        """The settings that these clocks allow.

        Both axes choose among the same clocks: where they take the same one, one pool need not switch.
        """
        chosen = thinned(clocks, max(ceilings_mhz))
        generation, training = (
            Axis(part, chosen, mhz) for part, mhz in zip((GENERATION, TRAINING), ceilings_mhz, strict=True)
        )
        return cls((generation, training), idle_mhz, one_pool=one_pool)


def thinned(clocks: Sequence[int], ceiling_mhz: float) -> list[int]:
    """The clocks below the ceiling, from the top, no nearer to each other than is worth telling apart."""
    kept: list[int] = []
    last = ceiling_mhz
    for mhz in sorted((clock for clock in clocks if clock < ceiling_mhz), reverse=True):
        if math.log(last / mhz) >= LEAST_STEP - 1e-9:
            kept.append(mhz)
            last = float(mhz)
    return kept
