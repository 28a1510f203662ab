"""A run as rows of one quantity: what a series is made of, without the linear algebra that reckons with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The updates of a run in order. ``log`` is NaN where an update is no evidence; it is still predicted.

    ``work`` holds the logs of token counts, centred, by update and feature, ``expected`` the elasticity expected of
    each; ``group`` the setting, -1 being the settled governor; ``at`` the update's place in the run; ``updates`` of
    how many updates a row is the mean; ``lowered`` whether a clock of its setting is (None: of every setting).
    """

    log: Array
    work: Array
    expected: tuple[float, ...]
    group: NDArray[np.int64]
    at: Array
    updates: Array
    lowered: NDArray[np.bool_] | None = None
