"""A run's entries in bounded memory: when there are too many, like updates of a while become one of their means.

No update is ever let go: one that is not there would count as having saved nothing, and the governor's own updates,
which all others are compared with, may all be at the beginning. Like updates need not follow each other, as a search
changes clocks all the time. What there is most of is told more coarsely first: a run is known no better than what it
has least of, and that stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from eerl_controller.hindsight.entries import Entry
from eerl_controller.hindsight.merging import Kind, kind, merged

#: Entries that are reckoned with while the run goes on.
MOST_ENTRIES = 400
#: Entries that are no evidence tell sums only: of those, so many times fewer will do.
WITHOUT_EVIDENCE = 4


class History:
    """Entries in the order of their places; ``taken`` is how many updates were added.

    There are more than ``most`` entries only where there are more kinds of updates than that.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self.entries: list[Entry] = []
        self.taken = 0
        #: How often entries that were there already were put together.
        self.thinned = 0
        self._most = most
        #: The place of the latest update.
        self._place = 0.0
        #: Kinds by number, and the number of every entry's: a kind is long, and all of them are gone through often.
        self._numbers: dict[Kind, int] = {}
        self._kinds: list[int] = []
        #: By kind: updates within a while of so many places become one entry; 1 where not told.
        self._stride: dict[int, int] = {}

    def _number(self, entry: Entry) -> int:
        return self._numbers.setdefault(kind(entry), len(self._numbers))

    def add(self, entry: Entry) -> None:
        """The next update."""
        self.taken += entry.updates
        self._place = entry.place
        number = self._number(entry)
        self._put(self.entries, self._kinds, entry, number, self._stride.get(number, 1))
        while len(self.entries) > self._most and self._thin():
            self.thinned += 1

    def _put(self, entries: list[Entry], kinds: list[int], entry: Entry, number: int, stride: int) -> None:
        """Add an entry, to the like one of its while where there is one, in the order of places."""
        now, at = entry.place // stride, len(entries)
        while stride > 1 and at and entries[at - 1].place // stride >= now:
            at -= 1
            if kinds[at] == number:
                del kinds[at]
                entry = merged(entries.pop(at), entry)
                number = self._number(entry)
                break
        while at < len(entries) and entries[at].place <= entry.place:
            at += 1
        entries.insert(at, entry)
        kinds.insert(at, number)

    def _thin(self) -> bool:
        """Tell one kind more coarsely; false where every kind is one entry already."""
        evidence = {number: entry.evidence for number, entry in zip(self._kinds, self.entries, strict=True)}
        weights = {
            number: count * (1 if evidence[number] else WITHOUT_EVIDENCE)
            for number, count in Counter(self._kinds).items()
            if count > 1
        }
        if not weights:
            return False
        most = max(weights, key=lambda number: weights[number])
        numbered = list(zip(self.entries, self._kinds, strict=True))
        told = [entry for entry, number in numbered if number == most]
        kinds = [most] * len(told)
        many = len(told)
        while len(told) == many:
            self._stride[most] = 2 * self._stride.get(most, 1)
            before, told, kinds = told, [], []
            for entry in before:
                self._put(told, kinds, entry, most, self._stride[most])
        others = [item for item in numbered if item[1] != most]
        numbered = sorted([*others, *zip(told, kinds, strict=True)], key=lambda item: item[0].place)
        self.entries = [entry for entry, _ in numbered]
        self._kinds = [number for _, number in numbered]
        return True

    @property
    def settled(self) -> int:
        """So many entries, the first ones, stay as they are until ``thinned`` changes."""
        for i, number in enumerate(self._kinds if self._stride else ()):
            stride = self._stride.get(number, 1)
            if self.entries[i].place // stride >= self._place // stride:
                return i
        return len(self.entries)

    def places(self, updates: Iterable[Entry]) -> list[int]:
        """The entries that stand for all updates that were added, in their order."""
        left: dict[Kind, list[int]] = {}
        for i, entry in enumerate(self.entries):
            left.setdefault(kind(entry), []).extend([i] * entry.updates)
        of_kind = {name: iter(numbers) for name, numbers in left.items()}
        return [next(of_kind[kind(update)]) for update in updates]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "entries": [entry.to_list() for entry in self.entries],
            "taken": self.taken,
            "thinned": self.thinned,
            "place": self._place,
            "strides": [[self._kinds.index(number), stride] for number, stride in self._stride.items()],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.entries = [Entry.from_list(item) for item in values["entries"]]
        self._numbers = {}
        self._kinds = [self._number(entry) for entry in self.entries]
        self.taken, self.thinned, self._place = values["taken"], values["thinned"], values["place"]
        self._stride = {self._kinds[i]: stride for i, stride in values["strides"]}
