"""One update: its phases and counts, and what makes its edges. No I/O; see :mod:`eerl_launch.update_tracker`."""

from __future__ import annotations

from dataclasses import dataclass, field

from eerl_launch.occurrences import Occurrence, top_level, union


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
        return any(o.phase == phase and not o.carried for o in self.occurrences)

    @property
    def counts_known(self) -> bool:
        """Whether no count is waited for: the update event came, or the ends of its phases brought them all."""
        brought = (
            self.tokens("generated_tokens", "generation"),
            self.longest("longest_response_tokens", "generation"),
            self.tokens("valid_tokens", "training"),
        )
        return self.counted or None not in brought

    def _counts(self, name: str, phase: str) -> list[float]:
        """The count of each of the phase's occurrences; empty when any of them did not bring it."""
        own = [
            o
            for o in self.occurrences
            if o.phase == phase and not o.carried and o.label in (None, self.label)
        ]
        counts = [o.counts[name] for o in own if name in o.counts]
        return counts if len(counts) == len(own) else []

    def tokens(self, name: str, phase: str) -> int | None:
        """A token count: from the update event, else summed over the phase's occurrences; None if unknown."""
        if name in self.numbers:
            return int(self.numbers[name])
        counts = self._counts(name, phase)
        return int(sum(counts)) if counts else None

    def longest(self, name: str, phase: str) -> int | None:
        """The longest response, in tokens; None if unknown."""
        if name in self.numbers:
            return int(self.numbers[name])
        counts = self._counts(name, phase)
        return int(max(counts)) if counts else None


@dataclass(frozen=True, slots=True)
class Edge:
    """A phase of the top level began or ended; ``closed`` is the update that this begin brought to an end."""

    begins: bool
    phase: str
    t_s: float
    closed: Update | None = None
    opened: Update | None = None


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
