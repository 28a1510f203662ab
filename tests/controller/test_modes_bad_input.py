"""What cannot be true, or is not there: the governor or the held plan, one plain reason, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from controller.worlds import DISAGGREGATED, DRAINED, INFLIGHT, SEPARATE, Diary, controller_in, live, world

from eerl_controller import Controller, ExecutionMode, Reason, RecordError, State, UpdateRecord
from eerl_twin import Faults, FixedPlan, simulate


class Spoiled:
    """A plan source that hands records on to a controller after something happened to them."""

    def __init__(self, controller: Controller, spoil: Callable[[UpdateRecord], UpdateRecord]) -> None:
        self.controller = controller
        self._spoil = spoil

    @property
    def plan(self) -> Any:
        """The plan wished for now."""
        return self.controller.plan

    def observe(self, record: UpdateRecord) -> Any:
        """Take one spoiled update in."""
        return self.controller.observe(self._spoil(record))


def spoiled(mode: ExecutionMode, updates: int, **fields: Any) -> Controller:
    """A controller after a run in which every record had these fields instead of its own."""
    controller = controller_in(world(mode))
    simulate(world(mode), Spoiled(controller, lambda record: replace(record, **fields)), updates, 1)
    return controller


@pytest.mark.parametrize(
    "fields",
    [
        {"training_arrival_s": None},
        {"generation_arrival_s": None, "training_arrival_s": None},
        {"training_arrival_s": 0.0},
        {"generation_arrival_s": 1e6},
    ],
)
def test_a_pool_that_never_arrives_leaves_drained_updates_to_the_governor(fields: dict[str, Any]) -> None:
    """Unknown, at once, or long after the update's end: nothing can be searched, and the plan says so."""
    controller = spoiled(DRAINED, 60, **fields)

    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.MISSING_ARRIVALS
    assert "arrived" in controller.plan.note


def test_unknown_busy_fractions_leave_in_flight_updates_to_the_governor() -> None:
    """Neither fractions nor busy seconds of the pools: it is not known which pool to search first."""
    controller = spoiled(INFLIGHT, 80, generation_busy_fraction=None, training_busy_fraction=None, pools={})

    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.MISSING_BUSY
    assert "busy" in controller.plan.note


def test_busy_seconds_of_the_pools_stand_in_for_fractions() -> None:
    """The same run goes on when only the fractions are missing."""
    controller = spoiled(INFLIGHT, 80, generation_busy_fraction=None, training_busy_fraction=None)

    assert controller.state is not State.CALIBRATION


def test_synchronous_pools_need_no_pool_records() -> None:
    """Phases tell enough; without achieved clocks the governor's is taken."""
    controller = spoiled(DISAGGREGATED, 100, pools={})

    assert controller.state is State.LOCKED


@pytest.mark.parametrize("mode", SEPARATE)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"valid_tokens": None}, Reason.MISSING_COUNTS), ({"energy_j": None}, Reason.MISSING_ENERGY)],
)
def test_without_counts_or_energy_every_mode_stays_on_the_governor(
    mode: ExecutionMode, fields: dict[str, Any], reason: Reason
) -> None:
    """Nothing can be judged."""
    controller = spoiled(mode, 80, **fields)

    assert controller.plan.is_governor
    assert controller.plan.reason is reason


@pytest.mark.parametrize("mode", SEPARATE)
def test_zero_valid_tokens_now_and_then_do_no_harm(mode: ExecutionMode) -> None:
    """Every seventh update trains on nothing: it counts in the totals and nowhere else."""
    controller = controller_in(world(mode))

    def empty(record: UpdateRecord) -> UpdateRecord:
        return replace(record, valid_tokens=0) if record.update % 7 == 0 else record

    run = simulate(world(mode), Spoiled(controller, empty), 250, 1)

    totals = run.totals()
    assert totals is not None
    assert totals.energy_saving > 0.04
    assert totals.throughput_change > -0.02


@pytest.mark.parametrize("mode", SEPARATE)
@pytest.mark.parametrize(
    "field", ["elapsed_s", "energy_j", "generation_arrival_s", "training_busy_fraction", "policy_age_max"]
)
def test_not_a_number_is_refused_at_the_door(mode: ExecutionMode, field: str) -> None:
    """RecordError when the record is made; the controller never sees it."""
    _, run, _ = live(world(mode), 1)

    with pytest.raises(RecordError, match=field):
        replace(run.records[0], **{field: float("nan")})


@pytest.mark.parametrize("mode", SEPARATE)
def test_the_same_update_twice_changes_nothing(mode: ExecutionMode) -> None:
    """RecordError, and the controller is as it was."""
    controller, run, _ = live(world(mode), 70)
    before = controller.snapshot()

    with pytest.raises(RecordError):
        controller.observe(run.records[-1])

    assert controller.snapshot() == before


@pytest.mark.parametrize("mode", SEPARATE)
def test_updates_out_of_order_are_survived(mode: ExecutionMode) -> None:
    """Neighbours swapped throughout: each is a gap, which breaks trials; nothing else happens."""
    source = controller_in(world(mode))
    records = simulate(world(mode), FixedPlan(), 120, 1).records

    for first, second in zip(records[::2], records[1::2], strict=True):
        source.observe(second)
        source.observe(first)

    assert source.plan.plan_id >= 0
    assert source.summary()


@pytest.mark.parametrize("mode", SEPARATE)
@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_late_records_belong_to_the_plan_they_ran_under(mode: ExecutionMode, delay: int) -> None:
    """No update of a lowered clock becomes a governor reference, however late its record comes."""
    place = world(mode)
    source = Delayed(controller_in(place), delay)
    run = simulate(place, source, 260, 2)

    lowered = [plan for plan in run.plans if plan is not None and not plan.is_governor]
    assert len(lowered) > 20
    truth = sum(run.governor_elapsed_s[-20:])
    predicted = [source.controller.governor_prediction(record) for record in run.records[-20:]]
    assert sum(item.elapsed_s for item in predicted if item is not None) == pytest.approx(truth, rel=0.015)
    energy = sum(item.energy_j or 0.0 for item in predicted if item is not None)
    assert energy == pytest.approx(sum(run.governor_energy_j[-20:]), rel=0.02)
    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.025


class Delayed(Diary):
    """A diary whose controller hears of every update this many updates later."""

    def __init__(self, controller: Controller, delay: int) -> None:
        super().__init__(controller)
        self._delay = delay
        self._waiting: list[UpdateRecord] = []

    def observe(self, record: UpdateRecord) -> Any:
        """Hand on what is due."""
        self._waiting.append(record)
        if len(self._waiting) > self._delay:
            super().observe(self._waiting.pop(0))
        return self.plan


@pytest.mark.parametrize("mode", SEPARATE)
def test_a_run_with_everything_going_wrong_now_and_then_still_keeps_the_limit(mode: ExecutionMode) -> None:
    """Throttling, partial energy, lost, late and mixed records, on three seeds."""
    faults = Faults(
        throttle_share=0.01,
        partial_energy_share=0.03,
        lost_share=0.01,
        late_share=0.05,
        mixed_share=0.3,
    )

    for seed in range(3):
        controller, run, _ = live(world(mode, faults=faults), 300, seed)
        totals = run.totals()
        assert totals is not None
        assert totals.throughput_change > -0.025
        assert totals.energy_saving > 0.0
        assert controller.state is not State.FAILED


def test_arrivals_that_stop_coming_in_mid_run_lead_back_to_the_governor() -> None:
    """From update 60 on no pool arrives, and the work changes so that the governor is measured again."""
    controller = controller_in(world(DRAINED), reference_window=15)

    def silent(record: UpdateRecord) -> UpdateRecord:
        if record.update < 60:
            return record
        longer = 1.5 if not controller.plan.is_governor else 1.2
        return replace(
            record,
            elapsed_s=longer * (record.elapsed_s or 0.0),
            generation_arrival_s=None,
            training_arrival_s=None,
        )

    simulate(world(DRAINED), Spoiled(controller, silent), 400, 1)

    assert controller.plan.is_governor
    assert controller.plan.reason in (Reason.MISSING_ARRIVALS, Reason.NOTHING_PAYS)


class Renumbering(Diary):
    """A trainer that starts numbering anew, far away, every twenty updates."""

    def observe(self, record: UpdateRecord) -> Any:
        """Take one update in under its other number."""
        jump = 10**18 * (record.update // 20)
        return super().observe(replace(record, update=record.update + jump))


@pytest.mark.parametrize("mode", ExecutionMode)
def test_numbers_that_jump_far_are_no_lost_updates(mode: ExecutionMode) -> None:
    """A new numbering is a gap, not a run of lost updates: clocks are lowered, and the saving is worked out."""
    alone = {"generation_gpus": 8, "training_gpus": 8} if mode is ExecutionMode.COLOCATED_SYNC else {}
    place = world(mode, **alone)
    diary = Renumbering(controller_in(place, policy="eerl"))

    run = simulate(place, diary, 100, 1)

    lowered = [plan for plan in run.plans if plan is not None and not plan.is_governor]
    assert len(lowered) >= 50
    assert diary.state is not State.SUSPENDED
    found = diary.controller.saving
    assert found is None or 0.0 < found.energy_saving < 0.5
