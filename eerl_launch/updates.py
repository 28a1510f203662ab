"""Markers → updates: which phases ran when, and where one update ends and the next begins. No I/O.

An update of the synchronous modes runs from its first generation begin to the next update's (contract 3.7), so
every second of the job belongs to exactly one update, or to before the first or after the last. Markers may nest,
overlap, repeat, miss their ends, come from several senders or come late: all of it is accounted for.

Several senders that mark the same phase of the same update mean one phase, from the first begin to the last end:
a sender's k-th begin of a phase belongs to the phase's k-th occurrence. Counts are totals, so of several senders'
counts for one occurrence the largest is taken; over occurrences tokens add up and the longest is the longest.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from eerl_launch.markers import Marker

#: Labels of this many past updates are remembered, so that a late rank does not seem to begin a new update.
_REMEMBERED_LABELS = 8
#: Phases kept per update; a sender gone wild must not fill the memory. More are counted and passed over.
_MAX_OCCURRENCES = 10_000


@dataclass(slots=True)
class Occurrence:
    """One run of a phase; ``end_s`` is None while it is open."""

    phase: str
    label: int | None
    begin_s: float
    end_s: float | None = None
    complete: bool = False
    senders: set[str] = field(default_factory=set)
    open_senders: set[str] = field(default_factory=set)
    counts: dict[str, float] = field(default_factory=dict)

    def count(self, numbers: dict[str, float]) -> None:
        """Take in the counts of one sender's end."""
        for name, value in numbers.items():
            self.counts[name] = max(value, self.counts.get(name, value))


@dataclass(slots=True)
class Update:
    """One update: its label (the trainer's number), its place in the run, its phases and counts."""

    index: int
    label: int | None
    begin_s: float
    end_s: float | None = None
    occurrences: list[Occurrence] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    counted: bool = False

    def begun(self, phase: str) -> bool:
        """Whether ``phase`` has begun in this update."""
        return any(occurrence.phase == phase for occurrence in self.occurrences)

    def tokens(self, name: str, phase: str) -> int | None:
        """A token count: from the update event, else summed over the phase's occurrences; None if unknown."""
        if name in self.numbers:
            return int(self.numbers[name])
        counts = [o.counts[name] for o in self.occurrences if o.phase == phase and name in o.counts]
        return int(sum(counts)) if counts else None

    def longest(self, name: str, phase: str) -> int | None:
        """The longest response, in tokens; None if unknown."""
        if name in self.numbers:
            return int(self.numbers[name])
        counts = [o.counts[name] for o in self.occurrences if o.phase == phase and name in o.counts]
        return int(max(counts)) if counts else None


@dataclass(frozen=True, slots=True)
class Edge:
    """A phase of the top level began or ended; ``closed`` is the update that this begin brought to an end."""

    begins: bool
    phase: str
    t_s: float
    closed: Update | None = None
    opened: Update | None = None


class UpdateTracker:
    """Feeds on markers in order of arrival and keeps the update that is running."""

    def __init__(self) -> None:
        self.current: Update | None = None
        self.updates_seen = 0
        self.odd: Counter[str] = Counter()
        self._closed: deque[Update] = deque(maxlen=_REMEMBERED_LABELS)
        self._before: list[Occurrence] = []  # phases that ran before the first update

    def feed(self, marker: Marker) -> Edge | None:
        """Take in one begin, end or update marker; the edge it made at the top level, if any."""
        if marker.event == "begin":
            return self._begin(marker)
        if marker.event == "end":
            return self._end(marker)
        if marker.event == "update":
            self._count(marker)
        return None

    def finish(self, t_s: float) -> Update | None:
        """Cut what is open at the end of the job; the update that was running, if any."""
        return self._close(t_s)

    def take_before(self) -> list[Occurrence]:
        """Phases that ran before the first update, once."""
        taken, self._before = self._before, []
        return taken

    def _running(self) -> list[Occurrence]:
        return self._before if self.current is None else self.current.occurrences

    def _starts_update(self, marker: Marker) -> bool:
        if marker.phase != "generation":
            return False
        if self.current is None:
            return True
        if marker.update is None or self.current.label is None:
            return self.current.begun("training")
        known = {update.label for update in self._closed} | {self.current.label}
        return marker.update not in known

    def _begin(self, marker: Marker) -> Edge | None:
        closed = opened = None
        if self._starts_update(marker):
            closed = self._close(marker.t_s)
            opened = self.current = Update(self.updates_seen, marker.update, marker.t_s)
            self.updates_seen += 1
        phase = marker.phase or ""
        running = self._running()
        same = [o for o in running if o.phase == phase and o.label == marker.update]
        if any(marker.sender in o.open_senders for o in same):
            self.odd["repeated_begin"] += 1
            return None
        joined = next((o for o in same if marker.sender not in o.senders), None)
        if joined is not None:
            joined.senders.add(marker.sender)
            joined.open_senders.add(marker.sender)
            joined.begin_s = min(joined.begin_s, marker.t_s)
            return None
        if marker.update is not None and any(u.label == marker.update for u in self._closed):
            self.odd["late_begin"] += 1
            return None
        if len(running) >= _MAX_OCCURRENCES:
            self.odd["too_many_phases"] += 1
            return None
        occurrence = Occurrence(phase, marker.update, marker.t_s)
        occurrence.senders.add(marker.sender)
        occurrence.open_senders.add(marker.sender)
        running.append(occurrence)
        if "/" in phase:
            return None
        return Edge(True, phase, marker.t_s, closed, opened)

    def _end(self, marker: Marker) -> Edge | None:
        for occurrence in reversed(self._running()):
            matches = occurrence.phase == marker.phase and marker.sender in occurrence.open_senders
            if matches and marker.update in (None, occurrence.label):
                break
        else:
            self._late_end(marker)
            return None
        occurrence.open_senders.discard(marker.sender)
        occurrence.count(marker.numbers)
        occurrence.end_s = max(marker.t_s, occurrence.end_s or occurrence.begin_s)
        occurrence.complete = not occurrence.open_senders
        if not occurrence.complete or "/" in occurrence.phase:
            return None
        return Edge(False, occurrence.phase, occurrence.end_s)

    def _late_end(self, marker: Marker) -> None:
        """An end whose update was closed already still brings its counts."""
        for update in self._closed:
            for occurrence in update.occurrences:
                if occurrence.phase == marker.phase and marker.sender in occurrence.open_senders:
                    occurrence.open_senders.discard(marker.sender)
                    occurrence.count(marker.numbers)
                    self.odd["late_end"] += 1
                    return
        self.odd["end_without_begin"] += 1

    def _count(self, marker: Marker) -> None:
        candidates = ([self.current] if self.current else []) + list(reversed(self._closed))
        update = next((u for u in candidates if u.label == marker.update), None)
        if update is None:
            update = next((u for u in candidates if u.label is None and not u.counted), None)
        if update is None:
            self.odd["update_unknown"] += 1
            return
        for name, value in marker.numbers.items():
            known = update.numbers.get(name, value)
            update.numbers[name] = max(value, known) if update.counted else value
        update.counted = True

    def _close(self, t_s: float) -> Update | None:
        for occurrence in self._running():
            if occurrence.end_s is None or occurrence.open_senders:
                occurrence.end_s = max(occurrence.begin_s, t_s)
                occurrence.complete = False
        update, self.current = self.current, None
        if update is not None:
            update.end_s = t_s
            self._closed.append(update)
        return update


Interval = tuple[float, float]


def top_level(phase: str) -> str:
    """The phase a subphase belongs to: ``a`` of ``a/b``."""
    return phase.partition("/")[0]


def partition(occurrences: Sequence[Occurrence], begin_s: float, end_s: float) -> dict[str, list[Interval]]:
    """Disjoint intervals per top-level phase inside [begin, end]: where phases overlap, the later begun has it.

    So a phase nested in another takes its time out of the outer one, and nothing is counted twice.
    """
    spans = [
        (max(o.begin_s, begin_s), min(end_s if o.end_s is None else o.end_s, end_s), top_level(o.phase))
        for o in occurrences
    ]
    spans = sorted(span for span in spans if span[1] > span[0])
    edges = sorted({edge for span in spans for edge in span[:2]})
    result: dict[str, list[Interval]] = {}
    active: list[tuple[float, float, str]] = []
    upcoming = 0
    for left, right in itertools.pairwise(edges):
        while upcoming < len(spans) and spans[upcoming][0] <= left:
            active.append(spans[upcoming])
            upcoming += 1
        active = [span for span in active if span[1] > left]
        if not active:
            continue
        phase = max(active, key=lambda span: span[0])[2]
        intervals = result.setdefault(phase, [])
        if intervals and intervals[-1][1] == left:
            intervals[-1] = (intervals[-1][0], right)
        else:
            intervals.append((left, right))
    return result


def overlap_s(update: Update, first: str, second: str) -> float:
    """Seconds in which two top-level phases ran at the same time: none in a colocated synchronous run."""
    total = 0.0
    for a in update.occurrences:
        for b in update.occurrences:
            if top_level(a.phase) == first and top_level(b.phase) == second:
                end = min(x.end_s if x.end_s is not None else float("inf") for x in (a, b))
                total += max(0.0, end - max(a.begin_s, b.begin_s))
    return total
