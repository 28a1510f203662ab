"""The running estimate for the progress line: this run against the governor, by the very reckoning of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eerl_controller.clocks import Pair
from eerl_controller.hindsight.entries import Entry, Reader
from eerl_controller.hindsight.history import History
from eerl_controller.records import ExecutionMode, UpdateRecord

if TYPE_CHECKING:
    from eerl_controller.hindsight.reckoning import Reckoning

#: Fewer settled governor updates leave too little to tell noise from what clocks do: nothing is claimed. Policy
#: ``eerl`` calibrates with as many.
MIN_REFERENCES = 6
#: The run is reckoned anew when it has become longer by this fraction; until then new updates are priced by what
#: their clocks did before. It costs tens of milliseconds, and the session has other things to do.
GROWTH = 0.25
#: And when more than this share of its updates ran under clocks that the last reckoning did not know: nothing is
#: claimed for them until then.
UNSEEN = 0.02


@dataclass(frozen=True, slots=True)
class Estimate:
    """The run so far against the governor on the same work, search costs included.

    ``energy_saving`` and ``throughput_change`` are fractions (0.07 is 7 %; negative throughput is slower);
    ``energy_saving`` is None when energy is unknown. ``updates`` counts what was compared.
    """

    energy_saving: float | None
    throughput_change: float
    updates: int


class RunningSaving:
    """Every update so far, and what the governor would have taken for it."""

    def __init__(self, mode: ExecutionMode, governor_mhz: int) -> None:
        self._mode = mode
        self._top_mhz = float(governor_mhz)
        self._reader = Reader(mode)
        self._history = History()
        #: Updates so far under settled governor clocks, and under lowered ones.
        self._references = self._lowered = 0
        #: How many updates there were when the run was reckoned last, or should have been; its entries then, and how
        #: many of them, the first ones, are still what they were.
        self._reckoned = self._settled = 0
        self._entries: list[Entry] = []
        self._pairs: set[Pair] = set()
        #: Updates since then under clocks that were not among them.
        self._unseen = 0
        #: Worked out when asked for: the reckoning of the updates that were there then, and the latest answer.
        self._known: tuple[int, Reckoning | None] = (0, None)
        self._answer: tuple[int, Estimate | None] = (0, None)

    def add(self, record: UpdateRecord, pair: Pair | None) -> None:
        """Count one update, usable as evidence or not; ``pair`` is its plan's, None when it had more than one."""
        entry = self._reader.read(record, pair)
        if entry is None:
            return
        before = self._history.thinned
        self._history.add(entry)
        self._lowered += not entry.pair.is_governor
        self._references += entry.evidence and entry.pair.is_governor
        count = self._history.taken
        self._unseen += not entry.pair.is_governor and entry.pair not in self._pairs
        if (
            count >= (1.0 + GROWTH) * self._reckoned
            or self._unseen > UNSEEN * count
            or record.remaining_updates == 0
            or self._history.thinned != before
        ):
            self._reckoned, self._settled = count, self._history.settled
            self._entries, self._unseen = list(self._history.entries), 0
            self._pairs = {item.pair for item in self._entries}

    @property
    def estimate(self) -> Estimate | None:
        """The estimate so far; None before the first lowered clock, or with too few governor updates."""
        count = self._history.taken
        if self._answer[0] != count:
            self._answer = (count, self._estimate())
        return self._answer[1]

    def frozen(self) -> RunningSaving:
        """A copy that the updates to come do not change, so that another thread may ask it for its estimate."""
        other = RunningSaving(self._mode, int(self._top_mhz))
        other._history.entries = list(self._history.entries)
        other._history.taken, other._history.thinned = self._history.taken, self._history.thinned
        other._references, other._lowered = self._references, self._lowered
        other._reckoned, other._settled, other._entries = self._reckoned, self._settled, self._entries
        other._known, other._answer = self._known, self._answer
        return other

    def learn_from(self, other: RunningSaving) -> None:
        """Take over what a frozen copy has worked out."""
        self._known, self._answer = other._known, other._answer

    def _reckoning(self) -> Reckoning:
        if self._known[0] != self._reckoned or self._known[1] is None:
            from eerl_controller.hindsight.reckoning import Reckoning

            self._known = (self._reckoned, Reckoning(self._entries, self._mode, self._top_mhz))
        found = self._known[1]
        assert found is not None
        return found

    def _estimate(self) -> Estimate | None:
        if not self._lowered or self._references < MIN_REFERENCES:
            return None
        reckoning = self._reckoning()
        entries = self._history.entries
        kept = len(entries) if self._history.taken == self._reckoned else self._settled
        found = [(reckoning.governor_s[:kept], reckoning.governor_j[:kept])]
        later = entries[kept:]
        if later:
            found.append(reckoning.price(later))
        elapsed_s = governor_s = energy_j = governor_j = 0.0
        pairs = [
            pair for seconds, joules in found for pair in zip(seconds.tolist(), joules.tolist(), strict=True)
        ]
        for entry, (seconds, joules) in zip(entries, pairs, strict=True):
            elapsed_s += entry.updates * entry.elapsed_s
            governor_s += entry.updates * seconds
            if entry.energy_j is not None:
                energy_j += entry.updates * entry.energy_j
                governor_j += entry.updates * joules
        return Estimate(
            energy_saving=1.0 - energy_j / governor_j if governor_j > 0.0 else None,
            throughput_change=governor_s / elapsed_s - 1.0,
            updates=self._history.taken,
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "reader": self._reader.to_dict(),
            "history": self._history.to_dict(),
            "references": self._references,
            "lowered": self._lowered,
            "reckoned": self._reckoned,
            "settled": self._settled,
            "unseen": self._unseen,
            "unsettled": [entry.to_list() for entry in self._entries[self._settled :]],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._reader.load(values["reader"])
        self._history.load(values["history"])
        self._references, self._lowered = values["references"], values["lowered"]
        self._reckoned, self._settled, self._unseen = values["reckoned"], values["settled"], values["unseen"]
        unsettled = [Entry.from_list(item) for item in values["unsettled"]]
        self._entries = [*self._history.entries[: self._settled], *unsettled]
        self._pairs = {item.pair for item in self._entries}
