"""A run's entries in bounded memory: when there are too many, like updates of a while become one of their means.

No update is ever let go: one that is not there would count as having saved nothing, and the governor's own updates,
which all others are compared with, may all be at the beginning. Like updates need not follow each other, as a search
changes clocks all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from eerl_controller.hindsight.entries import Entry

#: Entries that are reckoned with while the run goes on; a longer one is as well told by means of like updates.
MOST_ENTRIES = 400
#: However many kinds of updates there are, a run is told in no fewer whiles than this: machines age.
LEAST_WHILES = 16
#: Like updates that follow each other become one entry up to so many times as far apart as those with others between.
IN_A_ROW = 8


class History:
    """Entries in the order of their places; ``taken`` is how many updates were added.

    There may be more than ``most`` entries only where more kinds of updates than ``most / LEAST_WHILES`` turn up
    again and again.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self.entries: list[Entry] = []
        self.taken = 0
        #: Like updates in a row become one entry within so many places.
        self.reach = 1
        self._most = most

    def add(self, entry: Entry) -> None:
        """The next update."""
        self.taken += entry.updates
        _put(self.entries, entry, self.reach)
        while len(self.entries) > self._most and 2 * LEAST_WHILES * _stride(self.reach) <= entry.place:
            self.reach *= 2
            before, self.entries = self.entries, []
            for item in before:
                _put(self.entries, item, self.reach)

    @property
    def settled(self) -> int:
        """So many entries, the first ones, will stay as they are while ``reach`` does."""
        if self.reach == 1:
            return len(self.entries)
        latest = _while(self.entries[-1], _stride(self.reach)) if self.entries else 0
        at = max(len(self.entries) - 1, 0)
        while at and _while(self.entries[at - 1], _stride(self.reach)) >= latest:
            at -= 1
        return at

    def places(self, updates: Iterable[Entry]) -> list[int]:
        """The entries that stand for all updates that were added, in their order."""
        left: dict[tuple[Hashable, ...], list[int]] = {}
        for i, entry in enumerate(self.entries):
            left.setdefault(kind(entry), []).extend([i] * entry.updates)
        of_kind = {name: iter(numbers) for name, numbers in left.items()}
        return [next(of_kind[kind(update)]) for update in updates]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "entries": [entry.to_list() for entry in self.entries],
            "taken": self.taken,
            "reach": self.reach,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.entries = [Entry.from_list(item) for item in values["entries"]]
        self.taken, self.reach = values["taken"], values["reach"]


def _stride(reach: int) -> int:
    return max(reach // IN_A_ROW, 1)


def _while(entry: Entry, places: int) -> int:
    return int(entry.place // places)


def _put(entries: list[Entry], entry: Entry, reach: int) -> None:
    """Add an entry, to the latest like one where that is near enough, in the order of places."""
    last, stride = len(entries) - 1, _stride(reach)
    like = at = len(entries)
    if last >= 0 and _while(entries[last], reach) == _while(entry, reach) and kind(entries[last]) == kind(entry):
        like = at = last
    elif stride > 1:
        while at and _while(entries[at - 1], stride) == _while(entry, stride) and like > last:
            at -= 1
            like = at if kind(entries[at]) == kind(entry) else like
    if like <= last:
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
        # The later of two means is not the mean of the later ones.
        entry.arrivals_s and entry.arrivals_s[0] > entry.arrivals_s[1],
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
