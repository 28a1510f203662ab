"""Ranges and ticks of axes: round numbers, with as many decimals as tell them apart, and without outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eerl_launch.report import units

#: Values further out than this many interquartile ranges are drawn at the edge, so that a first update with
#: compilation in it does not flatten all others.
OUTLIER_RANGES = 4.0


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) between ``low`` and ``high``."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + 1e-9 * span:
        found.append(first * step)
        first += 1
    return found


def tick_text(value: float, every: Sequence[float]) -> str:
    """The tick with as many decimals as tell it from its neighbours."""
    step = abs(every[1] - every[0]) if len(every) > 1 else abs(value) or 1.0
    decimals = min(max(0, -math.floor(math.log10(step) + 1e-9)), 15)
    if abs(step * 10.0**decimals - round(step * 10.0**decimals)) > 1e-6:
        decimals += 1  # a step of 2.5 needs one more
    return units.plain(value, decimals)


def usual_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value without outliers, with a little room; (0, 1) without values."""
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    quarter, three = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    reach = OUTLIER_RANGES * max(three - quarter, 0.02 * abs(three))
    kept = [value for value in ordered if quarter - reach <= value <= three + reach] or ordered
    room = 0.08 * (kept[-1] - kept[0]) or 0.05 * abs(kept[0])
    room = room if room > 1e-12 else 1.0
    return max(kept[0] - room, 0.0 if kept[0] >= 0 else -math.inf), kept[-1] + room
