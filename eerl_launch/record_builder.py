"""A closed update + energy + what was asked of the clocks → the UpdateRecord and its lines for the ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eerl_launch.energy import Allocation, PhaseStatistics
from eerl_launch.occurrences import Interval, Occurrence, partition
from eerl_launch.updates import Update

if TYPE_CHECKING:
    from eerl_controller.records import UpdateRecord

#: An update in which heat or hardware held this share of samples down tells nothing about our clocks.
_SLOWED_FRACTION = 0.05
#: A pool's own phases (colocated): what runs under which clock, for requested and achieved clocks.
POOL_PHASES = {
    "generation": ("generation", "validation"),
    "training": ("training", "logprob", "critic"),
}


@dataclass(slots=True)
class History:
    """Values that hold from an instant on: the plan in force, the clock asked for."""

    times: list[float] = field(default_factory=list)
    values: list[int | None] = field(default_factory=list)

    def put(self, t_s: float, value: int | None) -> None:
        """From ``t_s`` on, ``value``."""
        self.times.append(t_s)
        self.values.append(value)

    def at(self, t_s: float) -> int | None:
        """The value in force at ``t_s``; None before the first."""
        i = bisect_right(self.times, t_s) - 1
        return self.values[i] if i >= 0 else None

    def only(self, begin_s: float, end_s: float) -> tuple[int | None, bool]:
        """The value in force over (begin, end) and whether it was the only one."""
        first = self.at(begin_s)
        inside = [v for t, v in zip(self.times, self.values, strict=True) if begin_s < t < end_s]
        return first, all(value == first for value in inside)

    def mostly(self, intervals: Sequence[Interval]) -> int | None:
        """The value in force at the middle of the longest interval."""
        if not intervals:
            return None
        begin_s, end_s = max(intervals, key=lambda interval: interval[1] - interval[0])
        return self.at((begin_s + end_s) / 2)

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        keep = max(0, bisect_right(self.times, t_s) - 1)
        del self.times[:keep], self.values[:keep]


def _total(energy_j: dict[str, float | None]) -> float | None:
    """Sum over all GPUs; None when one of them is unknown, or when there is none."""
    known = [value for value in energy_j.values() if value is not None]
    return sum(known) if known and len(known) == len(energy_j) else None


def _over(energy: Allocation, intervals: Sequence[Interval]) -> dict[str, float | None]:
    """Joules by GPU over several intervals."""
    total: dict[str, float | None] = {}
    for begin_s, end_s in intervals:
        for uuid, joules in energy.between_j(begin_s, end_s).items():
            known = total.get(uuid, 0.0)
            total[uuid] = None if joules is None or known is None else known + joules
    return total


def _seconds(intervals: Sequence[Interval]) -> float:
    return sum(end_s - begin_s for begin_s, end_s in intervals)


@dataclass(frozen=True, slots=True)
class Built:
    """What one update leaves: the record, and its ledger lines."""

    record: UpdateRecord
    phase_events: list[dict[str, Any]]
    gpu_energy_j: dict[str, float | None]
    unattributed: dict[str, float | None]


class RecordBuilder:
    """Builds records from the session's measurements; all times are run time in seconds."""

    def __init__(self, energy: Allocation, plans: History, clocks: History) -> None:
        self._energy = energy
        self._plans = plans
        self._clocks = clocks

    def phase_events(
        self, occurrences: Sequence[Occurrence], label: int | None, begin_s: float, end_s: float
    ) -> list[dict[str, Any]]:
        """Ledger lines of the phases of one stretch of time: the disjoint partition, then the subphases."""
        events = []
        incomplete = {o.phase for o in occurrences if not o.complete}
        exclusive = partition(occurrences, begin_s, end_s)
        for phase, intervals in exclusive.items():
            events += [
                self._phase_event(label, phase, interval, exclusive=True, complete=phase not in incomplete)
                for interval in intervals
            ]
        for occurrence in occurrences:
            if "/" in occurrence.phase and occurrence.end_s is not None:
                span = (max(begin_s, occurrence.begin_s), min(end_s, occurrence.end_s))
                if span[1] > span[0]:
                    events.append(
                        self._phase_event(
                            label, occurrence.phase, span, exclusive=False, complete=occurrence.complete
                        )
                    )
        return events

    def _phase_event(
        self, label: int | None, phase: str, interval: Interval, *, exclusive: bool, complete: bool
    ) -> dict[str, Any]:
        by_gpu = self._energy.between_j(*interval)
        energy_j = _total(by_gpu)
        statistics = self._energy.statistics([interval])
        return {
            "ev": "phase",
            "t_s": interval[1],
            "update": label,
            "phase": phase,
            "begin_s": interval[0],
            "end_s": interval[1],
            "elapsed_s": interval[1] - interval[0],
            "energy_j": energy_j,
            "energy_reason": None if energy_j is not None else self._why_unknown(by_gpu),
            "gpu_energy_j": by_gpu,
            "requested_mhz": self._clocks.mostly([interval]),
            "achieved_mhz": statistics.achieved_mhz,
            "busy_fraction": statistics.busy_fraction,
            "capped_fraction": statistics.capped_fraction,
            "exclusive": exclusive,
            "complete": complete,
        }

    @staticmethod
    def _why_unknown(by_gpu: dict[str, float | None]) -> str:
        if not by_gpu:
            return "no GPU is measured"
        missing = [uuid for uuid, joules in by_gpu.items() if joules is None]
        return f"{len(missing)} of {len(by_gpu)} GPUs not covered: {', '.join(missing[:4])}"

    def build(
        self,
        update: Update,
        number: int,
        *,
        all_nodes_measured: bool,
        extra_flags: frozenset[str],
        remaining_updates: int | None,
        remaining_s: float | None,
    ) -> Built:
        """The record of a closed update; ``number`` grows by one an update, whatever the trainer's label."""
        from eerl_controller.records import PhaseRecord, PoolRecord, UpdateRecord

        begin_s, end_s = update.begin_s, update.end_s if update.end_s is not None else update.begin_s
        by_gpu = self._energy.between_j(begin_s, end_s)
        energy_j = _total(by_gpu) if all_nodes_measured else None
        exclusive = partition(update.occurrences, begin_s, end_s)
        phase_joules = {phase: _over(self._energy, intervals) for phase, intervals in exclusive.items()}
        phases = {
            phase: PhaseRecord(
                elapsed_s=_seconds(intervals),
                energy_j=_total(phase_joules[phase]) if all_nodes_measured else None,
            )
            for phase, intervals in exclusive.items()
        }
        statistics = self._energy.statistics([(begin_s, end_s)])
        flags = set(extra_flags) | {name for name in ("validation", "checkpoint") if name in exclusive}
        if energy_j is None:
            flags.add("partial_energy")
        if (statistics.slowed_fraction or 0.0) > _SLOWED_FRACTION:
            flags.add("hardware_slowdown")
        plan_id, alone = self._plans.only(begin_s, end_s)
        longest = update.longest("longest_response_tokens", "generation")
        record = UpdateRecord(
            update=number,
            plan_id=plan_id if alone else None,
            elapsed_s=end_s - begin_s,
            energy_j=energy_j,
            phases=phases,
            pools={
                role: self._pool(PoolRecord, [i for name in names for i in exclusive.get(name, [])])
                for role, names in POOL_PHASES.items()
            },
            generated_tokens=update.tokens("generated_tokens", "generation"),
            longest_generated_tokens=longest,
            valid_tokens=update.tokens("valid_tokens", "training"),
            longest_consumed_tokens=update.longest("longest_consumed_tokens", "training") or longest,
            policy_age_max=update.numbers.get("policy_age"),
            reward=update.numbers.get("reward"),
            remaining_updates=remaining_updates,
            remaining_s=remaining_s,
            flags=frozenset(flags),
        )
        attributed_j = [phase.energy_j for phase in phases.values()]
        known_j = [joules for joules in attributed_j if joules is not None]
        return Built(
            record=record,
            phase_events=self.phase_events(update.occurrences, update.label, begin_s, end_s),
            gpu_energy_j=by_gpu,
            unattributed={
                "elapsed_s": end_s - begin_s - sum(_seconds(i) for i in exclusive.values()),
                "energy_j": None
                if energy_j is None or len(known_j) < len(attributed_j)
                else energy_j - sum(known_j),
            },
        )

    def _pool(self, pool_record: Any, intervals: Sequence[Interval]) -> Any:
        statistics = self._energy.statistics(intervals) if intervals else PhaseStatistics()
        busy_s = _seconds(intervals)
        return pool_record(
            requested_mhz=self._clocks.mostly(intervals),
            achieved_mhz=statistics.achieved_mhz,
            energy_j=_total(_over(self._energy, intervals)) if intervals else None,
            busy_s=busy_s,
            wait_s=0.0,
        )
