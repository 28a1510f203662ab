"""A run's entries in bounded memory: when there are too many, like updates of a while become one of their means.

No update is ever let go: one that is not there would count as having saved nothing, and the governor's own updates,
which all others are compared with, may all be at the beginning. Like updates need not follow each other, as a search
changes clocks all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from eerl_controller.hindsight.entries import Entry

#: Entries that are reckoned with while the run goes on; a longer one is as well told by means of like updates.
MOST_ENTRIES = 400
#: However many kinds of updates there are, a run is told in no fewer whiles than this: machines age.
LEAST_WHILES = 16


class History:
    """Entries in the order of their places; ``taken`` is how many updates were added.

    There may be more than ``most`` entries only where more kinds of updates than ``most / LEAST_WHILES`` turn up again
    and again.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self.entries: list[Entry] = []
        self.taken = 0
        #: So many places in a row are one while, in which like updates become one entry.
        self.stride = 1
        self._most = most

    def add(self, entry: Entry) -> None:
        """The next update."""
        self.taken += entry.updates
        _put(self.entries, entry, self.stride)
        while len(self.entries) > self._most and 2 * LEAST_WHILES * self.stride <= entry.place:
            self.stride *= 2
            before, self.entries = self.entries, []
            for item in before:
                _put(self.entries, item, self.stride)

    def first(self, updates: int) -> list[Entry]:
        """The entries of the first so many updates, without those that may still grow."""
        count = complete = 0
        for i, entry in enumerate(self.entries):
            if self.stride > 1 and (i == 0 or self._while(entry) != self._while(self.entries[i - 1])):
                complete = i
            count += entry.updates
            if count > updates:
                break
            if self.stride == 1:
                complete = i + 1
        return self.entries[:complete]

    def places(self, updates: Sequence[Entry]) -> list[int]:
        """For each of these updates, all of which were added, the entry that stands for it."""
        known = {(self._while(entry), kind(entry)): i for i, entry in enumerate(self.entries)}
        return [known[self._while(update), kind(update)] for update in updates]

    def _while(self, entry: Entry) -> int:
        return int(entry.place // self.stride)

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


def _put(entries: list[Entry], entry: Entry, stride: int) -> None:
    """Add an entry to those of its while, which are the last ones, in the order of their places."""
    at = len(entries)
    if stride > 1:
        while at and entries[at - 1].place // stride == entry.place // stride:
            at -= 1
        like = next((i for i in range(at, len(entries)) if kind(entries[i]) == kind(entry)), None)
        if like is not None:
            entry = merged(entries.pop(like), entry)
        at = next((i for i in range(at, len(entries)) if entries[i].place > entry.place), len(entries))
    entries.insert(at, entry)


def kind(entry: Entry) -> tuple[Hashable, ...]:
    """What entries must have in common to be put together: the clocks, what is claimed, and what is known of them."""
    return (
        entry.pair,
        entry.evidence,
        entry.mixed,
        entry.claimed,
        entry.energy_j is None,
        entry.own_j is None,
        entry.arrivals_s is None,
        entry.pools_j is None,
        entry.before_valid is None,
        entry.validation[0] > 0.0 and entry.validation[1] is None,
        frozenset(entry.phases),
        frozenset(entry.counts),
        frozenset(name for name, (_, joules) in entry.phases.items() if joules is None),
    )


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
        validation=(mean(one.validation[0], other.validation[0]), _visit_j(one, other, mean)),
    )


def _visit_j(one: Entry, other: Entry, mean: Callable[[float, float], float]) -> float | None:
    """Joules of validation; an update without any took none for it."""
    joules = [0.0 if item.validation[0] <= 0.0 else item.validation[1] for item in (one, other)]
    return None if joules[0] is None or joules[1] is None else mean(joules[0], joules[1])
