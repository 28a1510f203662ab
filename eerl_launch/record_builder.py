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
from eerl_launch.measures import Measures, total_j
from eerl_launch.modes import POOL_PHASES, REFIT, VISITING_PHASES, Mode
from eerl_launch.occurrences import Interval, Occurrence, union
from eerl_launch.phase_lines import PhaseLines
from eerl_launch.phase_shares import Share, remainder, seconds, shares, visits
from eerl_launch.updates import Update

if TYPE_CHECKING:
    from eerl_controller.records import PhaseRecord, PoolRecord, UpdateRecord

#: An update in which heat or hardware held this share of samples down tells nothing about our clocks.
_SLOWED_FRACTION = 0.05
#: Updates whose plan is remembered for responses that are consumed later; no trainer consumes older ones.
_REMEMBERED_PLANS = 256


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
        self._plans = plans
        self._measures = Measures(energy, clocks)
        self._arrangement = arrangement
        self._lines = PhaseLines(self._measures, arrangement)
        self._plans_at_begin: deque[int | None] = deque(maxlen=_REMEMBERED_PLANS)

    def phase_events(
        self,
        occurrences: Sequence[Occurrence],
        label: int | None,
        begin_s: float,
        end_s: float,
        *,
        all_nodes_measured: bool = True,
    ) -> list[dict[str, Any]]:
        """Ledger lines of phases that belong to no record, or of one whose record is built."""
        events = self._lines.of(occurrences, label, begin_s, end_s, all_nodes_measured=all_nodes_measured)
        self._measures.forget()
        return events

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
        found = shares(update.occurrences, begin_s, end_s, self._arrangement, self._measures.everyone())
        by_gpu = self._measures.joules([(begin_s, end_s)]) if end_s > begin_s else {}
        energy_j = total_j(by_gpu) if all_nodes_measured else None
        phase_j = {
            phase: total_j(self._measures.joules(share.intervals, share.gpus)) if all_nodes_measured else None
            for phase, share in found.items()
        }
        statistics = self._measures.statistics([(begin_s, end_s)])
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
        known = all_nodes_measured and not (intervals and self._measures.unresolved(intervals))
        return PhaseRecord(
            elapsed_s=seconds(intervals),
            energy_j=(total_j(self._measures.joules(intervals, share.gpus)) if intervals else 0.0)
            if known
            else None,
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
                requested_mhz=self._measures.requested_mhz(role, own),
                achieved_mhz=self._measures.statistics(own, members).achieved_mhz,
                energy_j=total_j(self._measures.joules(counted, members))
                if counted and all_nodes_measured
                else None,
                busy_s=seconds(own),
                wait_s=wait_s,
            )
            if separate:
                waits[role] = {
                    "wait_s": wait_s,
                    "energy_j": (total_j(self._measures.joules(waiting, members)) if waiting else 0.0)
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
            load = self._measures.statistics(own, arrangement.members(role)).busy_fraction
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
