"""A bank of Kalman filters that differ in what they suppose about noise; what predicts best gains weight.

Each filter's state holds constants that may drift (random walks) and unit noises that decay (AR(1)). Readings come
one at a time, so no matrix is ever inverted. A reading further off than a Gaussian allows weighs less (Student's t),
and the noise scale of every series is learnt from its own surprises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Degrees of freedom of the tails: heavier than a Gaussian's, with a variance and a kurtosis that exist.
TAIL_DF = 6.0
#: The prior noise scale counts as much as this many readings.
SCALE_PRIOR_READINGS = 3.0
#: Readings over which a noise scale is learnt: four monitoring windows, for it may change.
SCALE_MEMORY_READINGS = 80.0
#: A single surprise says no more about the scale than a 3-sigma one.
LARGEST_SURPRISE = 9.0
#: Weight that yesterday's evidence about the suppositions keeps by reading.
EVIDENCE_MEMORY = 0.98


class FilterBank:
    """``decay`` and ``walk`` are (filters, states): AR factor (1: a constant) and random-walk variance by update."""

    def __init__(self, mean: Array, covariance: Array, decay: Array, walk: Array, scales: Array) -> None:
        filters = len(decay)
        self.mean: Array = np.repeat(mean[None, :], filters, axis=0)
        self.covariance: Array = np.repeat(covariance[None, :, :], filters, axis=0)
        self._decay = decay
        self._walk = walk
        self._stationary = np.where(decay < 1.0, 1.0, 0.0)
        #: What one update does to means, to covariances and to variances.
        self._one = self._passing(1)
        #: Noise scale by filter and series.
        self.scales: Array = np.repeat(scales[None, :], filters, axis=0)
        self._readings = np.zeros(len(scales))
        self._weigh(np.zeros(filters))
        self._learning = True
        #: Log probability of all readings so far, but for a constant by reading.
        self.evidence = 0.0

    def know_scales(self, scales: Array, readings: int) -> None:
        """Take these noise scales, learnt from so many readings, as known until :meth:`free_scales`."""
        self.scales[:] = scales
        self._readings[:] = readings
        self._learning = False

    def free_scales(self) -> None:
        """Go on learning the noise scales."""
        self._learning = True

    @property
    def weights(self) -> Array:
        """How much each filter is believed; they sum to 1."""
        return self._weights

    def _weigh(self, log_weights: Array) -> None:
        self._log_weights = log_weights
        raw = np.exp(log_weights - log_weights.max())
        self._weights: Array = raw / raw.sum()

    def advance(self, updates: int = 1) -> None:
        """Let time pass."""
        factor, factors, fresh = self._one if updates == 1 else self._passing(updates)
        self.mean *= factor
        self.covariance *= factors
        index = np.arange(self.mean.shape[1])
        self.covariance[:, index, index] += fresh

    def _passing(self, updates: int) -> tuple[Array, Array, Array]:
        factor = self._decay**updates
        fresh = self._stationary * (1.0 - factor**2) + self._walk * updates
        return factor, factor[:, :, None] * factor[:, None, :], fresh

    def insist(
        self, rows: Array, white: Array, value: float, noises: Sequence[int], jumped: Sequence[int]
    ) -> None:
        """Take a reading in as it is, however far off: it has come twice, so it is no outlier.

        No noise explains it, so the states ``noises`` do not: what series have in common of it would carry it to
        the others. Far off, the states ``jumped`` have changed by as much.
        """
        rows = rows.copy()
        white = white + (rows[:, noises] ** 2).sum(axis=1)
        rows[:, noises] = 0.0
        error = value - (self.mean * rows).sum(axis=1)
        carried = (self.covariance @ rows[:, :, None])[:, :, 0]
        far = error**2 > LARGEST_SURPRISE * ((carried * rows).sum(axis=1) + white)
        self.covariance[:, jumped, jumped] += np.where(far, error**2, 0.0)[:, None]
        carried = (self.covariance @ rows[:, :, None])[:, :, 0]
        variance = (carried * rows).sum(axis=1) + white
        gain = carried / variance[:, None]
        self.mean += gain * error[:, None]
        self.covariance -= gain[:, :, None] * carried[:, None, :]

    def read(self, series: int, rows: Array, white: Array, value: float) -> float:
        """Take a reading in: ``rows`` (filters, states) maps the state to it, ``white`` is its own noise variance.

        Returns the surprise in standard deviations, weighted over the filters.
        """
        carried = (self.covariance @ rows[:, :, None])[:, :, 0]
        variance = np.add.reduce(carried * rows, axis=1) + white
        error = value - np.add.reduce(self.mean * rows, axis=1)
        squared = error**2 / variance
        weight = np.minimum((TAIL_DF + 1.0) / (TAIL_DF + squared), 1.0)
        # An outlier is noise: only that much of the variance grows, so that a surprise about what was never seen
        # before is still believed.
        gain = carried / (variance + self.scales[:, series] ** 2 * (1.0 / weight - 1.0))[:, None]
        weights = self._weights
        surprise = float(weights @ (error / np.sqrt(variance)))
        self.mean += gain * error[:, None]
        self.covariance -= gain[:, :, None] * carried[:, None, :]
        density = -0.5 * np.log(variance) - 0.5 * (TAIL_DF + 1.0) * np.log1p(squared / TAIL_DF)
        most = float(density.max())
        self.evidence += most + math.log(float(weights @ np.exp(density - most)))
        self._weigh(EVIDENCE_MEMORY * self._log_weights + density - most)
        if self._learning:
            self._learn_scale(series, squared, variance)
        return surprise

    def _learn_scale(self, series: int, squared: Array, variance: Array) -> None:
        self._readings[series] += 1.0
        memory = min(self._readings[series] + SCALE_PRIOR_READINGS, SCALE_MEMORY_READINGS)
        # Only as far as the surprise was a matter of noise, not of what is still unknown.
        share = np.minimum(self.scales[:, series] ** 2 / variance, 1.0)
        moved = share * (np.minimum(squared, LARGEST_SURPRISE) - 1.0) / memory
        self.scales[:, series] *= np.exp(0.5 * np.minimum(np.maximum(moved, -0.5), 0.5))

    def accumulate(self, total: int, row: Array, constant: float) -> None:
        """Add ``row @ state + constant`` to the state ``total``, so that what is learnt later corrects it."""
        self.mean[:, total] += self.mean @ row + constant
        self.covariance[:, total, :] += np.einsum("kij,i->kj", self.covariance, row)
        self.covariance[:, :, total] += self.covariance @ row

    def spend(self, total: int, mean: float, variance: float) -> None:
        """Start the state ``total`` from what is known of it; it is independent of all others."""
        self.mean[:, total] = mean
        self.covariance[:, total, :] = 0.0
        self.covariance[:, :, total] = 0.0
        self.covariance[:, total, total] = variance

    def doubt(self, states: Sequence[int], variance: float) -> None:
        """Something happened: these states may be different from now on."""
        index = np.array(states)
        self.covariance[:, index, index] += variance

    def pooled(self) -> tuple[Array, Array]:
        """Mean and covariance over the whole bank."""
        weights, states = self._weights, self.mean.shape[1]
        mean = weights @ self.mean
        off = self.mean - mean
        within = (weights @ self.covariance.reshape(len(weights), -1)).reshape(states, states)
        covariance = within + (off * weights[:, None]).T @ off
        return mean, covariance

    def pooled_mean(self) -> Array:
        """Mean over the whole bank."""
        return np.asarray(self.weights @ self.mean)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "mean": self.mean.tolist(),
            "covariance": self.covariance.tolist(),
            "scales": self.scales.tolist(),
            "readings": self._readings.tolist(),
            "log_weights": self._log_weights.tolist(),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.mean = np.array(values["mean"])
        self.covariance = np.array(values["covariance"])
        self.scales = np.array(values["scales"])
        self._readings = np.array(values["readings"])
        self._weigh(np.array(values["log_weights"]))
