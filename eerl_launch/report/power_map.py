"""Joules and seconds of every GPU over the run, in at most :data:`MOST_BINS` bins of equally many updates.

The number of updates is known at the end only, so bins are merged two by two whenever they become too many: memory
does not grow with the run, and sums stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add

#: An even number; a screen does not show more columns beside each other.
MOST_BINS = 256


@dataclass(slots=True)
class _Bin:
    """Sums over some updates, in the order of ``PowerMap.uuids``; seconds are those with known joules."""

    joules: list[float]
    seconds: list[float]


class PowerMap:
    """Takes the energies of updates one by one; :meth:`mean_power_w` tells a bin's mean power of each GPU."""

    def __init__(self) -> None:
        self.uuids: list[str] = []
        #: Updates in a bin; the last bin may hold fewer.
        self.updates_per_bin = 1
        self.updates = 0
        self._bins: list[_Bin] = []
        self._places: dict[str, int] = {}

    def take(self, elapsed_s: float | None, energy_j: Mapping[str, float | None]) -> None:
        """The next update: its seconds, and joules by GPU (None or absent: not known)."""
        if self.updates == MOST_BINS * self.updates_per_bin:
            self._merge()
        if self.updates % self.updates_per_bin == 0:
            self._bins.append(_Bin([0.0] * len(self.uuids), [0.0] * len(self.uuids)))
        self.updates += 1
        if elapsed_s is None or elapsed_s <= 0 or not energy_j:
            return
        if self.uuids != list(energy_j):
            self._admit(energy_j)
        last = self._bins[-1]
        values = [energy_j.get(uuid) for uuid in self.uuids]
        known = [0.0 if value is None else value for value in values]
        last.joules = list(map(add, last.joules, known))
        if None in values:
            spent = [0.0 if value is None else elapsed_s for value in values]
        else:
            spent = [elapsed_s] * len(values)
        last.seconds = list(map(add, last.seconds, spent))

    def mean_power_w(self) -> list[dict[str, float | None]]:
        """By bin, the mean power of each GPU in watts; None where no joules are known."""
        return [
            {
                uuid: joules / seconds if seconds > 0 else None
                for uuid, joules, seconds in zip(self.uuids, entry.joules, entry.seconds, strict=True)
            }
            for entry in self._bins
        ]

    def _admit(self, energy_j: Mapping[str, float | None]) -> None:
        new = [uuid for uuid in energy_j if uuid not in self._places]
        for uuid in new:
            self._places[uuid] = len(self.uuids)
            self.uuids.append(uuid)
        for entry in self._bins:
            entry.joules += [0.0] * len(new)
            entry.seconds += [0.0] * len(new)

    def _merge(self) -> None:
        self._bins = [
            _Bin(list(map(add, left.joules, right.joules)), list(map(add, left.seconds, right.seconds)))
            for left, right in zip(self._bins[::2], self._bins[1::2], strict=True)
        ]
        self.updates_per_bin *= 2
