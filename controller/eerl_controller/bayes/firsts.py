"""Whether the first update under other clocks tells of them, or still of the clocks before (field case C06).

It is set beside the second one, which runs under the same clocks: where it leans to what was before, update after
update, it is no evidence any more. What the model believes of the clocks has no part in that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eerl_controller.bayes.alarm import LARGEST_SURPRISE
from eerl_controller.bayes.sample import Three

#: A leaning of so many standard deviations of a difference is allowed for: about a tenth of a change of 5 % beside
#: noise of 1 %. Beyond it sums reach the limit by chance in one run of hundreds. Trust does not come back; without
#: it a turn takes an update longer, and no more.
LEANING_DRIFT, LEANING_LIMIT = 0.4, 15.0
#: Log seconds of generation and training beside what is expected of their work under the clocks in force.
Residuals = Callable[[Three, Mapping[str, float]], Sequence[float]]


class Firsts:
    """Remembers the clocks before, and the first update under others until the second one has come."""

    def __init__(self) -> None:
        #: Whether first updates may be learnt from.
        self.trusted = True
        self._sum = 0.0
        self._depths: list[float] | None = None
        #: Which way either clock went (1 down, -1 up), seconds by part, and work.
        self._first: tuple[list[int], Three, dict[str, float]] | None = None

    def add(
        self,
        depths: Sequence[float],
        seconds: Three,
        work: Mapping[str, float],
        residuals: Residuals,
        noise: Sequence[float],
    ) -> None:
        """An update that ran wholly under clocks this deep; ``noise`` is of a phase's log seconds."""
        before, self._depths = self._depths, list(depths)
        if before is not None and before != self._depths:
            turned = [(new > old) - (new < old) for new, old in zip(depths, before, strict=True)]
            self._first = turned, seconds, dict(work)
            return
        if self._first is None:
            return
        (turned, first_s, first_work), self._first = self._first, None
        now, then = residuals(seconds, work), residuals(first_s, first_work)
        for axis, way in enumerate(turned):
            if way:
                lean = way * (now[axis] - then[axis]) / (noise[axis] * math.sqrt(2.0))
                lean = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, lean))
                self._sum = max(self._sum + lean - LEANING_DRIFT, 0.0)
        self.trusted = self.trusted and self._sum < LEANING_LIMIT

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        first = [self._first[0], list(self._first[1]), self._first[2]] if self._first else None
        return [self.trusted, self._sum, self._depths, first]

    def load(self, values: Sequence[Any]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self.trusted, self._sum, self._depths, first = values
        if first is not None:
            (a, b, c) = first[1]
            self._first = list(first[0]), (a, b, c), dict(first[2])
