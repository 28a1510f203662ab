"""A closed update + energy + what was asked of the clocks → the UpdateRecord and its lines for the ledger."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.history import History
from eerl_launch.modes import POOL_PHASES, REFIT, VISITING_PHASES, Mode
from eerl_launch.occurrences import Interval, Occurrence, top_level, union
from eerl_launch.phase_shares import Share, remainder, seconds, shares, visits
from eerl_launch.pools import ALL
from eerl_launch.updates import Update

if TYPE_CHECKING:
    from eerl_controller.records import PhaseRecord, PoolRecord, UpdateRecord

#: An update in which heat or hardware held this share of samples down tells nothing about our clocks.
_SLOWED_FRACTION = 0.05
#: Two publications of the energy counter (every 100 ms): a shorter stretch is told by its neighbours, not measured.
RESOLUTION_S = 0.2
#: Energy whose edges may be off by more than this share of it is called estimated.
_COARSE = 0.25
#: The driver's power is an average over about a second; stretches shorter than two of them show the one before.
POWER_RESOLUTION_S = 2.0
#: Runs of one phase in an update that get a ledger line each; more are summed up in one line.
_MAX_LINES = 50
#: Updates whose plan is remembered for responses that are consumed later; no trainer consumes older ones.
_REMEMBERED_PLANS = 256


def _total(energy_j: Mapping[str, float | None]) -> float | None:
    """Sum over all GPUs; None when one of them is unknown, or when there is none."""
    known = [value for value in energy_j.values() if value is not None]
    return sum(known) if known and len(known) == len(energy_j) else None


def _coarse(energy_j: float, error_j: float | None) -> str | None:
    """Why the energy of a phase is an estimate: its edges are uncertain by much of it."""
    if error_j is None or error_j <= _COARSE * energy_j:
        return None
    return f"estimated: its edges are known to {error_j:.0f} J, as the counter is published every 100 ms"


@dataclass(frozen=True, slots=True)
class Built:
    """What one update leaves: the record, and its ledger lines."""

    record: UpdateRecord
    phase_events: list[dict[str, Any]]
    gpu_energy_j: dict[str, float | None]
    unattributed: dict[str, float | None]
    #: Separate pools: seconds and joules of each pool while it had nothing to do.
    waits: dict[str, dict[str, float | None]] = field(default_factory=dict)


class RecordBuilder:
    """Builds records from the session's measurements; all times are run time in seconds."""

    def __init__(
        self,
        energy: Allocation,
        plans: History,
        clocks: Mapping[str, History],
        arrangement: Arrangement,
    ) -> None:
        self._energy = energy
        self._plans = plans
        self._clocks = clocks
        self._arrangement = arrangement
        self._known: dict[Interval, dict[str, float | None]] = {}  # joules of stretches asked for before
        self._plans_at_begin: deque[int | None] = deque(maxlen=_REMEMBERED_PLANS)

    def _joules(
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

    def _requested_mhz(self, role: str | None, intervals: Sequence[Interval]) -> int | None:
        """The clock asked for at the middle of the longest interval; of no role: the training pool's."""
        clocks = self._clocks.get(ALL) or self._clocks.get(role or "training")
        return None if clocks is None else clocks.mostly(intervals)

    def _shares(self, occurrences: Sequence[Occurrence], begin_s: float, end_s: float) -> dict[str, Share]:
        everyone = frozenset(self._energy.uuids())
        return shares(occurrences, begin_s, end_s, self._arrangement, everyone)

    def _unresolved(self, intervals: Sequence[Interval]) -> str | None:
        """Why the energy of these intervals is not a measurement of them, or None when it is."""
        mean_s = seconds(intervals) / len(intervals)
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
        incomplete = {top_level(o.phase) for o in occurrences if not (o.complete or o.goes_on)}
        found = self._shares(occurrences, begin_s, end_s)
        subphases: dict[str, list[Interval]] = {}
        for occurrence in occurrences:
            span = (
                max(begin_s, occurrence.begin_s),
                min(end_s, end_s if occurrence.end_s is None else occurrence.end_s),
            )
            if "/" in occurrence.phase and span[1] > span[0]:
                subphases.setdefault(occurrence.phase, []).append(span)
        parts = [(True, phase, share, share.intervals) for phase, share in found.items()]
        parts += [
            (False, phase, found.get(top_level(phase), Share(intervals)), intervals)
            for phase, intervals in subphases.items()
        ]
        events = []
        for exclusive, phase, share, intervals in parts:
            lines = [[i] for i in intervals] if len(intervals) <= _MAX_LINES else [intervals]
            events += [
                self._phase_event(
                    label,
                    phase,
                    share,
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
        share: Share,
        intervals: Sequence[Interval],
        *,
        exclusive: bool,
        complete: bool,
        all_nodes_measured: bool,
    ) -> dict[str, Any]:
        by_gpu = self._joules(intervals, share.gpus)
        energy_j = _total(by_gpu) if all_nodes_measured else None
        error_j = self._energy.error_j(intervals, share.gpus) if energy_j is not None else None
        statistics = self._energy.statistics(intervals, share.workers or share.gpus)
        event: dict[str, Any] = {
            "ev": "phase",
            "t_s": intervals[-1][1],
            "update": label,
            "phase": phase,
            "pool": share.role if self._arrangement.separate else None,
            "begin_s": intervals[0][0],
            "end_s": intervals[-1][1],
            "elapsed_s": seconds(intervals),
            "energy_j": energy_j,
            "energy_error_j": error_j,
            "energy_reason": self._unresolved(intervals) or _coarse(energy_j, error_j)
            if energy_j is not None
            else self._why_unknown(by_gpu, all_nodes_measured),
            "gpu_energy_j": by_gpu,
            "requested_mhz": self._requested_mhz(share.role, intervals),
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
        from eerl_controller.records import UpdateRecord

        begin_s, end_s = update.begin_s, update.end_s if update.end_s is not None else update.begin_s
        found = self._shares(update.occurrences, begin_s, end_s)
        by_gpu = self._joules([(begin_s, end_s)]) if end_s > begin_s else {}
        energy_j = _total(by_gpu) if all_nodes_measured else None
        phase_j = {
            phase: _total(self._joules(share.intervals, share.gpus)) if all_nodes_measured else None
            for phase, share in found.items()
        }
        statistics = self._energy.statistics([(begin_s, end_s)])
        flags = set(extra_flags) | {name for name in VISITING_PHASES if name in found}
        if energy_j is None:
            flags.add("partial_energy")
        if (statistics.slowed_fraction or 0.0) > _SLOWED_FRACTION:
            flags.add("hardware_slowdown")
        plan_id, only = self._plans.only(begin_s, end_s)
        alone = visits(found)
        self._plans_at_begin.append(self._plans.at(begin_s))
        pools, waits = self._pools(found, begin_s, end_s, all_nodes_measured=all_nodes_measured)
        record = UpdateRecord(
            update=number,
            plan_id=plan_id if only else None,
            elapsed_s=end_s - begin_s if end_s > begin_s else None,
            energy_j=energy_j,
            phases={
                phase: self._phase_record(share, alone.get(phase, share.intervals), all_nodes_measured)
                for phase, share in found.items()
            },
            pools=pools,
            generated_tokens=update.tokens("generated_tokens", "generation"),
            longest_generated_tokens=update.longest("longest_response_tokens", "generation"),
            valid_tokens=update.tokens("valid_tokens", "training"),
            longest_consumed_tokens=update.longest_consumed(),
            policy_age_max=update.numbers.get("policy_age"),
            oldest_request_plan_id=self._oldest_request_plan_id(update),
            reward=update.numbers.get("reward"),
            remaining_updates=remaining_updates,
            remaining_s=remaining_s,
            flags=frozenset(flags),
            **self._meeting(update, found, begin_s, end_s),
        )
        known_j = [joules for joules in phase_j.values() if joules is not None]
        whole = energy_j is not None and len(known_j) == len(phase_j)
        marked = union(interval for share in found.values() for interval in share.intervals)
        unattributed = {
            "elapsed_s": end_s - begin_s - seconds(marked),
            "energy_j": energy_j - sum(known_j) if energy_j is not None and whole else None,
        }
        events = self.phase_events(
            update.occurrences, update.label, begin_s, end_s, all_nodes_measured=all_nodes_measured
        )
        return Built(record, events, by_gpu, unattributed, waits)

    def _phase_record(self, share: Share, intervals: list[Interval], all_nodes_measured: bool) -> PhaseRecord:
        """A phase for the controller: over its own intervals, those of a visitor over what it added to the update."""
        from eerl_controller.records import PhaseRecord

        # A stretch below the counter's resolution is never handed on as "costs nothing".
        known = all_nodes_measured and not (intervals and self._unresolved(intervals))
        return PhaseRecord(
            elapsed_s=seconds(intervals),
            energy_j=(_total(self._joules(intervals, share.gpus)) if intervals else 0.0) if known else None,
        )

    def _pools(
        self, found: Mapping[str, Share], begin_s: float, end_s: float, *, all_nodes_measured: bool
    ) -> tuple[dict[str, PoolRecord], dict[str, dict[str, float | None]]]:
        """The pool records, and what separate pools spent on waiting.

        A pool of its own has its energy over the whole update, and waits while it neither works nor takes part in
        a refit; the one pool of a colocated job has the energy of its own phases and never waits.
        """
        from eerl_controller.records import PoolRecord

        separate = self._arrangement.separate
        refit = found[REFIT].intervals if REFIT in found else []
        pools, waits = {}, {}
        for role, names in POOL_PHASES.items():
            own = union(interval for name in names if name in found for interval in found[name].intervals)
            members = self._arrangement.members(role)
            waiting = remainder(begin_s, end_s, [*own, *refit]) if separate else []
            counted = [(begin_s, end_s)] if separate and end_s > begin_s else own
            wait_s = seconds(waiting) if separate or not self._arrangement.mode.separate else None
            pools[role] = PoolRecord(
                requested_mhz=self._requested_mhz(role, own),
                achieved_mhz=self._energy.statistics(own, members).achieved_mhz,
                energy_j=_total(self._joules(counted, members)) if counted and all_nodes_measured else None,
                busy_s=seconds(own),
                wait_s=wait_s,
            )
            if separate:
                waits[role] = {
                    "wait_s": wait_s,
                    "energy_j": (_total(self._joules(waiting, members)) if waiting else 0.0)
                    if all_nodes_measured
                    else None,
                }
        return pools, waits

    def _meeting(
        self, update: Update, found: Mapping[str, Share], begin_s: float, end_s: float
    ) -> dict[str, float | None]:
        """Asynchronous: when each pool was done (drained), and which share of the update it was in use."""
        arrangement = self._arrangement
        if not arrangement.separate or not arrangement.mode.asynchronous or end_s <= begin_s:
            return {}
        visited = any(phase in found for phase in VISITING_PHASES)
        result: dict[str, float | None] = {}
        for role, names in POOL_PHASES.items():
            own = union(interval for name in names if name in found for interval in found[name].intervals)
            load = self._energy.statistics(own, arrangement.members(role)).busy_fraction
            result[f"{role}_busy_fraction"] = (
                seconds(own) / (end_s - begin_s) * (1.0 if load is None else load)
            )
            if arrangement.mode is Mode.ASYNC_DRAINED:
                # What was over before the update began has not arrived in it.
                ran = [
                    o
                    for o in update.occurrences
                    if o.phase in names and (o.end_s is None or o.end_s >= begin_s)
                ]
                # With a visitor, before or after the meeting, arrivals say nothing of the pools' own work.
                arrived = bool(ran) and all(o.complete for o in ran) and not visited
                result[f"{role}_arrival_s"] = (
                    max(min(o.end_s or end_s, end_s) for o in ran) - begin_s if arrived else None
                )
        return result

    def _oldest_request_plan_id(self, update: Update) -> int | None:
        """In-flight: the plan in force when the oldest response that was consumed began, ``policy_age`` updates
        ago; None when that is not known."""
        age = update.numbers.get("policy_age")
        if self._arrangement.mode is not Mode.ASYNC_INFLIGHT or age is None:
            return None
        updates_ago = math.ceil(age)
        return self._plans_at_begin[-1 - updates_ago] if updates_ago < len(self._plans_at_begin) else None
