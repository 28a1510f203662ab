"""Equation 2 of the paper: the log of a quantity, linear in standardized log(1 + token count).

Made for few observations. A feature that does not vary is dropped, never divided by; there are at most as many
features as every fifth observation allows; the slopes are shrunk by the ridge that best predicts each
observation from the others; and no slope is negative, since more tokens never take less time or energy (those of
the update before may: what was generated meanwhile is not waited for).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.work import BEFORE

Array = NDArray[np.float64]

#: A robust fit that moves less than this (a thousandth of a percent) has arrived.
CONVERGED = 1e-5

#: A feature whose log varies by less than this (0.1 %) cannot explain an effect of a percent, while its slope,
#: fitted to noise, could be anything.
MIN_SPREAD = 1e-3
#: Observations for each feature, the usual floor of regression practice.
OBSERVATIONS_PER_FEATURE = 5
#: A feature must be known in this share of the observations; the first one after a gap does not know its predecessor.
KNOWN_SHARE = 0.9
#: Ridge strengths tried, relative to the number of observations; the constant model is tried as well.
RIDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: A log further out than this is not a time or an energy of anything: it keeps predictions of nonsense within what
#: a record may hold, 1e15.
LOG_LIMIT = 34.0


@dataclass(frozen=True, slots=True)
class LogLinear:
    """A fitted equation 2; ``total_ratio`` makes the fitted total equal the observed total."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    slopes: tuple[float, ...]
    intercept: float
    total_ratio: float
    residual_sd: float

    def predict(self, counts: Mapping[str, float]) -> float:
        """The governor's seconds or joules for these token counts; an unknown count stands at its mean."""
        value = self.intercept
        for name, mean, scale, slope in zip(self.names, self.means, self.scales, self.slopes, strict=True):
            count = counts.get(name)
            if count is not None:
                value += slope * (math.log1p(count) - mean) / scale
        return math.exp(max(-LOG_LIMIT, min(LOG_LIMIT, value + math.log(self.total_ratio))))


def usable_features(names: Sequence[str], rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """The features known in nearly every row that vary enough, in the given order, no more than the rows can bear."""
    usable = []
    for name in names:
        values = [math.log1p(row[name]) for row in rows if name in row]
        if values and len(values) >= KNOWN_SHARE * len(rows):
            mean = sum(values) / len(values)
            if math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) > MIN_SPREAD:
                usable.append(name)
    return tuple(usable[: len(rows) // OBSERVATIONS_PER_FEATURE])


def design(names: Sequence[str], rows: Sequence[Mapping[str, float]]) -> tuple[Array, Array, Array]:
    """Standardized log(1 + x) by row and feature, with the means and scales taken out; unknown stands at the mean."""
    raw = np.array(
        [[math.log1p(row[name]) if name in row else math.nan for name in names] for row in rows],
        dtype=np.float64,
    ).reshape(len(rows), len(names))
    means = np.nanmean(raw, axis=0) if len(names) else np.zeros(0)
    raw = np.where(np.isnan(raw), means, raw)
    scales = raw.std(axis=0) if len(names) else np.ones(0)
    return (raw - means) / scales, means, scales


def _ridge(z: Array, y: Array) -> tuple[Array, float]:
    """Slopes and squared leave-one-out error of the best ridge, or of the constant if that predicts better."""
    n = len(y)
    centred = y - y.mean()
    spare = 1.0 - 1.0 / n
    best_slopes = np.zeros(z.shape[1])
    best_error = float(((centred / spare) ** 2).sum())
    gram, moment = z.T @ z, z.T @ centred
    for strength in RIDGES:
        # The tiny floor keeps two features that are one (G always 512 x L) solvable.
        inverse = np.linalg.inv(gram + (strength + 1e-9) * n * np.eye(z.shape[1]))
        slopes = inverse @ moment
        leverage = ((z @ inverse) * z).sum(axis=1)
        left_out = (centred - z @ slopes) / np.maximum(spare - leverage, 1e-3)
        error = float((left_out**2).sum())
        if error < best_error:
            best_slopes, best_error = slopes, error
    return best_slopes, best_error


def fit_slopes(z: Array, y: Array, signed: Sequence[int] = ()) -> Array:
    """Ridge slopes, none negative but those of ``signed`` columns: the most negative is left out until none is."""
    active = list(range(z.shape[1]))
    slopes = np.zeros(z.shape[1])
    while active:
        found, _ = _ridge(z[:, active], y)
        judged = np.where(np.isin(active, signed), 0.0, found)
        if (judged >= 0).all():
            slopes[active] = found
            break
        active.pop(int(judged.argmin()))
    return slopes


def fit_log_linear(
    names: Sequence[str], rows: Sequence[Mapping[str, float]], values: Sequence[float]
) -> LogLinear:
    """Equation 2 for positive ``values``; one row is enough for a constant. Raises ValueError without a row."""
    if not rows or len(rows) != len(values):
        raise ValueError(
            f"a fit needs as many rows as values and at least one, not {len(rows)}, {len(values)}"
        )
    used = usable_features(names, rows)
    y = np.log(np.array(values, dtype=np.float64))
    z, means, scales = design(used, rows)
    slopes = fit_slopes(z, y, [i for i, name in enumerate(used) if name == BEFORE])
    intercept = float(y.mean())
    fitted = intercept + z @ slopes
    freedom = max(len(y) - 1 - int((slopes != 0).sum()), 1)
    return LogLinear(
        names=used,
        means=tuple(means.tolist()),
        scales=tuple(scales.tolist()),
        slopes=tuple(slopes.tolist()),
        intercept=intercept,
        total_ratio=float(sum(values) / np.exp(fitted).sum()),
        residual_sd=float(math.sqrt(float(((y - fitted) ** 2).sum()) / freedom)),
    )


def robust_sd(values: Sequence[float]) -> float:
    """Standard deviation from the median absolute deviation: blind to a minority of outliers."""
    if len(values) < 2:
        return 0.0
    array = np.array(values, dtype=np.float64)
    return float(1.4826 * np.median(np.abs(array - np.median(array))))


def robust_residuals(
    names: Sequence[str], rows: Sequence[Mapping[str, float]], values: Sequence[float]
) -> list[float]:
    """Log residuals of a Huber fit of equation 2: a straggler shows instead of bending the fit."""
    used = usable_features(names, rows)
    y = np.log(np.array(values, dtype=np.float64))
    z, _, _ = design(used, rows)
    full = np.column_stack([np.ones(len(y)), z])
    residuals = y - np.median(y)
    if used:
        floor = 1e-9 * len(y) * np.eye(full.shape[1])
        for _ in range(20):
            scale = max(robust_sd(residuals.tolist()), 1e-6)
            weights = 1.0 / np.maximum(1.0, np.abs(residuals) / (1.345 * scale))
            beta = np.linalg.solve(full.T @ (full * weights[:, None]) + floor, full.T @ (weights * y))
            before, residuals = residuals, y - full @ beta
            if float(np.abs(residuals - before).max()) < CONVERGED:
                break
    residuals = residuals - np.median(residuals)
    return [float(value) for value in residuals]
