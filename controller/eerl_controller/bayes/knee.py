"""How long two pools go on together, as a function of how much slower either is than under the governor.

Seconds are homogeneous: when both pools take twice as long, so does the update. So one curve tells all: seconds over
training's slowdown, by how much more generation is slowed than training. It has a knee where the pools are equal.

Drained updates: the later of both arrivals, replayed over recent updates. In-flight updates: a queue (``backlog``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
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
        self._curves, self._each = curves, each
        self.curve, self.critical_s = curves.mean(axis=0), critical_s
        #: Mean governor seconds of either side.
        self.sides_s = sides_s
        #: Whether there is only one belief.
        self.is_sure = len(curves) == 1

    @cached_property
    def longest(self) -> Array:
        """The curve of the least favourable belief at every ratio."""
        return np.asarray(self._curves.max(axis=0))

    @cached_property
    def doubt(self) -> tuple[Array, Array]:
        """Variance of the curve over the beliefs, and its covariance with the governor's own."""
        return _with_governor(self._curves)

    @cached_property
    def spread(self) -> tuple[Array, Array]:
        """The same over recent updates, by update of a long sum."""
        return _with_governor(self._each)

    def at(self, slow_generation: Array | float, slow_training: Array | float) -> Going:
        """How both go on under these log slowdowns."""
        return Going(self, slow_generation, slow_training)

    @cached_property
    def governed(self) -> Going:
        """How both go on under the governor."""
        return self.at(0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "curves": self._curves.tolist(),
            "critical_s": self.critical_s.tolist(),
            "sides_s": list(self.sides_s),
            "each": self._each.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Knee:
        """What :meth:`to_dict` wrote."""
        sides = values["sides_s"]
        curves, critical_s, each = (np.array(values[name]) for name in ("curves", "critical_s", "each"))
        return cls(curves, critical_s, (sides[0], sides[1]), each)


class Going:
    """How both pools go on under some log slowdowns; each part of it is worked out when it is asked for, once."""

    def __init__(self, knee: Knee, slow_generation: Array | float, slow_training: Array | float) -> None:
        self._knee, self._slow = knee, (slow_generation, slow_training)
        self._ratio = np.asarray(slow_generation) - slow_training
        self._slower = np.exp(slow_training)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of everything here."""
        return self._ratio.shape

    @cached_property
    def running_s(self) -> Array:
        """Mean seconds in which both go on."""
        return self._of(self._knee.curve)

    @cached_property
    def longest_s(self) -> Array:
        """The same by the least favourable belief."""
        return self._of(self._knee.longest)

    @cached_property
    def sides_s(self) -> tuple[Array, Array]:
        """Mean seconds of either side's own work."""
        generation_s, training_s = self._knee.sides_s
        return np.asarray(generation_s * np.exp(self._slow[0])), np.asarray(training_s * self._slower)

    @cached_property
    def critical_s(self) -> tuple[Array, Array]:
        """How much of the running seconds generation's pace decides, and how much training's: derivatives by the
        logs.
        """
        own = self._of(self._knee.critical_s)
        return own, np.maximum(self.running_s - own, 0.0)

    @cached_property
    def variance_s2(self) -> Array:
        """Variance over the beliefs of what these slowdowns add to the governor's seconds."""
        if self._knee.is_sure:
            return np.zeros(self.shape)
        return self._added_s2(self._knee.doubt)

    @cached_property
    def spread_s2(self) -> Array:
        """Variance, by update of a long sum, of what these slowdowns add to an update: it differs from one update to
        another, where now one pool and now the other decides.
        """
        return self._added_s2(self._knee.spread)

    def _added_s2(self, second: tuple[Array, Array]) -> Array:
        variance, common = second
        own = self._slower * self._of(variance)
        return np.asarray(np.maximum(own - 2.0 * self._of(common) + variance[len(RATIOS) // 2], 0.0))

    def _of(self, curve: Array) -> Array:
        return np.asarray(self._slower * np.interp(self._ratio, RATIOS, curve))


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
