"""How far a mean over a run's updates may be off, by the spread within the run; that between runs is on top."""

from __future__ import annotations

import numpy as np

from eerl_launch.profiles.spread import Values

#: Updates follow one another (lengths drift, clocks are tried), so that blocks of them are what is independent.
BLOCKS = 10
#: Updates below which a spread is an accident.
LEAST_UPDATES = 2 * BLOCKS
#: Student's t for 95 % with BLOCKS − 1 degrees of freedom.
T_95 = 2.262


def log_error(above: Values, below: Values) -> float | None:
    """Standard error of log(Σ above / Σ below), by leaving out one block of updates after the other.

    Over updates where both are known; None with fewer than :data:`LEAST_UPDATES` or a sum that is not positive.
    """
    known = np.isfinite(above) & np.isfinite(below)
    if known.sum() < LEAST_UPDATES:
        return None
    tops = np.array([block.sum() for block in np.array_split(above[known], BLOCKS)])
    bottoms = np.array([block.sum() for block in np.array_split(below[known], BLOCKS)])
    left_top, left_bottom = tops.sum() - tops, bottoms.sum() - bottoms
    if not (left_top > 0).all() or not (left_bottom > 0).all():
        return None
    logs = np.log(left_top / left_bottom)
    return float(np.sqrt((BLOCKS - 1) / BLOCKS * ((logs - logs.mean()) ** 2).sum()))


def ratio_interval(ratio: float | None, one: float | None, other: float | None) -> tuple[float, float] | None:
    """95 % interval of a ratio of two runs' means with these log errors; None when any of it is unknown."""
    if ratio is None or one is None or other is None:
        return None
    reach = float(np.exp(T_95 * np.hypot(one, other)))
    return ratio / reach, ratio * reach
