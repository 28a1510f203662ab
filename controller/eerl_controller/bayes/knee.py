"""How long two pools go on together, as a function of how much slower either is than under the governor.

Seconds are homogeneous: when both pools take twice as long, so does the update. So one curve tells all: seconds over
training's slowdown, by how much more generation is slowed than training. It has a knee where the pools are equal.

Drained updates: the later of both arrivals, replayed over recent updates. In-flight updates: a queue, replayed over
recent batches. Training takes one batch after the other and waits when it is not ready; generation goes on meanwhile,
at most as many batches ahead as requests have been seen to be old.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Logs of generation's slowdown over training's at which the curve is known; deeper is never asked for.
RATIOS: Array = np.linspace(-1.2, 1.2, 97)


class Knee:
    """Mean seconds of an update by log ratio of slowdowns, with training at the governor's pace."""

    def __init__(self, running_s: Array, critical_s: Array, sides_s: tuple[float, float]) -> None:
        self._running_s = running_s
        self._critical_s = critical_s
        #: Mean governor seconds of either side.
        self.sides_s = sides_s

    def stretched(self, factor: float) -> Knee:
        """The same with updates this many times as long: what a replay does not know of makes none faster."""
        return Knee(self._running_s * factor, self._critical_s * factor, self.sides_s)

    def running_s(self, slow_generation: Array | float, slow_training: Array | float) -> Array:
        """Mean seconds in which both go on, for these log slowdowns."""
        ratio = np.asarray(slow_generation) - slow_training
        return np.asarray(np.exp(slow_training) * np.interp(ratio, RATIOS, self._running_s))

    def critical_s(self, slow_generation: Array | float, slow_training: Array | float) -> tuple[Array, Array]:
        """How much of these seconds generation's pace decides, and how much training's: derivatives by the logs."""
        ratio = np.asarray(slow_generation) - slow_training
        whole = self.running_s(slow_generation, slow_training)
        own = np.asarray(np.exp(slow_training) * np.interp(ratio, RATIOS, self._critical_s))
        return own, np.maximum(whole - own, 0.0)


def meeting(sides_s: Sequence[tuple[float, float]]) -> Knee:
    """Drained updates, from governor seconds of both arrivals by update."""
    pairs = np.array(sides_s)
    generation, training = pairs[:, 0], pairs[:, 1]
    slowed = np.exp(RATIOS)[:, None] * generation[None, :]
    later = slowed > training[None, :]
    running = np.where(later, slowed, training[None, :]).mean(axis=1)
    critical = np.where(later, slowed, 0.0).mean(axis=1)
    return Knee(running, critical, (float(generation.mean()), float(training.mean())))


def queue(generation_s: Sequence[float], training_s: Sequence[float], ahead: int) -> Knee:
    """In-flight updates, from governor seconds of both pools by batch.

    ``ahead``: batches that generation may be ahead of the one being consumed.
    """
    running = replay(generation_s, training_s, np.exp(RATIOS), ahead)
    critical = np.gradient(running, RATIOS)
    return Knee(
        running,
        np.clip(critical, 0.0, running),
        (float(np.mean(generation_s)), float(np.mean(training_s))),
    )


def replay(
    generation_s: Sequence[float], training_s: Sequence[float], slower: Array, ahead: int
) -> Array:
    """Mean seconds of an update in the queue, for generation slower by each of these factors.

    The batches are gone through twice, and the second time counts: the first fills the queue.
    """
    count = len(generation_s)
    done_s = np.cumsum(np.tile(np.array(generation_s), 3))
    position, total = np.zeros(len(slower)), np.zeros(len(slower))
    for batch in range(2 * count):
        running = np.maximum(training_s[batch % count], (done_s[batch] - position) * slower)
        position = np.minimum(position + running / slower, done_s[batch + ahead])
        if batch >= count:
            total += running
    return total / count
