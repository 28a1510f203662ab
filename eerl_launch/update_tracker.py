"""Markers → updates: which phases ran when, and where one update ends and the next begins. No I/O.

An update of the synchronous modes runs from its first generation begin to the next update's, one of the
asynchronous modes from the end of a refit or pause to the next one after training (contract 3.7). So every second
of the job belongs to exactly one update, or to before the first or after the last. Markers may nest, overlap,
repeat, miss their ends, come from several senders or come late: all of it is accounted for.

Several senders that mark the same phase of the same update mean one phase, from the first begin to the last end:
a sender's k-th begin of a phase belongs to the phase's k-th occurrence. Counts are totals, so of several senders'
counts for one occurrence the largest is taken; over occurrences tokens add up and the longest is the longest. A
sender that never began anything (``eerl-mark`` connects anew for every marker) may end what another began.

A phase that runs across the border of two updates (a checkpoint written by a thread, generation when it is
asynchronous) counts in both. A phase whose end got lost is cut where the next update, or the same phase, begins.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from eerl_launch.markers import Marker
from eerl_launch.modes import PAUSE, REFIT, Border
from eerl_launch.occurrences import Occurrence, top_level
from eerl_launch.updates import Edge, Update

#: Labels of this many past updates are remembered, so that a late rank does not seem to begin a new update.
_REMEMBERED_LABELS = 8
#: Senders whose newest label is remembered; far more than ranks on a job, so only one-marker senders fall out.
_REMEMBERED_SENDERS = 16_384
#: Phases kept per update; a sender gone wild must not fill the memory. More are counted and passed over.
_MAX_OCCURRENCES = 4096
#: Borders a phase may run across; one that does not end after so many has lost its end.
_MAX_CARRIED = 3


class UpdateTracker:
    """Feeds on markers in order of arrival and keeps the update that is running."""

    def __init__(self, border: Border = Border.GENERATION) -> None:
        self._border = border
        self._asynchronous = border is not Border.GENERATION
        #: In-flight: the trainer tells of pauses, so a refit's end inside one is no border.
        self._tells_pauses = False
        self._events_seen = False
        self._ends_count = False
        self.current: Update | None = None
        self.updates_seen = 0
        self.odd: Counter[str] = Counter()
        self._closed: deque[Update] = deque(maxlen=_REMEMBERED_LABELS)
        self._before: list[Occurrence] = []  # phases that ran before the first update
        self._counts_from = 0  # index of the first update since labels last started again
        self._labels: dict[str, int | None] = {}  # newest label by sender that has begun a phase

    def feed(self, marker: Marker) -> Edge | None:
        """Take in one begin, end, update, pause or resume marker; the edge it made at the top level, if any."""
        if marker.event in ("pause", "resume"):
            self._tells_pauses = True
            event = "begin" if marker.event == "pause" else "end"
            marker = replace(marker, event=event, phase=PAUSE)
        if marker.event == "begin":
            edge = self._begin(marker)
            self._remember(marker)
            return edge
        if marker.event == "end":
            return self._end(marker)
        if marker.event == "update":
            self._count(marker)
        return None

    def finish(self, t_s: float) -> Update | None:
        """Cut what is open at the end of the job; the update that was running, if any.

        What ran after the last border of an asynchronous run, and trained nothing, is no update.
        """
        update, _ = self._close(t_s)
        if update is not None and self._asynchronous and not update.trained:
            self.updates_seen -= 1
            # What ran across the last border was the last update's until then.
            for occurrence in update.occurrences:
                occurrence.begin_s = max(occurrence.begin_s, update.begin_s)
            self._before += update.occurrences
            return None
        return update

    def take_before(self) -> list[Occurrence]:
        """Phases that ran before the first update, or after the last, once."""
        taken, self._before = self._before, []
        return taken

    def _running(self) -> list[Occurrence]:
        return self._before if self.current is None else self.current.occurrences

    def _remember(self, marker: Marker) -> None:
        newest = self._labels.pop(marker.sender, None)
        self._labels[marker.sender] = newest if marker.update is None else marker.update
        if len(self._labels) > _REMEMBERED_SENDERS:
            del self._labels[next(iter(self._labels))]

    # -- begins ---------------------------------------------------------------------------------------------

    def _starts_update(self, marker: Marker) -> bool:
        if self._asynchronous:
            return self.current is None and marker.phase in ("generation", "training")
        if marker.phase != "generation":
            return False
        if self.current is None:
            return True
        if marker.update is None or self.current.label is None:
            return self.current.begun("training") and not self._is_behind(marker)
        if marker.update == self.current.label:
            return False
        return self._past(marker.update) is None or self._starts_again(marker)

    def _is_border(self, phase: str, begin_s: float) -> bool:
        """Whether an asynchronous update ends with this phase, which began then."""
        if not self._asynchronous or (self.current is not None and not self.current.trained_before(begin_s)):
            return False
        if self._border is Border.PAUSE and self._tells_pauses:
            return phase == PAUSE
        return phase == REFIT

    def _past(self, label: int | None) -> Update | None:
        """The update of the near past with this label."""
        if label is None:
            return None
        return next(
            (u for u in reversed(self._closed) if u.label == label and u.index >= self._counts_from), None
        )

    def _starts_again(self, marker: Marker) -> bool:
        """Whether an old label means a trainer that was started again rather than a rank that is late.

        A rank's labels never fall; of a sender not heard before, only the update just over can be meant.
        """
        newest = self._labels.get(marker.sender)
        if newest is not None and marker.update is not None:
            return marker.update < newest
        return marker.update != self._closed[-1].label

    def _is_behind(self, marker: Marker) -> bool:
        """Whether the sender took part in the update just over and has begun nothing in this one yet."""
        if self.current is None or not self._closed:
            return False
        here = any(marker.sender in o.senders for o in self.current.occurrences if not o.carried)
        return not here and any(marker.sender in o.senders for o in self._closed[-1].occurrences)

    def _begin(self, marker: Marker) -> Edge | None:
        closed = opened = None
        t_s = marker.t_s
        if self._starts_update(marker):
            if self._past(marker.update) is not None:
                self._counts_from = self.updates_seen  # labels start again: older ones mean nothing now
            if self.current is not None:
                t_s = max(t_s, self.current.begin_s)
            closed, opened = self._open(t_s, None if self._asynchronous else marker.update)
        if self._names_update(marker):
            assert self.current is not None
            self.current.label = marker.update
        if self._known_already(marker):
            return None
        running = self._running()
        approaches = self.current is not None and self._is_border(marker.phase or "", t_s)
        if len(running) >= _MAX_OCCURRENCES:
            self.odd["too_many_phases"] += 1
        else:
            occurrence = Occurrence(marker.phase or "", marker.update, t_s)
            occurrence.join(marker)
            occurrence.begin_s = t_s
            running.append(occurrence)
            if "/" not in occurrence.phase:
                return Edge(True, occurrence.phase, t_s, closed, opened, approaches=approaches)
        # An update that has opened is told in any case.
        return Edge(True, marker.phase or "", t_s, closed, opened) if opened is not None else None

    def _open(self, t_s: float, label: int | None) -> tuple[Update | None, Update]:
        """Close the update that runs, if any, and open the next; both."""
        closed, going_on = self._close(t_s)
        opened = Update(self.updates_seen, label, t_s, occurrences=going_on, asynchronous=self._asynchronous)
        if self._asynchronous:
            if closed is not None:
                # Of the first update nobody knows yet; waiting for an event in vain costs one border, once.
                closed.told_by_events = self._events_seen or closed.index == 0
                told = closed.label if closed.label in closed.events else None
                closed.label = next(iter(closed.labels()), told)
            opened.counted_by_ends = self._ends_count
            opened.label = next(
                (o.label for o in going_on if o.phase == "training" and o.label is not None), None
            )
        self.current = opened
        self.updates_seen += 1
        return closed, opened

    def _names_update(self, marker: Marker) -> bool:
        """Whether the update that runs gets its label from this begin: asynchronous, from its training."""
        if self.current is None or self.current.label is not None or self._past(marker.update) is not None:
            return False
        return not self._asynchronous or marker.phase == "training"

    def _known_already(self, marker: Marker) -> bool:
        """Whether a begin belongs to an occurrence that is there already; heals lost ends on the way."""
        running = self._running()
        same = [o for o in running if o.phase == marker.phase and o.open_senders]
        for occurrence in same:
            own = marker.sender in occurrence.open_senders
            if self._asynchronous and occurrence.phase == "generation":
                # Batches of several updates may be generated at once, beside other phases: no end was lost.
                if own and occurrence.fits(marker):
                    self.odd["repeated_begin"] += 1
                    return True
            elif occurrence.carried:
                # Nobody begins a phase while the one before still runs, be it under another name.
                if own or not occurrence.fits(marker) or marker.sender not in self._labels:
                    self.odd["missing_end"] += 1
                    running.remove(occurrence)
            elif not own:
                continue
            elif self._end_was_lost(occurrence, marker.sender):
                self.odd["missing_end"] += 1
            elif occurrence.fits(marker):
                self.odd["repeated_begin"] += 1
                return True
        past = self._past(marker.update)
        if marker.update is None and marker.phase != "generation" and self._is_behind(marker):
            past = self._closed[-1]
        for occurrence in past.occurrences if past is not None else ():
            if occurrence.fits(marker) and marker.sender not in occurrence.senders:
                self.odd["late_begin"] += 1
                occurrence.join(marker)
                return True
        for occurrence in running:
            joinable = (self._asynchronous or not occurrence.carried) and not occurrence.strangers_end
            if joinable and occurrence.fits(marker) and marker.sender not in occurrence.senders:
                occurrence.join(marker)
                return True
        return False

    def _end_was_lost(self, occurrence: Occurrence, sender: str) -> bool:
        """Whether the sender has begun another phase since, so that a second begin is no nesting; then cut."""
        later = [
            o.begin_s
            for o in self._running()
            if sender in o.senders
            and o.begin_s > occurrence.begin_s
            and top_level(o.phase) != top_level(occurrence.phase)
        ]
        if not later:
            return False
        occurrence.end(sender, min(later), {})
        occurrence.complete = False
        return True

    # -- ends and counts ------------------------------------------------------------------------------------

    def _end(self, marker: Marker) -> Edge | None:
        occurrence = self._ended_by(marker)
        if occurrence is None:
            self._late_end(marker)
            return None
        sender = marker.sender
        if sender not in occurrence.open_senders:
            sender = next(iter(occurrence.open_senders))
            occurrence.strangers_end = True
        occurrence.end(sender, marker.t_s, marker.numbers)
        if occurrence.phase == "generation" and "generated_tokens" in marker.numbers:
            self._ends_count = True
        if not occurrence.complete or "/" in occurrence.phase or occurrence.end_s is None:
            return None
        closed = opened = None
        end_s, took_s = occurrence.end_s, occurrence.end_s - occurrence.begin_s
        if self._is_border(occurrence.phase, occurrence.begin_s):
            if self.current is not None:
                end_s = max(end_s, self.current.begin_s)
            closed, opened = self._open(end_s, None)
        return Edge(False, occurrence.phase, end_s, closed, opened, took_s)

    def _ended_by(self, marker: Marker) -> Occurrence | None:
        """The newest open occurrence that an end means."""
        fitting = [o for o in reversed(self._running()) if o.open_senders and o.fits(marker)]
        own = next((o for o in fitting if marker.sender in o.open_senders), None)
        if own is not None:
            return own
        stranger = marker.sender not in self._labels
        return next(
            (o for o in fitting if stranger or (o.strangers_end and marker.sender in o.senders)), None
        )

    def _late_end(self, marker: Marker) -> None:
        """An end whose update was closed already still brings its counts."""
        for update in reversed(self._closed):
            for occurrence in update.occurrences:
                if occurrence.fits(marker) and marker.sender in occurrence.open_senders:
                    t_s = marker.t_s if update.end_s is None else min(marker.t_s, update.end_s)
                    occurrence.end(marker.sender, t_s, marker.numbers)
                    self.odd["late_end"] += 1
                    return
        self.odd["end_without_begin"] += 1

    def _count(self, marker: Marker) -> None:
        self._events_seen = True
        candidates = ([self.current] if self.current else []) + list(reversed(self._closed))
        update = next((u for u in candidates if u.is_named(marker.update)), None)
        if update is None:
            # Phases without labels: counts are of the newest update that has trained, the next may have begun.
            unnamed = [u for u in candidates if u.label is None and not u.counted]
            update = next((u for u in unnamed if u.trained), None)
            if update is None and unnamed and not self._asynchronous:
                update = unnamed[0]
        if update is None:
            self.odd["update_unknown"] += 1
            return
        update.label = marker.update if update.label is None else update.label
        update.count(marker.update, marker.numbers)

    def _close(self, t_s: float) -> tuple[Update | None, list[Occurrence]]:
        """The update that ends at ``t_s``, and what of it goes on in the next one."""
        running = self._running()
        going_on = [o for o in running if o.begin_s >= t_s] if self._asynchronous else []
        for occurrence in going_on:
            running.remove(occurrence)  # its marker came before the border's did
        for occurrence in running:
            if not occurrence.open_senders:
                continue
            occurrence.complete = False
            generates = self._asynchronous and occurrence.phase == "generation"
            if occurrence.end_s is not None and not generates:
                continue  # some ranks have ended it: the others' ends are late or lost
            occurrence.end_s = max(occurrence.begin_s, t_s)
            if "/" in occurrence.phase or (occurrence.phase == "generation" and not generates):
                continue
            if occurrence.carried < _MAX_CARRIED or generates:
                occurrence.goes_on = self._asynchronous
                going_on.append(occurrence.across_border(with_counts=generates))
            else:
                self.odd["missing_end"] += 1
        update, self.current = self.current, None
        if update is not None:
            update.end_s = max(t_s, update.begin_s)
            self._closed.append(update)
        return update, going_on
