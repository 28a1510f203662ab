"""Joules and seconds of every GPU over the run, in at most :data:`MOST_BINS` bins of equally many updates.

The number of updates is known at the end only, so bins are merged two by two whenever they become too many: memory
does not grow with the run, and sums stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import add

#: An even number; a screen does not show more columns beside each other.
MOST_BINS = 256


@dataclass(slots=True)
class _Bin:
    """Sums over some updates: joules in the order of ``PowerMap.uuids``, seconds of all of them, and for GPUs whose
    joules were not always known (by place) the seconds that they lack."""

    joules: list[float]
    seconds: float = 0.0
    lacking: dict[int, float] = field(default_factory=dict)


class PowerMap:
    """Takes the energies of updates one by one; :meth:`mean_power_w` tells a bin's mean power of each GPU."""

    def __init__(self) -> None:
        self.uuids: list[str] = []
        #: Updates in a bin; the last bin may hold fewer.
        self.updates_per_bin = 1
        self.updates = 0
        self._bins: list[_Bin] = []

    def take(self, elapsed_s: float | None, energy_j: Mapping[str, float | None]) -> None:
        """The next update: its seconds, and joules by GPU (None or absent: not known)."""
        if self.updates == MOST_BINS * self.updates_per_bin:
            self._merge()
        if self.updates % self.updates_per_bin == 0:
            self._bins.append(_Bin([0.0] * len(self.uuids)))
        self.updates += 1
        if elapsed_s is None or elapsed_s <= 0 or not energy_j:
            return
        last = self._bins[-1]
        if self.uuids == list(energy_j):
            values = list(energy_j.values())
        else:
            self._admit(energy_j)
            values = [energy_j.get(uuid) for uuid in self.uuids]
        last.seconds += elapsed_s
        if None in values:
            for place, value in enumerate(values):
                if value is None:
                    last.lacking[place] = last.lacking.get(place, 0.0) + elapsed_s
        last.joules = [joules + (value or 0.0) for joules, value in zip(last.joules, values, strict=True)]

    def mean_power_w(self) -> list[dict[str, float | None]]:
        """By bin, the mean power of each GPU in watts; None where no joules are known."""
        return [
            {uuid: self._power_w(entry, place) for place, uuid in enumerate(self.uuids)}
            for entry in self._bins
        ]

    @staticmethod
    def _power_w(entry: _Bin, place: int) -> float | None:
        lacking_s = entry.lacking.get(place, 0.0)
        # A GPU that lacks all of them: the difference of two equal sums, which rounding may leave above zero.
        known_s = entry.seconds - lacking_s if lacking_s < entry.seconds * (1 - 1e-9) else 0.0
        return entry.joules[place] / known_s if known_s > 0 else None

    def _admit(self, energy_j: Mapping[str, float | None]) -> None:
        known = set(self.uuids)
        new = [uuid for uuid in energy_j if uuid not in known]
        for entry in self._bins:
            for place in range(len(self.uuids), len(self.uuids) + len(new)):
                entry.lacking[place] = entry.seconds
            entry.joules += [0.0] * len(new)
        self.uuids += new

    def _merge(self) -> None:
        self._bins = [
            _both(left, right) for left, right in zip(self._bins[::2], self._bins[1::2], strict=True)
        ]
        self.updates_per_bin *= 2


def _both(left: _Bin, right: _Bin) -> _Bin:
    lacking = {
        place: left.lacking.get(place, 0.0) + right.lacking.get(place, 0.0)
        for place in left.lacking.keys() | right.lacking.keys()
    }
    return _Bin(list(map(add, left.joules, right.joules)), left.seconds + right.seconds, lacking)
