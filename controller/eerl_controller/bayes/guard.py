"""The learning guard: what training learns from must not suffer from clocks (asynchronous modes).

Timing decides which responses training consumes and how old they are. Policy age, the share of generated tokens that
training uses, and reward of the updates under lowered clocks are compared with those under the governor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.pool_table import PoolMenu
from eerl_controller.clocks import Pair
from eerl_controller.records import UpdateRecord

Flags = NDArray[np.bool_]


class Guard:
    """Compares and remembers what failed."""

    def __init__(self) -> None:
        self._failed: list[Pair] = []

    def add(self, pair: Pair, record: UpdateRecord) -> None:
        """One usable update under these clocks."""

    def verdict(self, pair: Pair) -> str | None:
        """Why these clocks fail, in words; None as long as they do not."""
        return None

    def fail(self, pair: Pair) -> None:
        """These clocks, and all at least as low on both sides, are not chosen again."""
        self._failed.append(pair)

    def barred(self, menu: PoolMenu) -> Flags | None:
        """The settings that may not be chosen; None when there is none."""
        return None
