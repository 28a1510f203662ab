"""One update: its phases and counts, and what makes its edges. No I/O; see :mod:`eerl_launch.update_tracker`."""

from __future__ import annotations

from dataclasses import dataclass, field

from eerl_launch.occurrences import Occurrence, top_level, union

#: Numbers of an update event that are sums over responses; of the others the largest, or the newest, counts.
_SUMMED = ("generated_tokens", "valid_tokens", "responses")
_LARGEST = ("longest_response_tokens", "longest_consumed_tokens", "policy_age")


@dataclass(slots=True)
class Update:
    """One update: its label (the trainer's number), its place in the run, its phases and counts.

    In the asynchronous modes responses are generated for one update and consumed in another: what was generated is
    what generation's ends brought in this update's time, whatever their labels, and the update events tell what
    training consumed. Several optimizer steps between two refits are one update: their counts add up.
    """

    index: int
    label: int | None
    begin_s: float
    end_s: float | None = None
    occurrences: list[Occurrence] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    counted: bool = False
    asynchronous: bool = False
    #: Asynchronous: whether the trainer sends update events, which alone tell what was consumed and how old it was.
    told_by_events: bool = False
    #: Asynchronous: whether ends of generation bring counts in this run, so that no end means nothing was finished.
    counted_by_ends: bool = False
    #: Asynchronous: the numbers of each label's own update event.
    events: dict[int | None, dict[str, float]] = field(default_factory=dict)

    def begun(self, phase: str) -> bool:
        """Whether ``phase`` has begun in this update."""
        return any(o.phase == phase and not o.carried for o in self.occurrences)

    @property
    def trained(self) -> bool:
        """Whether training has begun in this update, or ended in it."""
        return any(o.phase == "training" and (not o.carried or o.complete) for o in self.occurrences)

    @property
    def trainings(self) -> int:
        """How many times training has begun in this update."""
        return sum(o.phase == "training" and not o.carried for o in self.occurrences)

    def trained_before(self, t_s: float) -> bool:
        """Asynchronous: whether training ended in this update, or began in it before ``t_s``."""
        return any(
            o.phase == "training" and (o.complete or (not o.carried and o.begin_s < t_s))
            for o in self.occurrences
        )

    def labels(self) -> list[int]:
        """The labels of the training in this update; several when weights go out every few steps.

        Training that goes on in the next update is the next one's.
        """
        own = (o for o in self.occurrences if o.phase == "training" and not o.goes_on)
        return list(dict.fromkeys(o.label for o in own if o.label is not None))

    def is_named(self, label: int | None) -> bool:
        """Whether an update event with this label is about this update."""
        return self.label == label or (self.asynchronous and label in self.labels())

    def count(self, label: int | None, numbers: dict[str, float]) -> None:
        """Take in an update event: its own counts are totals, so a second one of the same label corrects them."""
        if not self.asynchronous:
            self.label = label
            for name, value in numbers.items():
                known = self.numbers.get(name, value)
                self.numbers[name] = max(value, known) if self.counted else value
            self.counted = True
            return
        own = self.events.setdefault(label, {})
        for name, value in numbers.items():
            own[name] = max(value, own.get(name, value))
        self.counted = True
        for name in {name for event in self.events.values() for name in event}:
            values = [event[name] for event in self.events.values() if name in event]
            if name in _SUMMED:
                self.numbers[name] = sum(values)
            else:
                self.numbers[name] = max(values) if name in _LARGEST else values[-1]

    @property
    def counts_known(self) -> bool:
        """Whether no count is waited for: the update event came, or the ends of its phases brought them all."""
        brought = (
            self.tokens("generated_tokens", "generation"),
            self.longest("longest_response_tokens", "generation"),
            self.tokens("valid_tokens", "training"),
        )
        if self.asynchronous and (self.counted or self.told_by_events):
            return self.counted and set(self.labels()) <= set(self.events)
        return self.counted or None not in brought

    def _counts(self, name: str, phase: str) -> list[float]:
        """The count of each of the phase's occurrences; empty when any of them did not bring it."""
        if self.asynchronous:  # whatever ended in this time
            own = [o for o in self.occurrences if o.phase == phase and o.complete]
        else:
            own = [
                o
                for o in self.occurrences
                if o.phase == phase and not o.carried and o.label in (None, self.label)
            ]
        counts = [o.counts[name] for o in own if name in o.counts]
        return counts if len(counts) == len(own) else []

    def _known(self, name: str, phase: str) -> tuple[float | None, list[float]]:
        """The update event's number, unless the phase's own counts say more; and those counts."""
        counts = self._counts(name, phase)
        by_ends = self.asynchronous and phase == "generation" and (bool(counts) or self.counted_by_ends)
        return (None if by_ends else self.numbers.get(name)), counts

    def tokens(self, name: str, phase: str) -> int | None:
        """A token count: from the update event, else summed over the phase's occurrences; None if unknown.

        Asynchronous, what was generated is summed over the ends of generation first.
        """
        told, counts = self._known(name, phase)
        if told is not None:
            return int(told)
        if not counts and self.counted_by_ends and phase == "generation":
            return None if any(o.phase == phase for o in self.occurrences) else 0
        return int(sum(counts)) if counts else None

    def longest(self, name: str, phase: str) -> int | None:
        """The longest response, in tokens; None if unknown."""
        told, counts = self._known(name, phase)
        if told is not None:
            return int(told)
        return int(max(counts)) if counts else None

    def longest_consumed(self) -> int | None:
        """The longest response that training consumed, in tokens; None if unknown."""
        told = self.longest("longest_consumed_tokens", "training")
        if told is not None:
            return told
        if not self.asynchronous:
            return self.longest("longest_response_tokens", "generation")
        longest = self.numbers.get("longest_response_tokens")
        return None if longest is None else int(longest)


@dataclass(frozen=True, slots=True)
class Edge:
    """A phase of the top level began or ended; ``closed`` is the update that this brought to an end.

    ``took_s``: how long a phase that ended had lasted. ``approaches``: the border of the update has begun (refit,
    pause), and the next one will begin when it ends.
    """

    begins: bool
    phase: str
    t_s: float
    closed: Update | None = None
    opened: Update | None = None
    took_s: float = 0.0
    approaches: bool = False


def overlap_s(update: Update, first: str, second: str) -> float:
    """Seconds in which two top-level phases ran at the same time: none in a colocated synchronous run.

    Only phases whose end was marked count: one that lost its end is no proof of anything.
    """
    spans = [
        union(
            (max(o.begin_s, update.begin_s), o.end_s)
            for o in update.occurrences
            if top_level(o.phase) == phase and o.complete and o.end_s is not None
        )
        for phase in (first, second)
    ]
    total = 0.0
    for begin_s, end_s in spans[0]:
        total += sum(max(0.0, min(end_s, e) - max(begin_s, b)) for b, e in spans[1])
    return total
