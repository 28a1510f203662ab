"""How long two pools go on together, as a function of how much slower either is than under the governor.

Seconds are homogeneous: when both pools take twice as long, so does the update. So one curve tells all: seconds over
training's slowdown, by how much more generation is slowed than training. It has a knee where the pools are equal.

Drained updates: the later of both arrivals, replayed over recent updates. In-flight updates: a queue (``backlog``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Logs of generation's slowdown over training's at which the curve is known; deeper is never asked for.
RATIOS: Array = np.linspace(-1.2, 1.2, 241)


class Knee:
    """Mean seconds of an update by log ratio of slowdowns, with training at the governor's pace.

    ``curves`` has a row for each of several equally likely beliefs about how the sides go together, ``each`` one for
    each of some recent updates, scaled so that their variance is that of a long sum, by update.
    """

    def __init__(self, curves: Array, critical_s: Array, sides_s: tuple[float, float], each: Array) -> None:
        self._curves = curves
        self._curve = curves.mean(axis=0)
        self._critical_s = critical_s
        #: Mean governor seconds of either side.
        self.sides_s = sides_s
        governor_s = curves[:, len(RATIOS) // 2]
        self._doubt = _with_governor(curves)
        self._each, self._spread = each, _with_governor(each)
        self._longest = curves.max(axis=0)
        self._is_sure = len(curves) == 1
        #: The curve for the governor's own pace, by belief.
        self.governor_s = governor_s

    def running_s(self, slow_generation: Array | float, slow_training: Array | float) -> Array:
        """Mean seconds in which both go on, for these log slowdowns."""
        return self._at(self._curve, slow_generation, slow_training)

    def longest_s(self, slow_generation: Array | float, slow_training: Array | float) -> Array:
        """The same by the least favourable belief."""
        return self._at(self._longest, slow_generation, slow_training)

    def critical_s(self, slow_generation: Array | float, slow_training: Array | float) -> tuple[Array, Array]:
        """How much of these seconds generation's pace decides, and how much training's: derivatives by the logs."""
        whole = self.running_s(slow_generation, slow_training)
        own = self._at(self._critical_s, slow_generation, slow_training)
        return own, np.maximum(whole - own, 0.0)

    def variance_s2(self, slow_generation: Array, slow_training: Array) -> Array:
        """Variance over the beliefs of what these slowdowns add to the governor's seconds."""
        if self._is_sure:
            return np.zeros(np.broadcast(slow_generation, slow_training).shape)
        return self._added_s2(self._doubt, slow_generation, slow_training)

    def spread_s2(self, slow_generation: Array, slow_training: Array) -> Array:
        """Variance, by update of a long sum, of what these slowdowns add to an update: it differs from one update to
        another, where now one pool and now the other decides.
        """
        return self._added_s2(self._spread, slow_generation, slow_training)

    def _added_s2(self, second: tuple[Array, Array], slow_generation: Array, slow_training: Array) -> Array:
        variance, common = second
        slower = np.exp(slow_training)
        own = slower * self._at(variance, slow_generation, slow_training)
        both = self._at(common, slow_generation, slow_training)
        return np.asarray(np.maximum(own - 2.0 * both + variance[len(RATIOS) // 2], 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "curves": self._curves.tolist(),
            "critical_s": self._critical_s.tolist(),
            "sides_s": list(self.sides_s),
            "each": self._each.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Knee:
        """What :meth:`to_dict` wrote."""
        sides = values["sides_s"]
        curves, critical_s, each = (np.array(values[name]) for name in ("curves", "critical_s", "each"))
        return cls(curves, critical_s, (sides[0], sides[1]), each)

    def _at(self, curve: Array, slow_generation: Array | float, slow_training: Array | float) -> Array:
        ratio = np.asarray(slow_generation) - slow_training
        return np.asarray(np.exp(slow_training) * np.interp(ratio, RATIOS, curve))


def _with_governor(rows: Array) -> tuple[Array, Array]:
    """Variance over the rows at every ratio, and covariance with the governor's own."""
    off = rows - rows.mean(axis=0)
    return (off**2).mean(axis=0), (off * off[:, len(RATIOS) // 2, None]).mean(axis=0)


def meeting(sides_s: Sequence[tuple[float, float]]) -> Knee:
    """Drained updates, from governor seconds of both arrivals by update."""
    pairs = np.array(sides_s)
    generation, training = pairs[:, 0], pairs[:, 1]
    slowed = np.exp(RATIOS)[:, None] * generation[None, :]
    later = slowed > training[None, :]
    running = np.where(later, slowed, training[None, :])
    critical = np.where(later, slowed, 0.0).mean(axis=1)
    sides = (float(generation.mean()), float(training.mean()))
    return Knee(running.mean(axis=1)[None, :], critical, sides, running.T)
