"""A recorded run as another policy would have steered it: its plans, and an estimate of the outcome.

The policy meets the recorded updates one by one. An update that ran under the very clocks this policy wishes for
stands as it was measured; any other is moved to them by what clocks did in this run (:mod:`.clock_effect`). So the
policy hears of its own trials. Where it wishes for a clock of which the run has no example, nothing more can be said,
and the replay ends. Plans take effect as many updates late as they usually did in the recorded run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from eerl_controller import ClockPlan, Controller, RecordError, UpdateRecord
from eerl_launch.clock_effect import ClockEffect
from eerl_launch.ledger_records import NO_CONTROLLER, ReplayError, controller_of, record_from_dict
from eerl_launch.moved_update import move
from eerl_launch.update_lines import plan_fields
from eerl_launch.work_parts import GOVERNOR, Clocks


@dataclass(slots=True)
class Sums:
    """Seconds and joules of the updates compared."""

    elapsed_s: float = 0.0
    energy_j: float = 0.0

    def add(self, record: UpdateRecord) -> None:
        """Count one update whose length and energy are known."""
        self.elapsed_s += record.elapsed_s or 0.0
        self.energy_j += record.energy_j or 0.0


@dataclass(slots=True)
class WhatIf:
    """Plans as they changed (with the update after which), what was compared, and what it rests on.

    ``would_be``, ``recorded`` and ``governor`` are sums over the same updates. Counts are of updates: ``measured``
    ran under the clocks wished for; ``extrapolated`` are those estimated below every recorded clock; ``left_out``
    were seen by the policy, but their clocks, phases or energy are not known.
    """

    plans: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list)
    would_be: Sums = field(default_factory=Sums)
    recorded: Sums = field(default_factory=Sums)
    governor: Sums = field(default_factory=Sums)
    measured: int = 0
    estimated: int = 0
    extrapolated: int = 0
    idle_unknown: int = 0
    left_out: int = 0
    passed_over: int = 0
    learnt_from: int = 0
    updates: int = 0
    recorded_updates: int = 0
    #: What was simulated in the recorded run, as ``h100:2x8``; None on real GPUs.
    simulated: str | None = None
    #: Why the replay ended before the ledger did; None when it did not.
    stopped: str | None = None

    def saving(self, which: Sums) -> float | None:
        """Energy saved per valid training token against the governor, a fraction; None when nothing was compared."""
        return 1.0 - which.energy_j / self.governor.energy_j if self.governor.energy_j > 0.0 else None

    def throughput_change(self, which: Sums) -> float | None:
        """Change of throughput against the governor, a fraction, negative when slower."""
        return self.governor.elapsed_s / which.elapsed_s - 1.0 if which.elapsed_s > 0.0 else None


class _Course:
    """One policy's way through the recorded updates."""

    def __init__(self, controller: Controller, effect: ClockEffect, lag: int) -> None:
        self.result = WhatIf(learnt_from=effect.updates)
        self._controller = controller
        self._effect = effect
        self._shown: dict[str, Any] = {}
        self._in_force: list[int] = []
        self._wishes: deque[ClockPlan] = deque(maxlen=lag + 1)
        self._note(None)

    def take(self, record: UpdateRecord, clocks: Clocks | None) -> bool:
        """One recorded update, None clocks being mixed; False when nothing can be said of the plan wished for."""
        self._wishes.append(self._controller.plan)
        plan, result = self._wishes[0], self.result
        wished = Clocks(plan.generation_mhz, plan.training_mhz, plan.idle_mhz)
        self._in_force.append(plan.plan_id)
        if clocks is None or "operator_hold" in record.flags:
            result.left_out += 1
            self._observe(replace(record, plan_id=None, oldest_request_plan_id=None))
            return True
        if clocks != wished:
            result.stopped = self._effect.unknown(wished) or self._effect.unknown(clocks)
            if result.stopped is not None:
                return False
        made = move(record, self._effect, clocks, wished)
        self._count(record, made, clocks, wished)
        mine = replace(made or record, plan_id=plan.plan_id if made is not None else None)
        self._observe(replace(mine, oldest_request_plan_id=self._oldest(record)))
        return True

    def _count(self, record: UpdateRecord, made: UpdateRecord | None, clocks: Clocks, wished: Clocks) -> None:
        result, effect = self.result, self._effect
        known = effect.unknown(clocks) is None
        governor = move(record, effect, clocks, GOVERNOR) if known else None
        if made is None or governor is None or None in (made.energy_j, governor.energy_j, record.energy_j):
            result.left_out += 1
            return
        for sums, item in ((result.would_be, made), (result.recorded, record), (result.governor, governor)):
            sums.add(item)
        if clocks == wished:
            result.measured += 1
        else:
            result.estimated += 1
            result.extrapolated += effect.extrapolates(wished)
            result.idle_unknown += effect.idle_unknown(wished)

    def _oldest(self, record: UpdateRecord) -> int | None:
        """In-flight: the plan of this course under which the oldest consumed response was begun."""
        if record.oldest_request_plan_id is None:
            return None
        age = math.ceil(record.policy_age_max) if record.policy_age_max is not None else 1
        return self._in_force[-1 - age] if age < len(self._in_force) else self._in_force[0]

    def _observe(self, record: UpdateRecord) -> None:
        self.result.updates += 1
        try:
            self._controller.observe(record)
        except RecordError:
            self.result.passed_over += 1
        self._note(record.update)

    def _note(self, after: int | None) -> None:
        shape = plan_fields(self._controller, self._controller.plan)
        if any(shape[key] != self._shown.get(key) for key in ("plan_id", "reason", "state")):
            self._shown = shape
            self.result.plans.append((after, shape))


def usual_lag(issued: Mapping[Any, int], updates: Sequence[UpdateRecord]) -> int:
    """How many updates late plans took effect: by plan, the updates seen before it was made and before it ruled."""
    first: dict[Any, int] = {}
    for index, record in enumerate(updates):
        if record.plan_id is not None:
            first.setdefault(record.plan_id, index)
    lags = [first[plan_id] - seen for plan_id, seen in issued.items() if seen > 0 and plan_id in first]
    return max(round(median(lags)), 0) if lags else 0


def what_if(events: Iterable[Mapping[str, Any]], changes: Mapping[str, Any]) -> WhatIf:
    """The ledger's updates under other settings (``changes`` to the recorded ones).

    Raises :class:`ReplayError` when no controller was ever asked, or a record cannot be used by this eerl.
    """
    controller: Controller | None = None
    clocks: dict[Any, Clocks] = {}
    issued: dict[Any, int] = {}
    simulated: str | None = None
    updates: list[tuple[UpdateRecord, Clocks | None]] = []
    for event in events:
        kind = event.get("ev")
        if kind == "start":
            simulated = event.get("simulated")
        elif kind == "controller" and controller is None:
            controller = controller_of(event, changes)
        elif kind == "plan":
            mhz = [event.get(f"{name}_mhz") for name in ("generation", "training", "idle")]
            clocks[event.get("plan_id")] = Clocks(*mhz)
            issued.setdefault(event.get("plan_id"), len(updates))
        elif kind == "update" and event.get("record") and controller is not None:
            record = record_from_dict(event["record"])
            updates.append((record, clocks.get(record.plan_id)))
    if controller is None:
        raise ReplayError(NO_CONTROLLER)
    known = [(record, at) for record, at in updates if at is not None and "operator_hold" not in record.flags]
    effect = ClockEffect(known, controller.mode, controller.grid)
    course = _Course(controller, effect, usual_lag(issued, [record for record, _ in updates]))
    course.result.recorded_updates, course.result.simulated = len(updates), simulated
    for record, at in updates:
        if not course.take(record, at):
            break
    return course.result
