"""The updates of a run in order along an axis: single ones or, where there are too many, equal stretches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from eerl_launch.report.rows import Run, UpdateRow

#: Points drawn of each quantity; of more updates each point is the mean of a few.
MOST_POINTS = 4000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Updates that follow each other; ``first`` and ``last`` are their places on the axis."""

    first: float
    last: float
    rows: Sequence[UpdateRow]

    @property
    def place(self) -> float:
        """The middle of the stretch on the axis."""
        return (self.first + self.last) / 2

    @property
    def name(self) -> str:
        """The update, or the first and last one of the stretch."""
        return f"{self.first:.0f}" if self.first == self.last else f"{self.first:.0f}–{self.last:.0f}"

    @property
    def state(self) -> str | None:
        """The controller's state in all of the updates; "several" when it changed among them."""
        states = {row.state for row in self.rows}
        return next(iter(states)) if len(states) == 1 else "several"

    def mean(self, value: Callable[[UpdateRow], float | None]) -> float | None:
        """The mean over the updates of which the value is known."""
        known = [found for row in self.rows if (found := value(row)) is not None]
        return sum(known) / len(known) if known else None


def places(run: Run) -> list[float]:
    """The place of each update on the axis: its label; its count when labels repeat, fall or are missing."""
    labels = [row.update for row in run.updates if row.update is not None]
    if len(labels) < len(run.updates) or any(left >= right for left, right in pairwise(labels)):
        return [float(place) for place in range(1, len(run.updates) + 1)]
    return [float(label) for label in labels]


def stretches(run: Run, most: int) -> list[Stretch]:
    """The updates as at most ``most`` stretches of equally many updates (the last one may have fewer)."""
    on_axis = places(run)
    size = -(-len(on_axis) // most) or 1
    found = []
    for begin in range(0, len(on_axis), size):
        rows = run.updates[begin : begin + size]
        found.append(Stretch(on_axis[begin], on_axis[begin + len(rows) - 1], rows))
    return found
