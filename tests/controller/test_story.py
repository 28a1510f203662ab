"""One job from its first update to its lock and beyond: feed records, look at state and plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from controller.examples import QUIET, controller_for, locked, run_until, step
from controller.workload import BALANCED, Job, play

from eerl_controller import ClockGrid, Controller, ExecutionMode, Reason, Settings, State


def test_before_the_first_record_everything_is_the_governors() -> None:
    """The first plan is the governor's, whatever comes."""
    controller = controller_for(QUIET)

    assert controller.state is State.CALIBRATION
    assert controller.plan.is_governor
    assert controller.plan.plan_id == 0
    assert controller.saving is None


def test_calibration_takes_fifteen_usable_updates_after_the_slow_ones() -> None:
    """Two slow first updates (field case R03) are not among the fifteen."""
    controller, job = controller_for(QUIET), Job(replace(QUIET, noise_sd=0.003), 1)

    count = run_until(controller, job, lambda c: c.state is State.SEARCH)

    assert count == 17


def test_a_trial_runs_between_governor_updates() -> None:
    """Algorithm 1, line 6: plans alternate between a setting and the governor."""
    controller, job = controller_for(QUIET), Job(QUIET, 2)
    run_until(controller, job, lambda c: c.state is State.SEARCH)

    kinds = []
    while controller.state is State.SEARCH:
        kinds.append("G" if controller.plan.is_governor else "t")
        step(controller, job)

    blocks = "".join(kinds).replace("G", " ").split()
    assert len(blocks) >= 2
    assert all(len(block) == 4 for block in blocks), "one settling update and three that count"


def test_a_passing_setting_is_confirmed_on_fresh_updates_and_locked_under_the_same_plan() -> None:
    """Six fresh updates after one to settle; the wish does not change, so neither does its id."""
    controller, job = controller_for(QUIET), Job(QUIET, 3)
    run_until(controller, job, lambda c: c.state is State.CONFIRMATION)
    confirmed = controller.plan

    count = run_until(controller, job, locked)

    assert count == 7
    assert controller.plan.plan_id == confirmed.plan_id
    assert controller.plan.reason is Reason.CONFIRMED
    assert "energy per token -" in controller.plan.note


def test_a_quiet_job_locks_near_the_oracle() -> None:
    """Without noise the lock keeps 98 % of the throughput and saves most of what a fixed pair can."""
    controller, job = controller_for(QUIET), Job(QUIET, 4)
    run_until(controller, job, locked)

    loss, saving = job.expected(controller.plan.generation_mhz, controller.plan.training_mhz)

    assert loss <= 0.0201
    assert saving >= 0.75 * job.oracle()[0]


def test_a_shortfall_raises_the_responsible_clock_by_a_feedback_step() -> None:
    """Training becomes bound by the clock: its clock rises by 45 MHz after a window of 20 (Table 3)."""
    controller, job = controller_for(QUIET), Job(QUIET, 5)
    run_until(controller, job, locked)
    before = controller.plan
    assert before.training_mhz is not None
    job.workload = replace(
        QUIET, training=replace(QUIET.training, per_valid_s=QUIET.training.per_valid_s * 1.03)
    )

    count = run_until(controller, job, lambda c: c.plan.plan_id != before.plan_id)

    assert count == 20
    assert controller.plan.reason is Reason.SHORTFALL
    assert controller.plan.training_mhz == before.training_mhz + 45
    assert controller.plan.generation_mhz == before.generation_mhz


def test_a_large_shortfall_raises_by_the_large_step() -> None:
    """Above 4 % loss the step is 90 MHz."""
    controller, job = controller_for(QUIET), Job(QUIET, 5)
    run_until(controller, job, locked)
    before = controller.plan
    job.workload = replace(
        QUIET, training=replace(QUIET.training, per_valid_s=QUIET.training.per_valid_s * 1.12)
    )

    run_until(controller, job, lambda c: c.plan.plan_id != before.plan_id)

    assert controller.plan.reason is Reason.SHORTFALL
    assert (
        controller.plan.training_mhz is None
        or controller.plan.training_mhz == (before.training_mhz or 0) + 90
    )


def test_margin_permits_a_lower_clock_that_is_confirmed_first() -> None:
    """When the work gets less bound by the clock, monitoring goes lower, step by step."""
    controller, job = controller_for(QUIET), Job(QUIET, 6)
    run_until(controller, job, locked)
    before = controller.plan
    lowered_mhz = (before.training_mhz or 0) - 45
    job.workload = replace(QUIET, training=replace(QUIET.training, clock_bound=0.15))

    run_until(controller, job, lambda c: c.plan.plan_id != before.plan_id)

    assert controller.state is State.CONFIRMATION
    assert controller.plan.reason is Reason.MARGIN
    assert (controller.plan.generation_mhz, controller.plan.training_mhz) == (None, lowered_mhz)
    run_until(controller, job, locked)
    assert controller.plan.training_mhz == lowered_mhz


def test_work_outside_the_references_measures_the_governor_again() -> None:
    """Responses twice as long: ten of the last twenty updates are outside, and the governor is asked."""
    controller, job = controller_for(QUIET), Job(QUIET, 7)
    run_until(controller, job, locked)
    before = controller.plan
    job.workload = replace(QUIET, mean_tokens=2 * QUIET.mean_tokens, limit_tokens=20_000)

    count = run_until(controller, job, lambda c: c.state is State.REMEASURE)

    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.COVERAGE
    assert count == 10
    run_until(controller, job, lambda c: c.state is State.CONFIRMATION)
    assert controller.plan.reason is Reason.REJUDGING
    assert controller.plan.generation_mhz == before.generation_mhz
    run_until(controller, job, locked)


def test_a_governor_that_changed_is_calibrated_anew() -> None:
    """The enforced power limit drops (field case C08): the old references describe another machine."""
    controller, job = controller_for(QUIET), Job(QUIET, 8)
    run_until(controller, job, locked)
    job.workload = replace(
        QUIET,
        generation=replace(QUIET.generation, per_generated_s=QUIET.generation.per_generated_s * 1.3),
        training=replace(QUIET.training, per_valid_s=QUIET.training.per_valid_s * 1.3),
    )

    run_until(controller, job, lambda c: c.state is State.CALIBRATION)

    assert "the governor has changed" in controller.plan.note
    run_until(controller, job, locked)
    loss, saving = job.expected(controller.plan.generation_mhz, controller.plan.training_mhz)
    assert loss <= 0.022
    assert saving > 0.02


def test_an_old_reference_is_measured_again() -> None:
    """Knowing that there still is a saving costs seven updates of five hundred."""
    controller = controller_for(QUIET, reference_max_age_updates=60)
    job = Job(QUIET, 9)
    run_until(controller, job, locked)

    run_until(controller, job, lambda c: c.state is State.REMEASURE)

    assert controller.plan.reason is Reason.REFERENCE_AGE
    run_until(controller, job, locked)


def test_every_change_of_state_is_in_the_table_and_each_plan_says_why() -> None:
    """A long noisy run: no silent plan, no grid clock that does not exist."""
    controller, job = controller_for(BALANCED), Job(BALANCED, 10)

    truth = play(controller, job, 400)

    allowed = {None, *BALANCED.grid.supported_mhz}
    assert all(plan.generation_mhz in allowed and plan.training_mhz in allowed for plan in truth.plans)
    assert all(plan.note for plan in truth.plans)
    ids = [plan.plan_id for plan in truth.plans]
    assert ids == sorted(ids)


def test_one_id_is_one_pair_of_clocks() -> None:
    """Attribution by id is only right when an id never changes its meaning."""
    controller, job = controller_for(BALANCED), Job(BALANCED, 11)

    meanings: dict[int, tuple[int | None, int | None]] = {}
    for plan in play(controller, job, 300).plans:
        pair = (plan.generation_mhz, plan.training_mhz)
        assert meanings.setdefault(plan.plan_id, pair) == pair


@pytest.mark.parametrize("lag", [1, 2])
def test_plans_that_take_effect_late_are_attributed_right(lag: int) -> None:
    """Late counts make a plan wait an update or two; the lock is as good."""
    controller, job = controller_for(QUIET), Job(QUIET, 12)

    truth = play(controller, job, 200, lag=lag)

    assert "locked" in truth.states
    loss, saving = job.expected(controller.plan.generation_mhz, controller.plan.training_mhz)
    assert loss <= 0.021
    assert saving >= 0.6 * job.oracle()[0]


def test_the_running_saving_includes_the_search_and_is_near_the_truth() -> None:
    """The progress line's number is of the whole run."""
    controller, job = controller_for(QUIET), Job(QUIET, 13)

    truth = play(controller, job, 200)

    estimate = controller.saving
    assert estimate is not None and estimate.energy_saving is not None
    assert estimate.energy_saving == pytest.approx(truth.saving, abs=0.005)
    assert -estimate.throughput_change == pytest.approx(truth.loss, abs=0.005)
    assert estimate.updates == 200


def test_progress_is_one_short_line_in_every_state() -> None:
    """The line names state and clocks."""
    controller, job = controller_for(BALANCED), Job(BALANCED, 14)

    for _ in range(150):
        line = controller.summary()
        assert "\n" not in line and len(line) <= 140
        assert line.startswith(controller.state.value)
        step(controller, job)


def test_fixed_clocks_hold_from_the_start_snapped_and_clamped() -> None:
    """1234 MHz on an uneven table with a limit (field case C05)."""
    grid = ClockGrid([345, 360, 510, 1200, 1260, 1980], 1980)
    settings = Settings(policy="fixed", fixed_generation_mhz=1234, fixed_training_mhz=3000, max_mhz=1300)

    controller = Controller(settings, ExecutionMode.COLOCATED_SYNC, grid)

    assert controller.state is State.FIXED
    assert (controller.plan.generation_mhz, controller.plan.training_mhz) == (1260, 1260)
    assert "1234" in controller.plan.note and "3000" in controller.plan.note
    first = controller.plan
    step(controller, Job(QUIET, 1))
    assert controller.plan == first


def test_measuring_only_never_wishes_for_a_clock() -> None:
    """Policy governor."""
    controller = controller_for(QUIET, policy="governor")

    truth = play(controller, Job(QUIET, 1), 60)

    assert controller.state is State.MEASURE_ONLY
    assert controller.plan.reason is Reason.POLICY_GOVERNOR
    assert all(plan.is_governor for plan in truth.plans)
    assert controller.governor_prediction(truth.records[-1]) is not None


def test_a_restored_controller_goes_on_with_the_same_plans() -> None:
    """Snapshot through JSON at any update: the rest of the run is equal, bit for bit."""
    records = play(controller_for(BALANCED), Job(BALANCED, 16), 220).records
    original = controller_for(BALANCED)
    copies: list[Controller] = []

    for index, record in enumerate(records):
        if index % 13 == 5:
            copies.append(Controller.restore(json.loads(json.dumps(original.snapshot()))))
        plan = original.observe(record)
        for copy in copies:
            assert copy.observe(record) == plan
            assert copy.state is original.state
        copies = copies[-3:]
    assert copies[-1].snapshot() == original.snapshot()
    assert copies[-1].saving == original.saving


def test_a_snapshot_of_another_version_is_refused() -> None:
    """Half-understood memory is worse than none."""
    snapshot = controller_for(QUIET).snapshot()
    snapshot["version"] = 99

    with pytest.raises(ValueError, match="version 99"):
        Controller.restore(snapshot)
