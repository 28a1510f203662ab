"""In-flight updates as a queue of batches.

Training takes one batch after the other: it waits until the batch is ready, then trains. Generation goes on
meanwhile, at most as many batches ahead as requests may be old, and a batch is not ready before its longer responses
have had their time, which begins when the batch may be begun. So in the long run an update takes as long as the
slowest of three: generation's work, training's work, and, with an age of A, the latency of a batch and its training
over A + 1 updates (``latency``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A pool that waits for a smaller share of an update than this does not wait.
LEAST_WAIT = 0.01
#: No policy age beyond this is told apart.
OLDEST = 8

#: Factors by which either pool is slower, by update (or one for all) and setting.
Slowed = tuple[Array, Array]
AS_GOVERNED: Array = np.ones((1, 1))
#: Both at the governor's pace.
GOVERNED: Slowed = (AS_GOVERNED, AS_GOVERNED)


@dataclass(slots=True)
class Queue:
    """How far a queue is: work done beyond the batch consumed last, and decode seconds since recent updates began.

    Arrays by belief and setting; ``since_s`` by update before, the latest last, as far back as is wanted.
    """

    ready_s: Array
    since_s: Array

    @classmethod
    def empty(cls, shape: tuple[int, int], back: int = OLDEST) -> Queue:
        """Nothing is ready, and every batch could have been begun long ago."""
        return cls(np.zeros(shape), np.full((back, *shape), 1e9))

    def copy(self, back: int = OLDEST) -> Queue:
        """Another one, as far as this."""
        return Queue(self.ready_s.copy(), self.since_s[-back:].copy())

    def column(self, setting: int) -> Queue:
        """That of one setting."""
        return Queue(self.ready_s[:, [setting]], self.since_s[:, :, [setting]])

    @classmethod
    def side_by_side(cls, queues: Sequence[Queue]) -> Queue:
        """Several settings as one."""
        return cls(
            np.concatenate([queue.ready_s for queue in queues], axis=1),
            np.concatenate([queue.since_s for queue in queues], axis=2),
        )

    def spread(self, shape: tuple[int, int], back: int = OLDEST) -> Queue:
        """The mean over the beliefs, for as many others."""
        return Queue(
            np.full(shape, self.ready_s.mean()),
            np.array([np.full(shape, item.mean()) for item in self.since_s[-back:]]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"ready_s": self.ready_s.tolist(), "since_s": self.since_s.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Queue:
        """What :meth:`to_dict` wrote."""
        return cls(np.array(values["ready_s"]), np.array(values["since_s"]))


@dataclass(frozen=True)
class Batches:
    """Consecutive batches: governor seconds of either pool's work, the longest response, what updates really took.

    ``slower`` are the factors by which the clocks in force slowed either pool, ``ahead`` the age of the oldest
    request.
    """

    generation_s: Array
    training_s: Array
    longest: Array
    running_s: Array
    slower: tuple[Array, Array]
    ahead: int

    @property
    def as_it_was(self) -> Slowed:
        """The slowdowns that were in force."""
        return self.slower[0][:, None], self.slower[1][:, None]

    @cached_property
    def _limits_s(self) -> Array:
        """How much work may be ready when an update is over, by update: that of the batches begun by then."""
        count = len(self.generation_s)
        ends_s = np.concatenate([[0.0], np.cumsum([*self.generation_s, *self.generation_s[: self.ahead]])])
        ends = np.minimum(np.arange(count) + 1 + self.ahead, len(ends_s) - 1)
        return np.asarray(ends_s[ends] - ends_s[1 : count + 1])

    def run(
        self, queue: Queue, latencies_s: Array, slowed: Slowed, *, only: int | None = None, rounds: int = 1
    ) -> Array:
        """Seconds of every update, or of the ``only`` first ones, by belief and setting; the queue goes along.

        After more than one of the ``rounds`` it is the last one's. Work and latency are in decode seconds. The queue
        must know as many updates back as batches are ``ahead``.
        """
        steps = slice(only)
        works_s, limits_s = self.generation_s[steps], self._limits_s[steps]
        ready_s, back, count = queue.ready_s, len(queue.since_s), len(works_s)
        factors = slowed[0][steps, None]
        # Decode seconds since an update began, by update; the coming ones begin one by one.
        since_s = np.concatenate([queue.since_s, np.empty((count, *ready_s.shape))])
        every = since_s[back:] if back == 1 else np.empty((count, *ready_s.shape))
        # One shape for all, since numpy goes through unlike ones several times as slowly.
        trained_s = _filled((self.training_s[:, None] * slowed[1])[steps, None] / factors, every)
        latency_s = _filled((latencies_s * self.longest[steps, None])[:, :, None], every)
        missing_s, waits_s, nothing = np.empty_like(ready_s), np.empty_like(ready_s), np.zeros(())
        begun_s = since_s[back - self.ahead :]
        for again in range(rounds):
            if again:
                since_s[:back] = since_s[count:]
            for i, (decoded_s, own_s, late_s, ago_s) in enumerate(
                zip(since_s[back:], trained_s, latency_s, begun_s, strict=False)
            ):
                np.subtract(works_s[i, ...], ready_s, out=missing_s)
                np.subtract(late_s, ago_s, out=waits_s)
                np.maximum(missing_s, waits_s, out=waits_s)
                np.maximum(waits_s, nothing, out=waits_s)
                np.add(waits_s, own_s, out=decoded_s)
                np.subtract(decoded_s, missing_s, out=ready_s)
                np.minimum(ready_s, limits_s[i, ...], out=ready_s)
                if back > 1:
                    every[i] = decoded_s
                    since_s[i + 1 : back + i] += decoded_s
        queue.since_s = since_s[count:]
        return every * factors


def _filled(values: Array, like: Array) -> Array:
    """The values in another one's shape."""
    return np.ascontiguousarray(np.broadcast_to(values, like.shape))


def batches_of(
    seconds: Sequence[tuple[float, float]],
    longest: Sequence[float],
    running_s: Sequence[float],
    slow: Sequence[tuple[float, float]],
    ahead: int,
    begun_s: float | None = None,
) -> Batches:
    """Batches from consecutive updates: the seconds of both pools as they were, and how slowed they were (logs).

    ``begun_s`` is the work that was ready when the first one began, if that is known.
    """
    factors = np.exp(np.array(slow))
    own_s, whole_s = np.array(seconds), np.array(running_s)
    governor_s, ahead = own_s / factors, min(ahead, OLDEST)
    generation_s, training_s = governor_s[:, 0], governor_s[:, 1]
    idled_s, waited_s = whole_s - own_s[:, 0], whole_s - own_s[:, 1]
    idles, waits = idled_s > LEAST_WAIT * whole_s, waited_s > LEAST_WAIT * whole_s
    after_s = np.cumsum(generation_s)
    ready_s = after_s - generation_s + waited_s / factors[:, 0]
    # Where training waited for a generation that never idled, its batch was ready just when it went on; where
    # generation idled, it was as far ahead as it may be when the update was over.
    done_s = {} if begun_s is None else {-1: -begun_s}
    just = waits & ~idles
    done_s |= zip(np.flatnonzero(just).tolist(), ready_s[just].tolist(), strict=True)
    done_s |= zip((np.flatnonzero(idles) + ahead).tolist(), after_s[idles].tolist(), strict=True)
    return Batches(
        generation_s=_works(done_s, generation_s.mean(), training_s),
        training_s=training_s,
        longest=np.array(longest) / np.mean(longest),
        running_s=whole_s,
        slower=(factors[:, 0], factors[:, 1]),
        ahead=ahead,
    )


def _works(done_s: Mapping[int, float], mean_s: float, like: Array) -> Array:
    """Work of every batch, from how much was done when it was ready, for the batches where that is known.

    Batches in between share the work by ``like``, what training took for them: it follows the same tokens. So do
    the first and the last, which take ``mean_s`` on average.
    """
    works_s = mean_s * like / like.mean()
    known = sorted(batch for batch in done_s if batch < len(like))
    if len(known) < 2:
        return np.asarray(works_s)
    until = np.concatenate([[0.0], np.cumsum(like)])
    whole_s = np.diff([done_s[batch] for batch in known])
    # Seconds of work by second of training, between two batches that are known.
    rate = whole_s / np.diff(until[np.array(known) + 1])
    span = slice(known[0] + 1, known[-1] + 1)
    by_batch = np.repeat(rate, np.diff(known))
    works_s[span] = np.where(by_batch > 0.0, by_batch * like[span], works_s[span])
    return np.asarray(works_s)
