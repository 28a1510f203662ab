"""One run of a phase, and how the phases of a stretch of time divide it among themselves. No I/O."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eerl_launch.markers import Marker

Interval = tuple[float, float]


@dataclass(slots=True)
class Occurrence:
    """One run of a phase; ``end_s`` is None until a sender ended it. Times are run time in seconds."""

    phase: str
    label: int | None
    begin_s: float
    end_s: float | None = None
    complete: bool = False
    senders: set[str] = field(default_factory=set)
    open_senders: set[str] = field(default_factory=set)
    counts: dict[str, float] = field(default_factory=dict)
    strangers_end: bool = False  # ended by senders that did not begin it
    carried: int = 0  # borders of updates it ran across
    goes_on: bool = False  # cut by a border on purpose: the rest is the next update's

    def fits(self, marker: Marker) -> bool:
        """Whether a marker may mean this occurrence: same phase, and no other label."""
        if self.phase != marker.phase:
            return False
        return self.label is None or marker.update is None or self.label == marker.update

    def join(self, marker: Marker) -> None:
        """One more sender has begun it."""
        self.senders.add(marker.sender)
        self.open_senders.add(marker.sender)
        self.begin_s = min(self.begin_s, marker.t_s)
        self.label = marker.update if self.label is None else self.label

    def end(self, sender: str, t_s: float, numbers: dict[str, float]) -> None:
        """One sender has ended it, with its counts."""
        self.open_senders.discard(sender)
        for name, value in numbers.items():
            self.counts[name] = max(value, self.counts.get(name, value))
        self.end_s = max(t_s, self.begin_s if self.end_s is None else self.end_s)
        self.complete = not self.open_senders

    def across_border(self, *, with_counts: bool = False) -> Occurrence:
        """What of it goes on in the next update; ``with_counts``: what some senders have counted already, too."""
        return Occurrence(
            self.phase,
            self.label,
            self.begin_s,
            senders=set(self.senders),
            open_senders=set(self.open_senders),
            counts=dict(self.counts) if with_counts else {},
            carried=self.carried + 1,
        )


def top_level(phase: str) -> str:
    """The phase a subphase belongs to: ``a`` of ``a/b``."""
    return phase.partition("/")[0]


def partition(occurrences: Sequence[Occurrence], begin_s: float, end_s: float) -> dict[str, list[Interval]]:
    """Disjoint intervals per top-level phase inside [begin, end]: where phases overlap, the later begun has it.

    So a phase nested in another takes its time out of the outer one, and nothing is counted twice.
    """
    spans = [
        (max(o.begin_s, begin_s), min(end_s if o.end_s is None else o.end_s, end_s), -o.begin_s, -i)
        for i, o in enumerate(occurrences)
    ]
    spans = sorted(span for span in spans if span[1] > span[0])
    edges = sorted({edge for span in spans for edge in span[:2]})
    result: dict[str, list[Interval]] = {}
    active: list[tuple[float, int, float]] = []  # latest begun first: its begin and place (negative), its end
    upcoming = 0
    for left, right in itertools.pairwise(edges):
        while upcoming < len(spans) and spans[upcoming][0] <= left:
            _, ends_s, begun, place = spans[upcoming]
            heapq.heappush(active, (begun, place, ends_s))
            upcoming += 1
        while active and active[0][2] <= left:
            heapq.heappop(active)
        if not active:
            continue
        intervals = result.setdefault(top_level(occurrences[-active[0][1]].phase), [])
        if intervals and intervals[-1][1] == left:
            intervals[-1] = (intervals[-1][0], right)
        else:
            intervals.append((left, right))
    return result


def union(spans: Iterable[Interval]) -> list[Interval]:
    """The spans as disjoint intervals, ascending."""
    result: list[Interval] = []
    for begin_s, end_s in sorted(spans):
        if result and begin_s <= result[-1][1]:
            result[-1] = (result[-1][0], max(end_s, result[-1][1]))
        else:
            result.append((begin_s, end_s))
    return result
