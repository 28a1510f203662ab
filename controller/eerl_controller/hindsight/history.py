"""A run's entries in bounded memory: when there are too many, like updates in a row become one of their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eerl_controller.hindsight.entries import Entry

#: Entries that are reckoned with one by one; a longer run is as well told by means of two, four, ... updates.
MOST_ENTRIES = 400


class History:
    """Entries in order; ``taken`` is how many were added. ``most_entries`` are kept, whatever the run's length."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most = most_entries
        self.entries: list[Entry] = []
        self.taken = 0
        #: At most so many updates become one entry.
        self.stride = 1

    def add(self, entry: Entry) -> None:
        """The next update."""
        self.taken += entry.updates
        self._append(self.entries, entry)
        if len(self.entries) > self._most:
            self.stride *= 2
            thinner: list[Entry] = []
            for item in self.entries:
                self._append(thinner, item)
            # Settings that change all the time leave nothing to put together: the oldest are let go.
            self.entries = thinner[-self._most :]

    def _append(self, entries: list[Entry], entry: Entry) -> None:
        if entries and entries[-1].updates + entry.updates <= self.stride and alike(entries[-1], entry):
            entries[-1] = merged(entries[-1], entry)
        else:
            entries.append(entry)

    def first(self, updates: int) -> list[Entry]:
        """The entries of the first so many updates, without one that may still grow."""
        found, count = [], 0
        for entry in self.entries:
            count += entry.updates
            if count > updates:
                break
            found.append(entry)
        return found[:-1] if self.stride > 1 else found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "entries": [entry.to_list() for entry in self.entries],
            "taken": self.taken,
            "stride": self.stride,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.entries = [Entry.from_list(item) for item in values["entries"]]
        self.taken, self.stride = values["taken"], values["stride"]


def alike(one: Entry, other: Entry) -> bool:
    """Whether two entries in a row are of one kind, with everything known of both."""
    kinds = [
        (
            item.pair,
            item.evidence,
            item.mixed,
            item.blame,
            item.energy_j is None,
            item.own_j is None,
            item.arrivals_s is None,
            item.pools_j is None,
            item.before_valid is None,
            item.validation[0] > 0.0 and item.validation[1] is None,
            set(item.phases),
            set(item.counts),
            {name for name, (_, joules) in item.phases.items() if joules is None},
        )
        for item in (one, other)
    ]
    return kinds[0] == kinds[1]


def merged(one: Entry, other: Entry) -> Entry:
    """Two like entries as one: means by update."""
    share = one.updates / (one.updates + other.updates)

    def mean(a: float, b: float) -> float:
        return share * a + (1.0 - share) * b

    def known(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else mean(a, b)

    def pair(a: tuple[float, float] | None, b: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if a is None or b is None else (mean(a[0], b[0]), mean(a[1], b[1]))

    return Entry(
        place=mean(one.place, other.place),
        pair=one.pair,
        evidence=one.evidence,
        mixed=one.mixed,
        blame=one.blame,
        elapsed_s=mean(one.elapsed_s, other.elapsed_s),
        energy_j=known(one.energy_j, other.energy_j),
        updates=one.updates + other.updates,
        own_s=mean(one.own_s, other.own_s),
        own_j=known(one.own_j, other.own_j),
        phases={
            name: (mean(seconds, other.phases[name][0]), known(joules, other.phases[name][1]))
            for name, (seconds, joules) in one.phases.items()
        },
        counts={name: mean(value, other.counts[name]) for name, value in one.counts.items()},
        arrivals_s=pair(one.arrivals_s, other.arrivals_s),
        pools_j=pair(one.pools_j, other.pools_j),
        before_valid=known(one.before_valid, other.before_valid),
        validation=_visits(one, other, mean),
    )


def _visits(one: Entry, other: Entry, mean: Callable[[float, float], float]) -> tuple[float, float | None]:
    """Validation by update, of which most have none: no seconds, and no joules that are unknown."""
    seconds = mean(one.validation[0], other.validation[0])
    joules = [entry.validation[1] if entry.validation[0] > 0.0 else 0.0 for entry in (one, other)]
    known = seconds > 0.0 and joules[0] is not None and joules[1] is not None
    return seconds, mean(joules[0] or 0.0, joules[1] or 0.0) if known else None


def members(entries: Sequence[Entry]) -> list[range]:
    """For each entry, the places (from 0) of the updates that it stands for."""
    found, start = [], 0
    for entry in entries:
        found.append(range(start, start + entry.updates))
        start += entry.updates
    return found
