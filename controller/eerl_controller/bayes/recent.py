"""The latest updates of two overlapping pools, and what the coming ones are expected to be under the governor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from eerl_controller.bayes.backlog import batches_of, believe
from eerl_controller.bayes.knee import Knee, meeting
from eerl_controller.bayes.sides import REST, Lowered, Sides, Three
from eerl_controller.records import ExecutionMode

#: Updates that the coming ones are expected to be like: a monitoring window (Table 3: 20); twice as many where
#: neighbouring updates share their work.
MEMORY_UPDATES = {ExecutionMode.ASYNC_DRAINED: 20, ExecutionMode.ASYNC_INFLIGHT: 40}

Slow = Callable[[Lowered], Three]


@dataclass(slots=True)
class Latest:
    """One update: its sides, what it ran under, the tokens it consumed, the longest of them, and the oldest's age.

    ``accounted``: the log slowdowns that were believed of it when its loss was accounted for, and the seconds that
    were taken for lost while both pools went on.
    """

    sides: Sides
    setting: Lowered
    consumed: float
    longest: float
    age: float
    accounted: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        setting = [list(self.setting.depths), list(self.setting.locked), self.setting.idles]
        return [self.sides.to_list(), setting, self.consumed, self.longest, self.age, list(self.accounted)]

    @classmethod
    def from_list(cls, values: list[Any]) -> Latest:
        """What :meth:`to_list` wrote."""
        sides, (depths, locked, idles), consumed, longest, age, (slow_g, slow_t, lost_s) = values
        setting = Lowered((depths[0], depths[1]), (locked[0], locked[1]), idles)
        return cls(Sides.from_list(sides), setting, consumed, longest, age, (slow_g, slow_t, lost_s))


class Recent:
    """A window of updates under any clocks, made comparable by what is believed of the clocks."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._mode = mode
        self._items: list[Latest] = []
        self._visits_s = [0.0, 0.0]
        self._seen = 0
        self.rest_s = 0.0
        self._knee: Knee | None = None
        self._fresh = False
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
        return float(self.knee.running_s(0.0, 0.0)) + self.rest_s

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
        self._items, self._knee, self._fresh = [], None, False

    def add(self, item: Latest) -> None:
        """One more update."""
        self._fresh = False
        self._items = [*self._items, item][-MEMORY_UPDATES[self._mode] :]

    def refresh(self, slow: Slow) -> None:
        """Work out what is expected, by what is believed now of the clocks."""
        if self._fresh:
            return
        self._fresh = True
        known: dict[Lowered, Three] = {}
        sides_s: list[tuple[float, float]] = []
        rest_s: list[float] = []
        for item in self._items:
            if item.setting not in known:
                known[item.setting] = slow(item.setting)
            g, t, r = known[item.setting]
            seconds = item.sides.seconds
            sides_s.append((seconds[0] * math.exp(-g), seconds[1] * math.exp(-t)))
            rest_s.append(seconds[REST] * math.exp(-r))
        self.rest_s = fmean(rest_s)
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            self._knee = meeting(sides_s)
            return
        items = self._items
        self._knee = believe(
            batches_of(
                sides_s,
                [item.consumed for item in items],
                [item.longest for item in items],
                [item.sides.running_s for item in items],
                [known[item.setting][:2] for item in items],
                max(math.ceil(max(item.age for item in items)), 1),
            )
        )

    def corrected_s(self) -> float:
        """Seconds by which what was taken for lost in the window must be raised, by what is believed now of how
        pools go together; the paces that were believed then are the model of time's to correct.
        """
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            return 0.0
        knee, more_s, self.doubted_s = self.knee, 0.0, 0.0
        governor_s = float(knee.running_s(0.0, 0.0))
        for item in self._items:
            slow_g, slow_t, lost_s = item.accounted
            if slow_g or slow_t:
                now_s = float(knee.running_s(slow_g, slow_t))
                lost_now_s = item.sides.running_s * (1.0 - governor_s / now_s)
                more_s += lost_now_s - lost_s
                item.accounted = (slow_g, slow_t, lost_now_s)
                self.doubted_s += math.sqrt(float(knee.variance_s2(np.array(slow_g), np.array(slow_t))))
        return more_s

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "items": [item.to_list() for item in self._items],
            "visits_s": self._visits_s,
            "seen": self._seen,
            "known": self.known,
            "doubted_s": self.doubted_s,
        }

    def load(self, values: dict[str, Any], slow: Slow) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._items = [Latest.from_list(item) for item in values["items"]]
        self._visits_s, self._seen = list(values["visits_s"]), values["seen"]
        self.doubted_s = values["doubted_s"]
        if values["known"]:
            self.refresh(slow)
