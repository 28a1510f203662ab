"""What was measured of any stretches of time: joules, clocks, load, and how good these numbers are. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eerl_launch.energy import Allocation, PhaseStatistics
from eerl_launch.history import History
from eerl_launch.occurrences import Interval
from eerl_launch.phase_shares import seconds
from eerl_launch.pools import ALL

#: Two publications of the energy counter (every 100 ms): a shorter stretch is told by its neighbours, not measured.
RESOLUTION_S = 0.2
#: Energy whose edges may be off by more than this share of it is called estimated.
_COARSE = 0.25
#: The driver's power is an average over about a second; stretches shorter than two of them show the one before.
POWER_RESOLUTION_S = 2.0


def total_j(energy_j: Mapping[str, float | None]) -> float | None:
    """Sum over all GPUs; None when one of them is unknown, or when there is none."""
    known = [value for value in energy_j.values() if value is not None]
    return sum(known) if known and len(known) == len(energy_j) else None


class Measures:
    """Answers for one run; joules of a stretch that was asked for are kept until :meth:`forget`."""

    def __init__(self, energy: Allocation, clocks: Mapping[str, History]) -> None:
        self._energy = energy
        self._clocks = clocks
        self._known: dict[Interval, dict[str, float | None]] = {}

    def forget(self) -> None:
        """The update is done with: none of its stretches will be asked for again."""
        self._known.clear()

    def everyone(self) -> frozenset[str]:
        """Every GPU that is measured."""
        return frozenset(self._energy.uuids())

    def statistics(
        self, intervals: Sequence[Interval], gpus: frozenset[str] | None = None
    ) -> PhaseStatistics:
        """Clocks, load and event reasons of these GPUs (None: all) over several intervals."""
        return self._energy.statistics(intervals, gpus)

    def joules(
        self, intervals: Sequence[Interval], gpus: frozenset[str] | None = None
    ) -> dict[str, float | None]:
        """Joules by GPU (None: of all) over several intervals; None where one of them is not covered."""
        total: dict[str, float | None] = {}
        for interval in intervals:
            if interval not in self._known:
                self._known[interval] = self._energy.between_j(*interval)
            for uuid, joules in self._known[interval].items():
                if gpus is not None and uuid not in gpus:
                    continue
                before = total.get(uuid, 0.0)
                total[uuid] = None if joules is None or before is None else before + joules
        return total

    def idle_tail_s(
        self, intervals: Sequence[Interval], gpus: frozenset[str] | None = None
    ) -> dict[str, float | None]:
        """Seconds at the ends of the intervals in which each of these GPUs (None: all) had nothing to do."""
        return self._energy.idle_tail_s(intervals, gpus)

    def requested_mhz(self, role: str | None, intervals: Sequence[Interval]) -> int | None:
        """The clock asked for at the middle of the longest interval; of no role: the training pool's."""
        clocks = self._clocks.get(ALL) or self._clocks.get(role or "training")
        return None if clocks is None else clocks.mostly(intervals)

    def unresolved(self, intervals: Sequence[Interval]) -> str | None:
        """Why the energy of these intervals is not a measurement of them, or None when it is."""
        mean_s = seconds(intervals) / len(intervals)
        if mean_s < RESOLUTION_S:
            return f"interpolated: runs of {mean_s:.3f} s are shorter than the energy counter resolves"
        if mean_s < POWER_RESOLUTION_S and self._energy.estimating:
            return f"low confidence: power samples are averages over 1 s, these runs take {mean_s:.1f} s"
        return None

    def error_j(self, intervals: Sequence[Interval], gpus: frozenset[str] | None = None) -> float | None:
        """How far the joules over these intervals may be off, for their edges; None when that is not known."""
        return self._energy.error_j(intervals, gpus)

    @staticmethod
    def coarse(energy_j: float, error_j: float | None) -> str | None:
        """Why the energy of a phase is an estimate: its edges are uncertain by much of it."""
        if error_j is None or error_j <= _COARSE * energy_j:
            return None
        return f"estimated: its edges are known to {error_j:.0f} J, as the counter is published every 100 ms"
