"""What a coming update is expected to hold, as the governor would run it, and how many of them are left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.sample import Three

#: An update counts for the expectation of the next ones as long as a monitoring window (Table 3: 20).
MEMORY_UPDATES = 20.0


class Outlook:
    """Means over recent updates, governor seconds and joules by part (generation, training, rest)."""

    def __init__(self) -> None:
        self._weight_s = 0.0
        self._weight_j = 0.0
        self._seconds = [0.0, 0.0, 0.0]
        self._joules = [0.0, 0.0, 0.0]
        self._visits = [0.0, 0.0]
        self._weight_v = 0.0

    def forget(self) -> None:
        """Another governor: start anew, but for the visitors."""
        self._weight_s = self._weight_j = 0.0
        self._seconds, self._joules = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]

    @property
    def known(self) -> bool:
        """Whether both seconds and joules are known."""
        return self._weight_s > 0.0 and self._weight_j > 0.0

    @property
    def seconds(self) -> Three:
        """Governor seconds by part."""
        a, b, c = (value / self._weight_s for value in self._seconds)
        return a, b, c

    @property
    def joules(self) -> Three:
        """Governor joules by part."""
        a, b, c = (value / self._weight_j for value in self._joules)
        return a, b, c

    @property
    def visits_s(self) -> tuple[float, float]:
        """Seconds an update of validation (under generation's clock) and of checkpoints (under none)."""
        if self._weight_v <= 0.0:
            return 0.0, 0.0
        return self._visits[0] / self._weight_v, self._visits[1] / self._weight_v

    @property
    def total_s(self) -> float:
        """Governor seconds of an update with all that visits it."""
        return sum(self.seconds) + sum(self.visits_s)

    def add_seconds(self, seconds: Three) -> None:
        """An update's governor seconds."""
        keep = 1.0 - 1.0 / MEMORY_UPDATES
        self._weight_s = keep * self._weight_s + 1.0
        self._seconds = [keep * old + new for old, new in zip(self._seconds, seconds, strict=True)]

    def add_joules(self, joules: Three) -> None:
        """An update's governor joules."""
        keep = 1.0 - 1.0 / MEMORY_UPDATES
        self._weight_j = keep * self._weight_j + 1.0
        self._joules = [keep * old + new for old, new in zip(self._joules, joules, strict=True)]

    def add_visits(self, validation_s: float, checkpoint_s: float) -> None:
        """An update's visitors; they come seldom, so their mean is taken over all updates."""
        self._weight_v += 1.0
        self._visits[0] += validation_s
        self._visits[1] += checkpoint_s

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "weight_s": self._weight_s,
            "weight_j": self._weight_j,
            "weight_v": self._weight_v,
            "seconds": self._seconds,
            "joules": self._joules,
            "visits": self._visits,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._weight_s, self._weight_j = values["weight_s"], values["weight_j"]
        self._weight_v = values["weight_v"]
        self._seconds, self._joules = list(values["seconds"]), list(values["joules"])
        self._visits = list(values["visits"])


def governor_parts(values: Three, changes: Three) -> Three:
    """Seconds or joules without the log changes that the clocks brought."""
    a, b, c = (value * math.exp(-change) for value, change in zip(values, changes, strict=True))
    return a, b, c
