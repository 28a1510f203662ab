"""What record streams of overlapping pools share that are not the twin's: clocks, watts, and a governor beside."""

from __future__ import annotations

import random
from collections.abc import Callable

from eerl_controller import ClockGrid, ClockPlan, UpdateRecord

TOP_MHZ = 1980
GRID = ClockGrid(range(210, TOP_MHZ + 1, 15), TOP_MHZ)
#: An update by its number, under a plan (None: the governor), with this randomness.
Stream = Callable[[int, ClockPlan | None, random.Random], UpdateRecord]


def watts(mhz: float) -> float:
    """Of a pool at work."""
    return 180.0 + 520.0 * (mhz / TOP_MHZ) ** 2.4


def clocks_mhz(plan: ClockPlan | None) -> tuple[float, float]:
    """Clocks of generation and training under a plan."""
    wished = (plan.generation_mhz, plan.training_mhz) if plan is not None else (None, None)
    return float(wished[0] or TOP_MHZ), float(wished[1] or TOP_MHZ)


def beside(stream: Stream, index: int, plan: ClockPlan, seed: int) -> tuple[UpdateRecord, UpdateRecord]:
    """The same update under a plan and under the governor."""
    own, governed = (stream(index, wished, random.Random(1000 * seed + index)) for wished in (plan, None))
    return own, governed
