"""A log-linear fit of one measured quantity on work and clocks, for ledgers of any kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from eerl_controller.regression import Array, design, robust_sd, usable_features

#: A residual further out than so many robust standard deviations, and 5 %, is a straggler and not the clock's doing.
FAR_SD, FAR_LEAST = 3.5, 0.05
#: Shrinks a slope that few or hardly lowered updates support; small beside the squares of three usual trials.
RIDGE = 1e-3
#: What is further out is no measurement of anything, and must not end in infinities.
SMALLEST, LARGEST = 1e-9, 1e15
#: Fits, each without what was far from the one before.
MOST_PASSES = 5
#: What physics allows a slope: a lower clock never makes anything faster, nor slower than its own ratio; it never
#: draws more, and a lock costs at most a little (paper, appendix C: 0 to 2 % of throughput).
BOUNDS = {
    "depth": (0.0, 1.0),
    "locked": (0.0, 0.03),
    "generation depth": (0.0, 1.0),
    "training depth": (0.0, 1.0),
    "differ": (0.0, 1.0),
    "drop": (-2.0, 0.0),
    "other drop": (-2.0, 0.0),
    "generation drop": (-2.0, 0.0),
    "training drop": (-2.0, 0.0),
    "idle": (-2.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """One quantity's slopes by feature of the clocks, and the standard deviation of what they leave (a log)."""

    names: tuple[str, ...]
    slopes: tuple[float, ...]
    residual_sd: float

    def log_at(self, values: Mapping[str, float]) -> float:
        """The clocks' own contribution to the log."""
        return sum(
            slope * values[name]
            for name, slope in zip(self.names, self.slopes, strict=True)
            if name in values
        )


def fit(
    values: Sequence[float],
    work: Sequence[Mapping[str, float]],
    wanted: Sequence[str],
    clocks: Sequence[Mapping[str, float]],
    names: Sequence[str],
) -> Fit:
    """Least squares of log ``values`` on work and clocks, without stragglers; slopes of clocks within ``BOUNDS``."""
    if not values:
        return Fit(tuple(names), (0.0,) * len(names), 0.0)
    y = np.log(np.clip(np.array(values, dtype=np.float64), SMALLEST, LARGEST))
    used = usable_features(wanted, work)
    free = [name for name in names if any(row[name] != 0.0 for row in clocks)]
    # Work that an update does not tell stands at the others' mean.
    known, _, _ = design(used, work)
    full = np.column_stack([np.ones(len(y)), known, [[row[name] for name in free] for row in clocks]])
    low = [-math.inf] * (1 + len(used)) + [BOUNDS[name][0] for name in free]
    high = [math.inf] * (1 + len(used)) + [BOUNDS[name][1] for name in free]
    shrink = np.diag([1e-6] * (1 + len(used)) + [math.sqrt(RIDGE)] * len(free))
    settings = [tuple(row[name] for name in free) for row in clocks]
    keep = np.ones(len(y), dtype=np.bool_)
    for _ in range(MOST_PASSES):
        left = np.vstack([full[keep], shrink])
        right = np.concatenate([y[keep], np.zeros(len(shrink))])
        found = lsq_linear(left, right, bounds=(low, high)).x
        residuals = _within(y - full @ found, settings)
        limit = max(FAR_SD * robust_sd(residuals.tolist()), FAR_LEAST)
        near = np.abs(residuals) <= limit
        if (near == keep).all() or not near.any():
            break
        keep = near
    slopes = dict.fromkeys(names, 0.0)
    slopes.update(zip(free, found[1 + len(used) :].tolist(), strict=True))
    return Fit(tuple(names), tuple(slopes[name] for name in names), float(residuals[keep].std()))


def _within(residuals: Array, settings: Sequence[tuple[float, ...]]) -> Array:
    """Residuals from the middle of their own setting: no setting is a straggler as a whole."""
    out = residuals.copy()
    for setting in set(settings):
        mine = np.array([item == setting for item in settings])
        out[mine] -= np.median(residuals[mine])
    return out
