"""The controller: records in, plans out, through one door.

It has no clock, file, socket, logger or environment; the same records give the same plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.pool_strategy import BayesPools
from eerl_controller.bayes.strategy import BayesSync
from eerl_controller.colocated import ColocatedSync
from eerl_controller.controlled import Controlled
from eerl_controller.disaggregated import DisaggregatedSync
from eerl_controller.drained import AsyncDrained
from eerl_controller.governor import GovernorPrediction
from eerl_controller.inflight import AsyncInflight
from eerl_controller.records import ClockGrid, ClockPlan, ExecutionMode, RecordError, UpdateRecord
from eerl_controller.references import References
from eerl_controller.saving import Estimate, RunningSaving
from eerl_controller.settings import Settings, SettingsError
from eerl_controller.settling import tells_at_once
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence, Strategy, fixed, measure_only
from eerl_controller.work import GENERATION_PHASES, Unusable, lost_between, observe_work, unusable_reason

SNAPSHOT_VERSION = 2
#: Phases are a partition of the update: their times may exceed its own by measurement error, not by more.
PARTITION_SLACK = 0.05
PARTITION_SLACK_S = 1.0


def _strategy(settings: Settings, mode: ExecutionMode, grid: ClockGrid, references: References) -> Strategy:
    """The strategy of a policy and an execution mode."""
    if settings.policy == "governor":
        return measure_only(Reason.POLICY_GOVERNOR, "policy governor: measuring only")
    if settings.policy == "fixed":
        waiting = (ExecutionMode.DISAGGREGATED_SYNC, ExecutionMode.ASYNC_DRAINED)
        return fixed(settings, grid, pools_wait=mode in waiting)
    synchronous = mode in (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC)
    if settings.policy == "eerl":
        kind = BayesSync if synchronous else BayesPools
        return kind(settings.for_mode(mode), grid, references, mode)
    controlled: dict[ExecutionMode, type[Controlled]] = {
        ExecutionMode.COLOCATED_SYNC: ColocatedSync,
        ExecutionMode.DISAGGREGATED_SYNC: DisaggregatedSync,
        ExecutionMode.ASYNC_DRAINED: AsyncDrained,
        ExecutionMode.ASYNC_INFLIGHT: AsyncInflight,
    }
    return controlled[mode](settings.for_mode(mode), grid, references)


class Controller:
    """Chooses clocks for the next update from the updates so far (contract 3.7)."""

    def __init__(
        self,
        settings: Settings,
        mode: ExecutionMode,
        grid: ClockGrid,
        seed: int = 0,
        prior: Mapping[str, Any] | None = None,
    ) -> None:
        """``prior`` is what :meth:`posterior` of an earlier run of the same job on the same GPUs gave."""
        self.settings = settings
        self.mode = mode
        self.grid = grid
        #: Kept for snapshots: nothing in synchronous control is drawn by lot.
        self.seed = seed
        self._references = References(mode, settings.for_mode(mode).reference_window)
        self._strategy = _strategy(settings, mode, grid, self._references)
        if prior is not None and not self._strategy.from_posterior(prior, prior.get("key") or {}):
            raise SettingsError("this prior is not one that a run of this policy and version left")
        self._saving = RunningSaving(mode, grid.governor_mhz)
        self._seen = 0
        self._last_update: int | None = None
        self._last_plan_id: int | None = None
        self._run_length = 0
        #: Valid tokens of the last update.
        self._last_valid: int | None = None

    @property
    def plan(self) -> ClockPlan:
        """The plan wished for now; before the first record it is the one to start with."""
        return self._strategy.book.plan

    @property
    def state(self) -> State:
        """What the controller is doing."""
        return self._strategy.state

    @property
    def saving(self) -> Estimate | None:
        """The run so far against the governor, search included; None before clocks were ever lowered, or with too few
        governor updates. Worked out when asked for.
        """
        return self._saving.estimate

    @property
    def running_saving(self) -> RunningSaving:
        """What :attr:`saving` is worked out from, for a caller who has it worked out elsewhere (``frozen``)."""
        return self._saving

    def summary(self) -> str:
        """One short line for a progress display."""
        return self._strategy.summary()

    def governor_prediction(self, record: UpdateRecord) -> GovernorPrediction | None:
        """The record's update as the governor would have run it, by the reference as it stands; None without one."""
        model = self._references.model
        return model.predict(record) if model is not None else None

    def observe(self, record: UpdateRecord) -> ClockPlan:
        """Take one update in; returns the plan wished for from now on.

        Update numbers are labels: they may start anywhere, and one that jumps or goes back is a gap (the trainer
        was restarted, updates were lost). Raises RecordError, and changes nothing, for what cannot be true: not a
        record, a plan that was never issued, the same update twice in a row, phases longer than their update.
        """
        self._check(record)
        previous = self._last_update
        after_gap = previous is not None and record.update != previous + 1
        lost = lost_between(previous, int(record.update))
        self._seen += 1
        self._last_update = int(record.update)
        if after_gap:
            self._last_valid = None
        evidence = self._evidence(record, after_gap=after_gap, lost=lost)
        self._last_valid = None if record.valid_tokens is None else int(record.valid_tokens)
        self._references.pass_updates(1 + lost)
        if evidence.is_reference and evidence.observation is not None:
            self._references.add(evidence.observation)
        self._saving.add(record, evidence.pair)
        self._strategy.observe(evidence)
        return self.plan

    def _check(self, record: UpdateRecord) -> None:
        if not isinstance(record, UpdateRecord):
            raise RecordError(f"observe wants an UpdateRecord, not {type(record).__name__}")
        if record.plan_id is not None and not self._strategy.book.was_issued(record.plan_id):
            raise RecordError(
                f"update {record.update} ran under plan {record.plan_id}, which was never issued"
            )
        if record.update == self._last_update:
            raise RecordError(f"update {record.update} came twice")
        if record.elapsed_s is not None:
            inner_s = self._busiest_s(record)
            if inner_s > record.elapsed_s * (1.0 + PARTITION_SLACK) + PARTITION_SLACK_S:
                raise RecordError(
                    f"phases of update {record.update} take {inner_s:.1f} s of its {record.elapsed_s:.1f} s: "
                    "they must not overlap"
                )

    def _busiest_s(self, record: UpdateRecord) -> float:
        """Seconds of all phases together; asynchronous, of those on one pool, since two pools overlap."""
        generation_s = other_s = 0.0
        for name, phase in record.phases.items():
            if name.split("/", 1)[0] in GENERATION_PHASES:
                generation_s += phase.elapsed_s or 0.0
            else:
                other_s += phase.elapsed_s or 0.0
        overlapping = self.mode in (ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT)
        return max(generation_s, other_s) if overlapping else generation_s + other_s

    def _evidence(self, record: UpdateRecord, *, after_gap: bool, lost: int) -> Evidence:
        """Whose plan the update ran under, and what it can be used for."""
        unusable = unusable_reason(record)
        if record.plan_id is not None and record.plan_id == self._last_plan_id:
            self._run_length += 1
        elif record.plan_id is not None and self._last_plan_id is None and self._seen > 1:
            # The mixed update before it was the one in which the clocks changed.
            self._run_length = 1 + self.settings.settle_updates
        else:
            self._run_length = 1
        held = unusable is Unusable.OPERATOR_HOLD
        self._last_plan_id = -1 if held else (None if record.plan_id is None else int(record.plan_id))
        needed = self.settings.settle_updates
        if self._seen <= self.settings.warmup_updates:
            needed = self._seen
        first_plan = record.plan_id == 0 and self._run_length == self._seen
        settled = self._seen > self.settings.warmup_updates if first_plan else self._run_length > needed
        timed = settled or (self._seen > self.settings.warmup_updates and tells_at_once(record))
        if self.mode is ExecutionMode.ASYNC_INFLIGHT:
            settled = timed = settled and self._carries_only_its_own(record)
        pair = self._strategy.book.pair_of(record.plan_id)
        before = self._last_valid if self.mode is ExecutionMode.ASYNC_INFLIGHT else None
        observation = observe_work(record, before) if unusable is None else None
        if observation is not None and pair is None:
            observation, unusable = None, Unusable.MIXED_PLANS
        return Evidence(
            record=record,
            observation=observation,
            unusable=unusable,
            pair=pair,
            in_force=record.plan_id == self.plan.plan_id,
            settled=settled,
            timed=timed,
            after_gap=after_gap,
            lost=lost,
            is_reference=observation is not None and settled and pair is not None and pair.is_governor,
        )

    def _carries_only_its_own(self, record: UpdateRecord) -> bool:
        """Whether no consumed request was started under an earlier plan (in-flight; paper, section 6.3).

        Where that is not known, as many updates are left out as a request may be old.
        """
        if record.oldest_request_plan_id is not None:
            return record.oldest_request_plan_id == record.plan_id
        age = math.ceil(record.policy_age_max) if record.policy_age_max is not None else 1
        return record.plan_id == 0 or self._run_length > self.settings.settle_updates + age

    def posterior(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run knows of its clocks, ready for JSON, for a later run of the same job (``bayes.warm.KEY``).

        None when it knows nothing: another policy than ``eerl``, or too few updates.
        """
        return self._strategy.posterior(key)

    def snapshot(self) -> dict[str, Any]:
        """Everything :meth:`restore` needs to go on with equal plans, ready for JSON."""
        return {
            "version": SNAPSHOT_VERSION,
            "settings": self.settings.to_dict(),
            "mode": self.mode.value,
            "grid": {"supported_mhz": list(self.grid.supported_mhz), "governor_mhz": self.grid.governor_mhz},
            "seed": self.seed,
            "seen": self._seen,
            "last_update": self._last_update,
            "last_plan_id": self._last_plan_id,
            "run_length": self._run_length,
            "last_valid": self._last_valid,
            "references": self._references.to_dict(),
            "saving": self._saving.to_dict(),
            "strategy": self._strategy.to_dict(),
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Controller:
        """The controller that wrote this snapshot. Raises ValueError for another version's."""
        if snapshot.get("version") != SNAPSHOT_VERSION:
            raise ValueError(
                f"a snapshot of version {snapshot.get('version')!r} cannot be restored; this is {SNAPSHOT_VERSION}"
            )
        grid = ClockGrid(snapshot["grid"]["supported_mhz"], snapshot["grid"]["governor_mhz"])
        settings = Settings.from_dict(snapshot["settings"])
        controller = cls(settings, ExecutionMode(snapshot["mode"]), grid, snapshot["seed"])
        controller._seen = snapshot["seen"]
        controller._last_update = snapshot["last_update"]
        controller._last_plan_id = snapshot["last_plan_id"]
        controller._run_length = snapshot["run_length"]
        controller._last_valid = snapshot["last_valid"]
        controller._references.load(snapshot["references"])
        controller._saving.load(snapshot["saving"])
        controller._strategy.load(snapshot["strategy"])
        return controller
