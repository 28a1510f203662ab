"""What goes wrong in real jobs, and that the controller stays harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller.examples import QUIET, controller_for, locked, run_until, simple, step
from controller.workload import BALANCED, Job, play

from eerl_controller import (
    ClockGrid,
    Controller,
    ExecutionMode,
    PhaseRecord,
    Reason,
    RecordError,
    Settings,
    State,
)
from eerl_controller.references import References
from eerl_controller.work import observe_work


def test_without_counts_the_governor_stays_and_the_reason_is_said() -> None:
    """Nothing can be judged without valid training tokens."""
    controller, job = controller_for(QUIET), Job(QUIET, 1)

    truth = play(controller, job, 100, edit=lambda index: {"valid_tokens": None})

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.MISSING_COUNTS
    assert "valid_tokens" in controller.plan.note
    assert controller.saving is None


def test_counts_that_vanish_after_the_lock_give_the_clocks_back() -> None:
    """A lock that cannot be judged is not kept: twenty blind updates are enough."""
    controller, job = controller_for(QUIET), Job(QUIET, 2)
    run_until(controller, job, locked)

    for _ in range(19):
        step(controller, job, valid_tokens=None)
    assert controller.state is State.LOCKED
    step(controller, job, valid_tokens=None)

    assert controller.state is State.SUSPENDED
    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.MISSING_COUNTS


def test_without_energy_nothing_is_searched() -> None:
    """Lower clocks that cannot be shown to save are not tried."""
    controller, job = controller_for(QUIET), Job(QUIET, 3)

    truth = play(controller, job, 60, edit=lambda index: {"energy_j": None})

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.MISSING_ENERGY


def test_energy_lost_after_the_lock_suspends_and_tries_again_later() -> None:
    """Governor for now; with energy back the lock is confirmed anew."""
    controller, job = controller_for(QUIET), Job(QUIET, 4)
    run_until(controller, job, locked)
    lock = controller.plan

    for _ in range(20):
        step(controller, job, flags={"partial_energy"})

    assert controller.state is State.SUSPENDED
    assert controller.plan.reason is Reason.MISSING_ENERGY
    run_until(controller, job, lambda c: c.state is State.CONFIRMATION)
    assert controller.plan.generation_mhz == lock.generation_mhz
    run_until(controller, job, locked)


def test_clocks_that_are_not_honoured_are_given_up_after_repeated_attempts() -> None:
    """No tug-of-war with whoever sets the clocks (field case C07)."""
    controller, job = controller_for(QUIET), Job(QUIET, 5)
    run_until(controller, job, locked)

    held, suspensions, before = 0, 0, controller.state
    for _ in range(600):
        flags = set() if controller.plan.is_governor else {"not_honoured"}
        held += not controller.plan.is_governor
        step(controller, job, flags=flags)
        suspensions += controller.state is State.SUSPENDED and before is not State.SUSPENDED
        before = controller.state

    assert controller.state is State.FAILED
    assert controller.plan.reason is Reason.NOT_HONOURED
    assert controller.plan.is_governor
    assert suspensions == 2
    assert held == 9


def test_a_plan_that_never_takes_effect_is_withdrawn() -> None:
    """No broker, no agent: the wish is not repeated for ever."""
    controller, job = controller_for(QUIET), Job(QUIET, 6)
    run_until(controller, job, lambda c: c.state is State.SEARCH)

    for _ in range(10):
        controller.observe(job.update(None, None, 0))

    assert controller.state is State.SUSPENDED
    assert controller.plan.reason is Reason.NOT_APPLIED


def test_an_operators_hold_changes_nothing() -> None:
    """Fifty updates under the operator's hand: same state, same wish, then on as before."""
    controller, job = controller_for(QUIET), Job(QUIET, 7)
    run_until(controller, job, locked)
    before = controller.plan

    for _ in range(50):
        record = job.update(None, None, None, flags={"operator_hold"})
        controller.observe(record)

    assert controller.plan == before
    assert controller.state is State.LOCKED
    run_until(controller, job, lambda c: "monitored" in c.plan.note)


def test_a_gap_holds_the_plan_and_breaks_the_trial() -> None:
    """Two of three updates before a gap do not make a trial with one after it."""
    controller, job = controller_for(QUIET), Job(QUIET, 8)
    run_until(controller, job, lambda c: c.state is State.SEARCH)
    for _ in range(3):
        step(controller, job)
    trial = controller.plan
    job.done += 5

    kept = [step(controller, job).plan_id == trial.plan_id for _ in range(3)]

    assert kept == [True, True, False], "three whole updates after the gap"


def test_a_trainer_that_restarts_from_an_earlier_update_is_a_gap_not_an_error() -> None:
    """Numbers are labels (field case R04): they may go back."""
    controller, job = controller_for(QUIET), Job(QUIET, 9)
    run_until(controller, job, locked)
    before = controller.plan
    job.done = 3

    step(controller, job)

    assert controller.plan == before


def test_a_gap_ages_the_reference() -> None:
    """Updates that were lost count as time without a governor observation."""
    controller = controller_for(QUIET, reference_max_age_updates=100)
    job = Job(QUIET, 10)
    run_until(controller, job, locked)
    job.done += 200

    step(controller, job)

    assert controller.state is State.REMEASURE
    assert controller.plan.reason is Reason.REFERENCE_AGE


@pytest.mark.parametrize(
    "bad",
    [
        lambda: simple(50, plan_id=999),
        lambda: simple(50, plan_id=-1),
        lambda: simple(17),
        lambda: simple(50, phases={"generation": PhaseRecord(elapsed_s=300.0)}),
        lambda: "not a record",
    ],
    ids=["plan of the future", "plan of no time", "same update twice", "phases overlap", "no record"],
)
def test_what_cannot_be_true_is_refused_and_changes_nothing(bad) -> None:  # type: ignore[no-untyped-def]
    """RecordError, and the controller is as it was."""
    controller = controller_for(QUIET)
    for index in range(18):
        controller.observe(simple(index))
    before, plan = controller.snapshot(), controller.plan

    with pytest.raises(RecordError):
        controller.observe(bad())

    assert controller.snapshot() == before
    assert controller.plan == plan


def test_mixed_updates_are_no_evidence_but_count_in_the_totals() -> None:
    """They count, and claim nothing for a setting that no settled update has shown."""
    controller, job = controller_for(QUIET), Job(QUIET, 11)
    run_until(controller, job, lambda c: c.state is State.SEARCH)
    trial = controller.plan

    for _ in range(8):
        controller.observe(job.update(trial.generation_mhz, trial.training_mhz, None))

    assert controller.plan.plan_id == trial.plan_id
    assert controller.saving is not None
    assert controller.saving.updates == controller.snapshot()["seen"]
    assert controller.saving.energy_saving == pytest.approx(0.0)


def test_near_the_end_no_new_search_begins() -> None:
    """With fewer updates left than a search repays, the governor stays and says why."""
    controller, job = controller_for(QUIET), Job(QUIET, 12)

    truth = play(controller, job, 30, tell_remaining=True)

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.NEAR_END


def test_near_the_end_the_best_passing_setting_is_taken_without_more_trials() -> None:
    """What was learnt is used while there is time to use it."""
    controller, job = controller_for(BALANCED), Job(BALANCED, 13)

    truth = play(controller, job, 60, tell_remaining=True)

    trials = {plan.plan_id for plan in truth.plans[38:] if plan.reason is Reason.TRIAL}
    assert len(trials) <= 1


def test_a_time_limit_is_an_end_too() -> None:
    """remaining_s stands in for remaining_updates."""
    controller, job = controller_for(QUIET), Job(QUIET, 14)

    truth = play(controller, job, 30, edit=lambda index: {"remaining_s": 500.0})

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.NEAR_END


def test_a_table_without_a_lower_clock_is_a_permanent_no() -> None:
    """Limits that leave nothing to choose fail at once and say which limits."""
    grid = ClockGrid([1980], 1980)

    controller = Controller(Settings(), ExecutionMode.COLOCATED_SYNC, grid)

    assert controller.state is State.FAILED
    assert controller.plan.reason is Reason.NO_CLOCKS
    assert "1980" in controller.plan.note
    controller.observe(simple(1))
    assert controller.plan.is_governor


def test_hardware_slowdown_is_no_evidence() -> None:
    """A hot machine during the trial: the trial waits for updates that count."""
    controller, job = controller_for(QUIET), Job(QUIET, 15)
    run_until(controller, job, lambda c: c.state is State.SEARCH)
    trial = controller.plan

    for _ in range(4):
        step(controller, job, flags={"hardware_slowdown"})

    assert controller.plan.plan_id == trial.plan_id


def test_nothing_is_claimed_for_updates_slowed_by_heat() -> None:
    """The governor would have been slowed too: such updates count on both sides of the estimate."""
    controller, job = controller_for(QUIET), Job(QUIET, 15)
    run_until(controller, job, locked)
    before = controller.saving
    assert before is not None

    for _ in range(5):
        plan = controller.plan
        record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id, flags={"hardware_slowdown"})
        controller.observe(replace(record, elapsed_s=3 * (record.elapsed_s or 0.0)))

    after = controller.saving
    assert after is not None
    assert after.updates == before.updates + 5
    assert 0.0 > after.throughput_change > before.throughput_change


def test_a_phase_that_vanishes_is_no_evidence() -> None:
    """Missing training markers must not look like a training that takes no time."""
    controller, job = controller_for(QUIET), Job(QUIET, 16)
    run_until(controller, job, locked)
    before = controller.plan

    for _ in range(25):
        record = job.update(before.generation_mhz, before.training_mhz, before.plan_id)
        phases = {name: phase for name, phase in record.phases.items() if name != "training"}
        controller.observe(replace(record, phases=phases))

    assert controller.plan.generation_mhz in (before.generation_mhz, None)
    assert controller.state in (State.LOCKED, State.SUSPENDED)


def test_a_trial_of_work_the_governor_never_did_measures_the_governor_first() -> None:
    """Responses double in the middle of the search: no verdict by extrapolation, and the search goes on."""
    controller, job = controller_for(QUIET), Job(QUIET, 17)
    run_until(controller, job, lambda c: c.state is State.SEARCH)
    job.workload = replace(QUIET, mean_tokens=2 * QUIET.mean_tokens, limit_tokens=20_000)

    run_until(controller, job, lambda c: c.state is State.REMEASURE, limit=20)

    assert controller.plan.reason is Reason.COVERAGE
    run_until(controller, job, locked)


def test_an_update_of_the_trial_that_comes_late_still_counts() -> None:
    """The way back to the governor took an update longer: it is evidence for the trial, not for the governor."""
    controller, job = controller_for(QUIET), Job(QUIET, 18)
    run_until(controller, job, lambda c: c.state is State.SEARCH)
    trial = controller.plan
    run_until(controller, job, lambda c: c.plan.is_governor)

    controller.observe(job.update(trial.generation_mhz, trial.training_mhz, trial.plan_id))

    assert len(controller.snapshot()["strategy"]["experiment"]["observations"]) == 4


def test_a_cap_below_every_clock_leaves_nothing_to_try() -> None:
    """The governor is held by its power cap below the lowest clock that may be asked for."""
    capped = replace(
        QUIET,
        generation=replace(QUIET.generation, capped_mhz=900),
        training=replace(QUIET.training, capped_mhz=900),
    )
    controller, job = controller_for(capped, min_mhz=1000), Job(capped, 19)

    truth = play(controller, job, 40)

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.NOTHING_PAYS


def test_energy_that_vanishes_during_a_trial_is_named() -> None:
    """The trial is given up with the cause, not kept waiting."""
    controller, job = controller_for(QUIET), Job(QUIET, 20)
    run_until(controller, job, lambda c: c.state is State.SEARCH)

    for _ in range(11):
        step(controller, job, flags={"partial_energy"})

    assert controller.state is State.SUSPENDED
    assert controller.plan.reason is Reason.MISSING_ENERGY


def test_a_suspension_ends_only_when_what_was_missing_is_back() -> None:
    """Another attempt without counts would hold clocks that cannot be judged."""
    controller, job = controller_for(QUIET), Job(QUIET, 21)
    run_until(controller, job, locked)

    for _ in range(20 + 60):
        step(controller, job, valid_tokens=None)
    assert controller.state is State.SUSPENDED
    step(controller, job)

    assert controller.state is State.CONFIRMATION


def test_a_lock_that_comes_to_cost_energy_is_not_kept() -> None:
    """Power stops falling with the clock: within sixty updates nothing is held that wastes."""
    controller, job = controller_for(QUIET), Job(QUIET, 22)
    run_until(controller, job, locked)
    stiff = {"static_w": 9000.0, "dynamic_w": 100.0}
    job.workload = replace(
        QUIET,
        generation=replace(QUIET.generation, **stiff),
        training=replace(QUIET.training, **stiff),
        logprob=replace(QUIET.logprob, **stiff),
        rest_w=9000.0,
    )

    for _ in range(60):
        step(controller, job)

    assert controller.state is not State.LOCKED
    wasting = 0
    for _ in range(150):
        _, saving = job.expected(controller.plan.generation_mhz, controller.plan.training_mhz)
        wasting += saving < 0.0
        step(controller, job)
    assert wasting <= 75, "trials may look for a new setting, nothing more"


def test_a_governor_update_that_would_leave_no_model_is_not_taken() -> None:
    """Phases that are marked by turns: fewer than three updates know both, so the last one with both stays."""
    references = References(ExecutionMode.COLOCATED_SYNC, window=5)
    both = {name: PhaseRecord(elapsed_s=40.0, energy_j=4e3) for name in ("generation", "training")}
    turns = [both, both, both, {"generation": both["generation"]}, {"training": both["training"]}]
    for update, phases in enumerate(turns):
        references.add(observe_work(simple(update, phases=phases)))
    model = references.model

    references.add(observe_work(simple(5, phases={"generation": both["generation"]})))

    assert model is not None
    assert references.model is not None
    assert len(references.items) == 5
