"""A closed update + energy + what was asked of the clocks → the UpdateRecord and its lines for the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eerl_launch.energy import Allocation
from eerl_launch.history import History
from eerl_launch.occurrences import Interval, Occurrence, partition, top_level
from eerl_launch.updates import Update

if TYPE_CHECKING:
    from eerl_controller.records import UpdateRecord

#: An update in which heat or hardware held this share of samples down tells nothing about our clocks.
_SLOWED_FRACTION = 0.05
#: Two publications of the energy counter (every 100 ms): a shorter stretch is told by its neighbours, not measured.
RESOLUTION_S = 0.2
#: The driver's power is an average over about a second; stretches shorter than two of them show the one before.
POWER_RESOLUTION_S = 2.0
#: Runs of one phase in an update that get a ledger line each; more are summed up in one line.
_MAX_LINES = 50
#: A pool's own phases (colocated): what runs under which clock, for requested and achieved clocks.
POOL_PHASES = {
    "generation": ("generation", "validation"),
    "training": ("training", "logprob", "critic"),
}


def _total(energy_j: dict[str, float | None]) -> float | None:
    """Sum over all GPUs; None when one of them is unknown, or when there is none."""
    known = [value for value in energy_j.values() if value is not None]
    return sum(known) if known and len(known) == len(energy_j) else None


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
        self._known: dict[Interval, dict[str, float | None]] = {}  # joules of stretches asked for before

    def _joules(self, intervals: Sequence[Interval]) -> dict[str, float | None]:
        """Joules by GPU over several intervals; None where one of them is not covered."""
        total: dict[str, float | None] = {}
        for interval in intervals:
            if interval not in self._known:
                self._known[interval] = self._energy.between_j(*interval)
            for uuid, joules in self._known[interval].items():
                before = total.get(uuid, 0.0)
                total[uuid] = None if joules is None or before is None else before + joules
        return total

    def _unresolved(self, intervals: Sequence[Interval]) -> str | None:
        """Why the energy of these intervals is not a measurement of them, or None when it is."""
        mean_s = _seconds(intervals) / len(intervals)
        if mean_s < RESOLUTION_S:
            return f"interpolated: runs of {mean_s:.3f} s are shorter than the energy counter resolves"
        if mean_s < POWER_RESOLUTION_S and self._energy.estimating:
            return f"low confidence: power samples are averages over 1 s, these runs take {mean_s:.1f} s"
        return None

    def phase_events(
        self,
        occurrences: Sequence[Occurrence],
        label: int | None,
        begin_s: float,
        end_s: float,
        *,
        all_nodes_measured: bool = True,
    ) -> list[dict[str, Any]]:
        """Ledger lines of the phases of one stretch of time: the disjoint partition, then the subphases."""
        incomplete = {top_level(o.phase) for o in occurrences if not o.complete}
        subphases: dict[str, list[Interval]] = {}
        for occurrence in occurrences:
            span = (
                max(begin_s, occurrence.begin_s),
                min(end_s, end_s if occurrence.end_s is None else occurrence.end_s),
            )
            if "/" in occurrence.phase and span[1] > span[0]:
                subphases.setdefault(occurrence.phase, []).append(span)
        events = []
        for exclusive, phases in ((True, partition(occurrences, begin_s, end_s)), (False, subphases)):
            for phase, intervals in phases.items():
                lines = [[i] for i in intervals] if len(intervals) <= _MAX_LINES else [intervals]
                events += [
                    self._phase_event(
                        label,
                        phase,
                        line,
                        exclusive=exclusive,
                        complete=top_level(phase) not in incomplete,
                        all_nodes_measured=all_nodes_measured,
                    )
                    for line in lines
                ]
        self._known.clear()
        return events

    def _phase_event(
        self,
        label: int | None,
        phase: str,
        intervals: Sequence[Interval],
        *,
        exclusive: bool,
        complete: bool,
        all_nodes_measured: bool,
    ) -> dict[str, Any]:
        by_gpu = self._joules(intervals)
        energy_j = _total(by_gpu) if all_nodes_measured else None
        statistics = self._energy.statistics(intervals)
        event: dict[str, Any] = {
            "ev": "phase",
            "t_s": intervals[-1][1],
            "update": label,
            "phase": phase,
            "begin_s": intervals[0][0],
            "end_s": intervals[-1][1],
            "elapsed_s": _seconds(intervals),
            "energy_j": energy_j,
            "energy_reason": self._unresolved(intervals)
            if energy_j is not None
            else self._why_unknown(by_gpu, all_nodes_measured),
            "gpu_energy_j": by_gpu,
            "requested_mhz": self._clocks.mostly(intervals),
            "achieved_mhz": statistics.achieved_mhz,
            "busy_fraction": statistics.busy_fraction,
            "capped_fraction": statistics.capped_fraction,
            "exclusive": exclusive,
            "complete": complete,
        }
        if len(intervals) > 1:
            event["intervals"] = len(intervals)
        return event

    @staticmethod
    def _why_unknown(by_gpu: dict[str, float | None], all_nodes_measured: bool) -> str:
        if not by_gpu:
            return "no GPU is measured"
        missing = [uuid for uuid, joules in by_gpu.items() if joules is None]
        if missing:
            return f"{len(missing)} of {len(by_gpu)} GPUs not covered: {', '.join(missing[:4])}"
        return "not every node is measured" if not all_nodes_measured else "not covered"

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
        exclusive = partition(update.occurrences, begin_s, end_s)
        by_gpu = self._joules([(begin_s, end_s)]) if end_s > begin_s else {}
        energy_j = _total(by_gpu) if all_nodes_measured else None
        phase_j = {
            phase: _total(self._joules(intervals)) if all_nodes_measured else None
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
        pools = {}
        for role, names in POOL_PHASES.items():
            own = [interval for name in names for interval in exclusive.get(name, [])]
            pools[role] = PoolRecord(
                requested_mhz=self._clocks.mostly(own),
                achieved_mhz=self._energy.statistics(own).achieved_mhz,
                energy_j=_total(self._joules(own)) if own and all_nodes_measured else None,
                busy_s=_seconds(own),
                wait_s=0.0,
            )
        record = UpdateRecord(
            update=number,
            plan_id=plan_id if alone else None,
            elapsed_s=end_s - begin_s if end_s > begin_s else None,
            energy_j=energy_j,
            phases={
                phase: PhaseRecord(
                    elapsed_s=_seconds(intervals),
                    # A stretch below the counter's resolution is never handed on as "costs nothing".
                    energy_j=None if self._unresolved(intervals) else phase_j[phase],
                )
                for phase, intervals in exclusive.items()
            },
            pools=pools,
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
        known_j = [joules for joules in phase_j.values() if joules is not None]
        whole = energy_j is not None and len(known_j) == len(phase_j)
        unattributed = {
            "elapsed_s": end_s - begin_s - sum(_seconds(i) for i in exclusive.values()),
            "energy_j": energy_j - sum(known_j) if energy_j is not None and whole else None,
        }
        events = self.phase_events(
            update.occurrences, update.label, begin_s, end_s, all_nodes_measured=all_nodes_measured
        )
        return Built(record, events, by_gpu, unattributed)
