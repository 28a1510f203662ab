"""The latest updates of two overlapping pools, and what the coming ones are expected to be under the governor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.backlog import Batches, Queue, Slowed, batches_of
from eerl_controller.bayes.knee import Going, Knee, meeting
from eerl_controller.bayes.latency import BELIEFS, believe
from eerl_controller.bayes.sides import REST, Lowered, Sides, Three
from eerl_controller.records import ExecutionMode

#: Updates that the coming ones are expected to be like: a monitoring window (Table 3: 20); twice as many where
#: neighbouring updates share their work.
MEMORY_UPDATES = {ExecutionMode.ASYNC_DRAINED: 20, ExecutionMode.ASYNC_INFLIGHT: 40}

#: Where both pools take about as long, decide in turns, or both wait for latency, a loss in flight is known to so
#: much of it: the order of batches matters, and the queue is supposed, not seen. Else it is known as a pace is.
QUEUE_SD, PACE_SD = 0.15, 0.03
#: Pools nearer than this share are about as long; both wait when updates are longer than either pool by this share.
NEAR, WAITING = 0.2, 0.05

Slow = Callable[[Lowered], Three]
Array = NDArray[np.float64]


@dataclass(slots=True)
class Latest:
    """One update: its sides, what it ran under, the longest response it consumed, and the age of the oldest.

    ``accounted``: the log slowdowns that were believed of it when its loss was accounted for, and the seconds that
    were taken for lost while both pools went on.
    """

    sides: Sides
    setting: Lowered
    longest: float
    age: float
    accounted: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        return [
            self.sides.to_list(),
            self.setting.to_list(),
            self.longest,
            self.age,
            list(self.accounted),
        ]

    @classmethod
    def from_list(cls, values: list[Any]) -> Latest:
        """What :meth:`to_list` wrote."""
        sides, setting, longest, age, (slow_g, slow_t, lost_s) = values
        return cls(
            Sides.from_list(sides),
            Lowered.from_list(setting),
            longest,
            age,
            (slow_g, slow_t, lost_s),
        )


class Recent:
    """A window of updates under any clocks, made comparable by what is believed of the clocks."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._mode = mode
        self._items: list[Latest] = []
        self._visits_s = [0.0, 0.0]
        self._seen = 0
        self.rest_s = 0.0
        self._knee: Knee | None = None
        self._latencies_s: Array = np.zeros(BELIEFS)
        #: The queue at the begin of the window: as it was, and as it would have been under the governor.
        self._queue = Queue.empty((BELIEFS, 2))
        self._fresh = False
        #: Whether updates have left the window, so that its begin is known.
        self._left = False
        #: Standard deviation of what the updates of the window lost, as far as it is not known how pools go together.
        self.doubted_s = 0.0

    @property
    def known(self) -> bool:
        """Whether anything is expected."""
        return self._knee is not None

    @property
    def knee(self) -> Knee:
        """How the coming updates' sides go together."""
        if self._knee is None:
            raise RuntimeError("nothing was seen yet: a bug in the controller")
        return self._knee

    @property
    def visits_s(self) -> tuple[float, float]:
        """Seconds an update of validation (under generation's clock) and of checkpoints (under none)."""
        if not self._seen:
            return 0.0, 0.0
        return self._visits_s[0] / self._seen, self._visits_s[1] / self._seen

    @property
    def own_s(self) -> float:
        """Governor seconds of an update without what visits it."""
        return float(self.knee.governed.running_s) + self.rest_s

    @property
    def total_s(self) -> float:
        """Governor seconds of an update with all that visits it."""
        return self.own_s + sum(self.visits_s)

    def add_visits(self, validation_s: float, checkpoint_s: float) -> None:
        """An update's visitors; they come seldom, so their mean is taken over all updates."""
        self._seen += 1
        self._visits_s[0] += validation_s
        self._visits_s[1] += checkpoint_s

    def forget(self) -> None:
        """Another governor: start anew, but for the visitors."""
        self._items, self._knee, self._fresh, self._left = [], None, False, False
        self._queue = Queue.empty((BELIEFS, 2))

    def add(self, item: Latest) -> None:
        """One more update."""
        self._fresh = False
        self._items = [*self._items, item]
        self.keep(MEMORY_UPDATES[self._mode])

    def keep(self, count: int) -> None:
        """Leave out all but the latest updates, so many of them, and one at least."""
        leaving = len(self._items) - max(count, 1)
        if leaving <= 0:
            return
        self._fresh = False
        if self._mode is ExecutionMode.ASYNC_INFLIGHT:
            batches = self._batches([item.accounted for item in self._items])
            batches.run(self._queue, self._latencies_s, _both(batches), only=leaving)
        self._items, self._left = self._items[leaving:], True

    def refresh(self, slow: Slow) -> None:
        """Work out what is expected, by what is believed now of the clocks."""
        if self._fresh:
            return
        self._fresh = True
        known = {setting: slow(setting) for setting in dict.fromkeys(item.setting for item in self._items)}
        found = [known[item.setting] for item in self._items]
        faster = {setting: [math.exp(-log) for log in logs] for setting, logs in known.items()}
        self.rest_s = fmean(item.sides.seconds[REST] * faster[item.setting][REST] for item in self._items)
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            sides_s = []
            for item in self._items:
                (g, t, _), (g_s, t_s, _) = faster[item.setting], item.sides.seconds
                sides_s.append((g_s * g, t_s * t))
            self._knee = meeting(sides_s)
            return
        batches = self._batches(found)
        self._knee, self._latencies_s = believe(batches, self._queue.column(0))

    def _batches(self, slow: Sequence[tuple[float, float, float]]) -> Batches:
        """The window as batches of a queue, for these log slowdowns of its updates."""
        items = self._items
        return batches_of(
            [item.sides.seconds[:2] for item in items],
            [item.longest for item in items],
            [item.sides.running_s for item in items],
            [(g, t) for g, t, _ in slow],
            max(math.ceil(max(item.age for item in items)), 1),
            float(self._queue.ready_s[:, 0].mean()) if self._left else None,
        )

    def model_sd(self, going: Going) -> Array:
        """Standard deviation of a loss for how pools are supposed to go together, as a share of it."""
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            # A rendezvous is seen.
            return np.zeros(going.shape)
        generation_s, training_s = going.sides_s
        longer_s = np.maximum(generation_s, training_s)
        apart = 1.0 - np.minimum(generation_s, training_s) / longer_s
        waiting = going.running_s / longer_s - 1.0
        own, other = going.critical_s
        in_turns = 4.0 * own * other / (own + other) ** 2
        near = np.maximum(1.0 - apart / NEAR, 0.0)
        unsure = np.maximum(in_turns, near) + np.maximum(waiting / WAITING, 0.0)
        return np.asarray(np.maximum(QUEUE_SD * np.minimum(unsure, 1.0), PACE_SD))

    def corrected_s(self) -> float:
        """Seconds by which what was taken for lost in the window must be raised, by what is believed now of how
        pools go together; the paces that were believed then are the model of time's to correct.
        """
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            return 0.0
        # Both queues side by side: what one update loses the next ones may win back, for as long as batches lie
        # ready a pool that was slow for a while catches up.
        batches = self._batches([item.accounted for item in self._items])
        queue = self._queue.copy(batches.ahead)
        both = batches.run(queue, self._latencies_s, _both(batches))
        lost = both[:, :, 0] - both[:, :, 1]
        more_s = 0.0
        for item, lost_s in zip(self._items, lost.mean(axis=1).tolist(), strict=True):
            slow_g, slow_t, before_s = item.accounted
            more_s += lost_s - before_s
            item.accounted = (slow_g, slow_t, lost_s)
        self.doubted_s = float(lost.sum(axis=0).std())
        return more_s

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "items": [item.to_list() for item in self._items],
            "visits_s": self._visits_s,
            "seen": self._seen,
            "knee": self._knee.to_dict() if self._knee else None,
            "rest_s": self.rest_s,
            "fresh": self._fresh,
            "left": self._left,
            "doubted_s": self.doubted_s,
            "latencies_s": self._latencies_s.tolist(),
            "was": self._queue.column(0).to_dict(),
            "would": self._queue.column(1).to_dict(),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._items = [Latest.from_list(item) for item in values["items"]]
        self._visits_s, self._seen = list(values["visits_s"]), values["seen"]
        self.doubted_s = values["doubted_s"]
        self._latencies_s = np.array(values["latencies_s"])
        self._queue = Queue.side_by_side([Queue.from_dict(values[name]) for name in ("was", "would")])
        self._knee = Knee.from_dict(values["knee"]) if values["knee"] else None
        self.rest_s, self._fresh, self._left = values["rest_s"], values["fresh"], values["left"]


def _both(batches: Batches) -> Slowed:
    """As it was, and under the governor, side by side."""
    was = batches.as_it_was
    one, other = (np.hstack([part, np.ones_like(part)]) for part in was)
    return one, other
