"""Values that hold from an instant on, such as the plan in force. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from eerl_launch.occurrences import Interval


@dataclass(slots=True)
class History:
    """Values that hold from an instant on: the plan in force, the clock asked for."""

    times: list[float] = field(default_factory=list)
    values: list[int | None] = field(default_factory=list)

    def put(self, t_s: float, value: int | None) -> None:
        """From ``t_s`` on, ``value``, up to what is known to hold later already."""
        place = bisect_right(self.times, t_s)
        self.times.insert(place, t_s)
        self.values.insert(place, value)

    def at(self, t_s: float) -> int | None:
        """The value in force at ``t_s``; None before the first."""
        i = bisect_right(self.times, t_s) - 1
        return self.values[i] if i >= 0 else None

    def only(self, begin_s: float, end_s: float) -> tuple[int | None, bool]:
        """The value in force over (begin, end) and whether it was the only one."""
        first = self.at(begin_s)
        inside = [v for t, v in zip(self.times, self.values, strict=True) if begin_s < t < end_s]
        return first, all(value == first for value in inside)

    def mostly(self, intervals: Sequence[Interval]) -> int | None:
        """The value in force at the middle of the longest interval."""
        if not intervals:
            return None
        begin_s, end_s = max(intervals, key=lambda interval: interval[1] - interval[0])
        return self.at((begin_s + end_s) / 2)

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        keep = max(0, bisect_right(self.times, t_s) - 1)
        del self.times[:keep], self.values[:keep]
