"""Whether the first update under other clocks tells of them, or still of the clocks before (field case C06).

It is set beside the second one, which runs under the same clocks: where it leans to what was before, update after
update, it is no evidence any more. Where it is slow whatever the clocks, that is learnt as the cost of a change. What
the model believes of the clocks has no part in either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from eerl_controller.bayes.alarm import LARGEST_SURPRISE
from eerl_controller.bayes.sample import Three

#: So many standard deviations of a difference are allowed for: about a tenth of a change of 5 % beside noise of 1 %.
#: Beyond it sums reach the limit by chance in one run of dozens. Trust does not come back; without it a turn takes an
#: update longer, and no more.
ALLOWED, LIMIT = 0.3, 12.0
#: Log seconds of generation and training beside what is expected of their work under the clocks in force.
Residuals = Callable[[Three, Mapping[str, float]], Sequence[float]]


class Odd(Enum):
    """What first updates are beyond chance."""

    #: Still partly under the clocks before.
    LEANING = "leaning"
    #: Slower than the second ones, whatever the clocks.
    SLOW = "slow"


class Firsts:
    """Remembers the clocks before, and the first update under others until the second one has come."""

    def __init__(self) -> None:
        #: Whether first updates may be learnt from.
        self.trusted = True
        #: Sums of leanings, and of how much slower first updates are.
        self._leaning = self._slow = 0.0
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
    ) -> Odd | None:
        """An update that ran under clocks this deep; what first ones have turned out to be, once it is beyond chance.

        ``noise`` is of a phase's log seconds.
        """
        before, self._depths = self._depths, list(depths)
        if before is not None and before != self._depths:
            turned = [(new > old) - (new < old) for new, old in zip(depths, before, strict=True)]
            self._first = turned, seconds, dict(work)
            return None
        if self._first is None:
            return None
        (turned, first_s, first_work), self._first = self._first, None
        now, then = residuals(seconds, work), residuals(first_s, first_work)
        for axis, way in enumerate(turned):
            faster = (now[axis] - then[axis]) / (noise[axis] * math.sqrt(2.0))
            faster = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, faster))
            if way:
                self._leaning = max(self._leaning + way * faster - ALLOWED, 0.0)
            self._slow = max(self._slow - faster - ALLOWED, 0.0)
        if self.trusted and self._leaning >= LIMIT:
            self.trusted = False
            return Odd.LEANING
        if self._slow >= LIMIT:
            self._slow = 0.0
            return Odd.SLOW
        return None

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        first = [self._first[0], list(self._first[1]), self._first[2]] if self._first else None
        return [self.trusted, self._leaning, self._slow, self._depths, first]

    def load(self, values: Sequence[Any]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self.trusted, self._leaning, self._slow, self._depths, first = values
        if first is not None:
            (a, b, c) = first[1]
            self._first = list(first[0]), (a, b, c), dict(first[2])
