"""Warm start: what a finished run knows of its clocks, for a run of the same job on the same GPUs.

A posterior is plain data. It says how either pool's time and power answer the clock, nothing of how long updates are:
that is measured anew. A run that starts from it still calibrates, goes no deeper at first than a run without it, and
trusts what it was told only when its first lowered updates agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import DEEPEST

Array = NDArray[np.float64]

VERSION = 1
#: What must be the same for a posterior to be of use. ``gpus`` are UUIDs: another allocation is another machine.
KEY = ("model", "framework", "mode", "batch_shape", "gpu_model", "pool_sizes", "gpus")
#: Variance that is added to a posterior, as a share of what is believed without one: another day, another job.
DOUBT = 0.1
#: What was measured is no further than so many standard deviations from what is believed without it, and leaves no
#: more than so many times the variance (beliefs age): the rest is damage.
FAR, WIDE = 20.0, 4.0
#: First lowered updates within this many standard deviations agree; so many of them are a confirmation.
AGREES, CONFIRMING = 2.5, 2


class Verdict(Enum):
    """What lowered updates say of an earlier run's knowledge."""

    OPEN = "open"
    RIGHT = "right"
    WRONG = "wrong"


class Told:
    """How deep an earlier run went, until this one's own lowered updates confirm or contradict it."""

    def __init__(self, reach: Sequence[float] | None = None, agreed: int = 0) -> None:
        self._reach = None if reach is None else [float(depth) for depth in reach]
        self._agreed = agreed

    def compare(self, surprise: float) -> Verdict:
        """One lowered update more, this many standard deviations off."""
        if self._reach is None:
            return Verdict.OPEN
        if surprise > AGREES:
            self._reach = None
            return Verdict.WRONG
        self._agreed += 1
        return Verdict.RIGHT if self._agreed >= CONFIRMING else Verdict.OPEN

    def take(self, reach: Sequence[float]) -> list[float]:
        """Depths that may be counted as tried, once they are confirmed."""
        told, self._reach = self._reach or [0.0, 0.0], None
        return [max(own, depth) for own, depth in zip(reach, told, strict=True)]

    def to_list(self) -> list[Any]:
        """Ready for JSON; the arguments that make it again."""
        return [self._reach, self._agreed]


def fits(posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """Whether a posterior is of this version and of a job with this key; an unknown part of a key fits nothing."""
    found, reach = posterior.get("key"), posterior.get("reach")
    if posterior.get("version") != VERSION or not isinstance(found, Mapping):
        return False
    if not isinstance(reach, list) or len(reach) != 2 or not all(_is_depth(item) for item in reach):
        return False
    return all(key.get(name) is not None and key.get(name) == found.get(name) for name in KEY)


class Knowing(Protocol):
    """A learner that has something to pass on."""

    seen: int

    def posterior(self) -> dict[str, Any] | None:
        """What is known of the clocks; None before anything is."""

    def warm(self, posterior: Mapping[str, Any]) -> None:
        """Begin from what an earlier run knew."""


def leave(learner: Knowing, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run knows, signed for later ones with this key; None if it knows nothing."""
    known = learner.posterior()
    return {"version": VERSION, "key": dict(key), **known} if known is not None else None


def take_up(learner: Knowing, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """Begin from a posterior; False, changing nothing, if it is unfit or updates were seen already."""
    if not fits(posterior, key) or learner.seen:
        return False
    learner.warm(posterior)
    return True


def _is_depth(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and 0.0 <= value <= DEEPEST


def _is_belief(off: Array, spread: Array, variance: Array) -> bool:
    """Whether a mean so far ``off`` and its covariance can be what became of a belief with this ``variance``."""
    if not (np.isfinite(off).all() and np.isfinite(spread).all()) or (np.diag(spread) < 0.0).any():
        return False
    if not np.diag(spread)[variance > 0.0].all():
        return False
    if (np.abs(off) > FAR * np.sqrt(variance)).any() or (np.diag(spread) > WIDE * variance).any():
        return False
    if not np.allclose(spread, spread.T, rtol=1e-6, atol=1e-12):
        return False
    return bool(np.linalg.eigvalsh(spread).min() >= -1e-6 * variance.max())


def extract(mean: Array, covariance: Array, states: Sequence[int]) -> dict[str, Any]:
    """What is believed of some states, ready for JSON."""
    index = np.array(states)
    return {"mean": mean[index].tolist(), "covariance": covariance[np.ix_(index, index)].tolist()}


def insert(mean: Array, covariance: Array, states: Sequence[int], values: Mapping[str, Any] | None) -> None:
    """Start these states from what :func:`extract` wrote, with some doubt; unchanged without, or when it is unfit."""
    if not isinstance(values, Mapping):
        return
    index = np.array(states)
    try:
        known, spread = np.array(values["mean"], dtype=float), np.array(values["covariance"], dtype=float)
    except (KeyError, TypeError, ValueError):
        return
    if known.shape != index.shape or spread.shape != (len(index), len(index)):
        return
    block = np.ix_(index, index)
    if not _is_belief(known - mean[index], spread, np.diag(covariance[block])):
        return
    mean[index] = known
    covariance[block] = DOUBT * covariance[block] + spread
