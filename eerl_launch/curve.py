"""Cumulative joules of one GPU over time, and what they were at the edge of a phase. Times are run time in seconds.

A reading of the counter is a publication of unknown age: the driver publishes about every 100 ms, so on average a
reading is half a period old and is dated so. An edge lies between two readings, and power often changes at it; a
straight line between them would give the quiet side some of the busy side's joules, always in that direction. So
the curve is continued to the edge from the side with less power, where the age of a reading weighs least. Where
readings are further apart than their age can explain, the two sides are continued until they meet instead.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

#: The energy counter is published about this often (nvmlDeviceGetTotalEnergyConsumption).
COUNTER_PERIOD_S = 0.1
#: Neighbouring readings further apart than this leave an instant between them uncertain: then it is unknown.
MAX_GAP_S = 3.0
#: Points kept per GPU before the older half is thinned: twenty minutes at five a second, 100 kB.
MAX_POINTS = 6000
#: Share of the older half that one thinning takes away.
_THINNED = 1 / 3
#: The power beside an edge is taken over at least this much, or publications would be counted one by one.
_SLOPE_S = 0.19
#: In a stretch this many reading ages long, the age of a reading matters less than where in it power changed.
_LONG = 8
#: An instant this many reading ages after the newest reading is still told by it.
_BEYOND = 3
#: How far an edge marker and the change of power it stands for lie apart, in reading ages (15 ms).
_MARKER_SLACK = 0.3


@dataclass(frozen=True, slots=True)
class Edge:
    """Joules at an instant, and how far they may be off (None: not known, such as of estimated energy)."""

    joules: float
    error_j: float | None


class Curve:
    """Cumulative joules at the instants of fresh readings. ``age_s``: how old a reading is on average."""

    def __init__(
        self, max_gap_s: float = MAX_GAP_S, max_points: int = MAX_POINTS, age_s: float = 0.0
    ) -> None:
        self._max_gap_s = max_gap_s
        self._max_points = max_points
        self._age_s = age_s
        self._times = array("d")
        self._joules = array("d")
        self._gaps: list[tuple[float, float]] = []
        #: Edges asked for, until they are forgotten: what ends here and what begins here must have one value,
        #: though more is known of the time after it when the latter is asked for.
        self._asked: dict[float, Edge] = {}
        self._asked_at: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    @property
    def last_t_s(self) -> float:
        """Run time of the newest point, or minus infinity."""
        return self._times[-1] if self._times else float("-inf")

    def add(self, t_s: float, joules: float) -> None:
        """Append a reading taken at ``t_s``, which must grow."""
        t_s -= self._age_s
        if self._times and t_s - self._times[-1] > self._max_gap_s:
            self._gaps.append((self._times[-1], t_s))
        self._times.append(t_s)
        self._joules.append(joules)
        if len(self._times) > self._max_points:
            self._thin()

    def at(self, t_s: float) -> float | None:
        """Joules at ``t_s``; None outside what was read and inside a gap too long to interpolate across."""
        edge = self.edge(t_s)
        return None if edge is None else edge.joules

    def edge(self, t_s: float) -> Edge | None:
        """Joules at ``t_s`` with their error; None outside what was read and inside a gap too long."""
        known = self._asked.get(t_s)
        if known is None:
            right = bisect_left(self._times, t_s)
            if right == len(self._times):
                return self._beyond(t_s)
            if (right == 0 and self._times[right] != t_s) or self._in_gap(t_s):
                return None
            known = self._remember(t_s, self._between(max(right - 1, 0), right, t_s))
        return known

    def _remember(self, t_s: float, edge: Edge) -> Edge:
        """Keep an edge, not below one that is kept before it nor above one after it: joules never flow back."""
        place = bisect_left(self._asked_at, t_s)
        lowest = self._asked[self._asked_at[place - 1]].joules if place > 0 else -math.inf
        highest = self._asked[self._asked_at[place]].joules if place < len(self._asked_at) else math.inf
        kept = Edge(max(lowest, min(edge.joules, highest)), edge.error_j)
        self._asked_at.insert(place, t_s)
        self._asked[t_s] = kept
        return kept

    def _beyond(self, t_s: float) -> Edge | None:
        """An instant that the newest reading may have seen, old as it may be: at the end of a run it is the last."""
        newest = len(self._times) - 1
        if newest < 0 or t_s - self.last_t_s > _BEYOND * self._age_s:
            return None
        power_w = self._power_before(newest)
        if power_w is None:
            return None
        joules = power_w * (t_s - self.last_t_s)
        return self._remember(t_s, Edge(self._joules[newest] + joules, self._age_s * power_w + joules))

    def _in_gap(self, t_s: float) -> bool:
        return any(begin_s < t_s < end_s for begin_s, end_s in self._gaps)

    def _between(self, left: int, right: int, t_s: float) -> Edge:
        """The edge between two neighbouring points, by the power on either side of them."""
        t0, t1 = self._times[left], self._times[right]
        e0, e1 = self._joules[left], self._joules[right]
        own_w = self._slope(left, right)
        before_w, after_w = self._power_before(left), self._power_after(right)
        # Where nothing was read on a side, the other side, or the stretch itself, has to do.
        before_w = next((w for w in (before_w, own_w, after_w) if w is not None), 0.0)
        after_w = next((w for w in (after_w, own_w, before_w) if w is not None), 0.0)
        from_left, from_right = e0 + before_w * (t_s - t0), e1 - after_w * (t1 - t_s)
        rises = before_w <= after_w
        if t1 - t0 <= _LONG * self._age_s:
            joules = from_left if rises else from_right
            error_j = self._age_s * (min(before_w, after_w) + _MARKER_SLACK * abs(after_w - before_w))
        else:
            own_w = own_w or 0.0
            joules = e0 + own_w * (t_s - t0)
            if min(before_w, after_w) <= own_w <= max(before_w, after_w):  # power changed once in it
                joules = max(from_left, from_right) if rises else min(from_left, from_right)
            error_j = self._age_s * max(before_w, own_w, after_w)
        return Edge(min(max(joules, e0), e1), error_j if self._age_s else None)

    def _power_before(self, left: int) -> float | None:
        """Mean power up to a point, over a slope's length; None where nothing was read or a gap is."""
        far = bisect_right(self._times, self._times[left] - _SLOPE_S) - 1
        return self._slope(max(far, 0), left)

    def _power_after(self, right: int) -> float | None:
        far = bisect_left(self._times, self._times[right] + _SLOPE_S)
        return self._slope(right, min(far, len(self._times) - 1))

    def _slope(self, first: int, last: int) -> float | None:
        begin_s, end_s = self._times[first], self._times[last]
        if end_s <= begin_s or any(gap[0] < end_s and begin_s < gap[1] for gap in self._gaps):
            return None
        return (self._joules[last] - self._joules[first]) / (end_s - begin_s)

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs: points further back than the slope at its left."""
        self._asked = {asked_s: edge for asked_s, edge in self._asked.items() if asked_s >= t_s}
        self._asked_at = sorted(self._asked)
        keep = bisect_right(self._times, t_s) - 1
        if keep > 0:
            keep = bisect_right(self._times, self._times[keep] - _SLOPE_S) - 1
        if keep > 0:
            del self._times[:keep], self._joules[:keep]
            self._gaps = [gap for gap in self._gaps if gap[1] > self._times[0]]

    def _thin(self) -> None:
        """Drop the points of the older half that lie nearest to the line between their neighbours.

        Where power changes (at the edges of phases) points lie off that line, so those stay and edges stay sharp.
        """
        times, joules = self._times, self._joules
        half = len(times) // 2
        off_line = []
        for i in range(1, half - 1, 2):  # never two neighbours at once
            share = (times[i] - times[i - 1]) / (times[i + 1] - times[i - 1])
            off_line.append((abs(joules[i] - joules[i - 1] - share * (joules[i + 1] - joules[i - 1])), i))
        off_line.sort()
        gone = {i for _, i in off_line[: max(1, int(half * _THINNED))]}
        self._times = array("d", [t for i, t in enumerate(times) if i not in gone])
        self._joules = array("d", [j for i, j in enumerate(joules) if i not in gone])
