"""Policy eerl over whole runs of worlds that are not the twin's: what it keeps, saves, and comes to rest at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from controller.examples import QUIET, controller_for, step
from controller.workload import (
    BALANCED,
    COMPUTE_BOUND,
    LONG_GENERATION,
    MEMORY_BOUND,
    WORKLOADS,
    Job,
    Phase,
    Workload,
    play,
)

from eerl_controller import (
    TRANSITIONS,
    ClockGrid,
    Controller,
    ExecutionMode,
    PhaseRecord,
    Reason,
    RecordError,
    Settings,
    State,
)
from eerl_controller.bayes.sample import Clocks
from eerl_controller.bayes.strategy import BayesSync
from eerl_controller.bayes.time_prior import response_row


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_allowance_is_kept_and_used(workload: Workload) -> None:
    """Three seeds of 300 updates: never more than 2 % over the whole run, and most of what it buys is saved."""
    losses, savings = [], []

    for seed in range(3):
        job = Job(workload, seed)
        truth = play(controller_for(workload, policy="eerl"), job, 300)
        losses.append(truth.loss)
        savings.append(truth.saving)

    assert max(losses) <= 0.021
    assert fmean(savings) >= 0.55 * job.oracle()[0]


def test_a_told_horizon_is_made_use_of() -> None:
    """When the trainer says how many updates are left, no less is saved than when it does not."""
    told = [
        play(controller_for(BALANCED, policy="eerl"), Job(BALANCED, seed), 250, tell_remaining=True)
        for seed in range(4)
    ]
    untold = [play(controller_for(BALANCED, policy="eerl"), Job(BALANCED, seed), 250) for seed in range(4)]

    assert max(truth.loss for truth in told) <= 0.021
    assert fmean(truth.saving for truth in told) >= fmean(truth.saving for truth in untold) - 0.005


def test_a_tighter_allowance_is_kept_too() -> None:
    """Half a percent: less is saved, and half a percent is what is lost at most."""
    for seed in range(3):
        truth = play(
            controller_for(BALANCED, policy="eerl", max_throughput_loss=0.005), Job(BALANCED, seed), 250
        )

        assert truth.loss <= 0.0055


def test_no_loss_allowed_takes_what_is_free() -> None:
    """Nothing of generation follows the clock: at 0 % its clock is lowered and a lot saved, for 0.3 % at most."""
    free = replace(BALANCED, generation=replace(BALANCED.generation, clock_bound=0.0), noise_sd=0.004)

    for seed in range(3):
        truth = play(controller_for(free, policy="eerl", max_throughput_loss=0.0), Job(free, seed), 300)

        assert truth.saving >= 0.05
        assert truth.loss <= 0.003


def test_no_loss_allowed_leaves_what_is_not_free() -> None:
    """Everything follows the clock: at 0 % no more than 0.3 % is lost in finding that out."""
    for seed in range(3):
        job = Job(COMPUTE_BOUND, seed)
        truth = play(controller_for(COMPUTE_BOUND, policy="eerl", max_throughput_loss=0.0), job, 300)

        assert truth.loss <= 0.003


def test_every_change_of_state_is_a_legal_one() -> None:
    """Over a run with all that happens in it, states follow the table."""
    truth = play(controller_for(BALANCED, policy="eerl"), Job(BALANCED, 2), 300)

    for before, after in pairwise(truth.states):
        assert after == before or State(after) in TRANSITIONS[State(before)]
    assert {"calibration", "search", "locked", "remeasure"} <= set(truth.states)


@pytest.mark.parametrize("max_mhz", [600, 900])
def test_no_trial_where_the_next_clock_is_too_far(max_mhz: int) -> None:
    """Between the governor and the clocks allowed lies a gap: a short run does not pay for the leap into it."""
    controller, job = controller_for(COMPUTE_BOUND, policy="eerl", max_mhz=max_mhz), Job(COMPUTE_BOUND, 1)

    truth = play(controller, job, 60, tell_remaining=True)

    assert truth.loss <= 0.02
    assert controller.state is State.SUSPENDED


def test_the_first_trial_lowers_both_clocks_after_six_updates() -> None:
    """Six usable governor updates, then both clocks at nine tenths (section 6.1)."""
    controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 3)

    for index in range(40):
        step(controller, job, remaining_updates=300 - index)
        if not controller.plan.is_governor:
            break

    assert job.done <= 10
    assert controller.state is State.SEARCH
    assert controller.plan.reason is Reason.TRIAL
    assert controller.plan.generation_mhz == pytest.approx(0.9 * 1980, abs=15)
    assert controller.plan.training_mhz == pytest.approx(0.9 * 1980, abs=15)


def test_a_run_too_short_to_repay_a_trial_is_left_alone() -> None:
    """Twelve updates in all: nothing is tried."""
    controller = controller_for(QUIET, policy="eerl")

    truth = play(controller, Job(QUIET, 4), 12, tell_remaining=True)

    assert all(plan.is_governor for plan in truth.plans)


def test_work_that_follows_the_clock_costs_no_more_than_the_allowance() -> None:
    """Physics at its worst, a short run: trials stay within 2 % although nothing is known of the clocks."""
    stiff = replace(
        BALANCED,
        generation=replace(BALANCED.generation, clock_bound=1.0),
        training=replace(BALANCED.training, clock_bound=1.0),
        logprob=replace(BALANCED.logprob, clock_bound=1.0),
    )

    for seed in range(3):
        truth = play(controller_for(stiff, policy="eerl"), Job(stiff, seed), 60, tell_remaining=True)

        assert truth.loss <= 0.021


def test_the_same_records_give_the_same_plans() -> None:
    """Two controllers, one run: no lot is drawn."""
    first, second = controller_for(BALANCED, policy="eerl"), controller_for(BALANCED, policy="eerl")

    truth = play(first, Job(BALANCED, 5), 120)

    for record, plan in zip(truth.records, truth.plans, strict=True):
        assert second.plan == plan
        second.observe(record)
    assert second.plan == first.plan


@pytest.mark.parametrize("at", [3, 9, 20, 90])
def test_a_snapshot_goes_on_with_the_same_plans(at: int) -> None:
    """Written as JSON and restored in calibration, in search and under the lock."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 6)
    play(controller, job, at)

    copy = Controller.restore(json.loads(json.dumps(controller.snapshot(), allow_nan=False)))
    for _ in range(60):
        plan = controller.plan
        record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
        assert copy.observe(record) == controller.observe(record)


def test_memory_does_not_grow() -> None:
    """A snapshot after 1,600 updates is no larger than one after 800, when all kinds were there, but for digits."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 7)

    play(controller, job, 800)
    before = len(json.dumps(controller.snapshot()))
    play(controller, job, 800)

    assert len(json.dumps(controller.snapshot())) < 1.15 * before


def test_without_phases_whole_updates_are_judged_by_trials() -> None:
    """Records without phases: the policy of trials takes over, under the same plan numbers, and saves."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 8)

    for index in range(250):
        plan = controller.plan
        controller.observe(
            replace(
                job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id), phases={}, update=index + 1
            )
        )
    copy = Controller.restore(json.loads(json.dumps(controller.snapshot())))

    assert job.truth.saving > 0.02
    assert copy.plan == controller.plan and copy.state is controller.state


def test_without_energy_nothing_begins() -> None:
    """Energy unknown: the governor, and the plan says what is missing."""
    controller = controller_for(BALANCED, policy="eerl")

    truth = play(
        controller, Job(BALANCED, 9), 60, edit=lambda _: {"energy_j": None, "flags": {"partial_energy"}}
    )

    assert all(plan.is_governor for plan in truth.plans)
    assert controller.plan.reason is Reason.MISSING_ENERGY


def test_clocks_that_are_not_honoured_are_given_up_at_last() -> None:
    """Every lowered update is flagged: governor for a while, three times, then for ever."""
    controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 10)

    for _ in range(400):
        lowered = not controller.plan.is_governor
        step(controller, job, flags={"not_honoured"} if lowered else set())

    assert controller.state is State.FAILED
    assert controller.plan.is_governor


def test_an_operators_hold_is_neither_evidence_nor_loss() -> None:
    """Twenty held updates: same plan, same belief about what was lost."""
    controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 11)
    play(controller, job, 60)
    plan = controller.plan

    for _ in range(20):
        controller.observe(job.update(None, None, plan.plan_id, flags={"operator_hold"}))

    assert controller.plan == plan


def test_lost_and_late_records_keep_the_allowance() -> None:
    """Every 9th record is lost, every 7th comes under an older plan: no wrong loss, no error."""
    for seed in range(3):
        controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, seed)
        old = controller.plan
        for index in range(250):
            plan = old if index % 7 == 6 else controller.plan
            record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
            old = controller.plan
            if index % 9 != 8:
                controller.observe(record)

        assert job.truth.loss <= 0.021
        assert job.truth.saving > 0.03


def test_a_plan_never_issued_changes_nothing() -> None:
    """A RecordError leaves belief and plan as they were."""
    controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 12)
    play(controller, job, 40)
    before = json.dumps(controller.snapshot())

    with pytest.raises(RecordError):
        controller.observe(job.update(None, None, 999))

    assert json.dumps(controller.snapshot()) == before


def _slowed(phase: Phase, extra: float) -> Phase:
    """The phase when every update of it takes longer by this share."""
    return replace(
        phase,
        per_generated_s=phase.per_generated_s * (1.0 + extra),
        per_longest_s=phase.per_longest_s * (1.0 + extra),
        per_valid_s=phase.per_valid_s * (1.0 + extra),
    )


@pytest.mark.parametrize("workload", [BALANCED, MEMORY_BOUND], ids=lambda workload: workload.name)
def test_a_lasting_extra_loss_of_three_points_is_left(workload: Workload) -> None:
    """From an update on what is locked takes 3 points of an update longer: 20 updates later it is no longer held.

    Also where an update's noise is 2 points.
    """
    left = 0

    for seed in range(10):
        controller, job = controller_for(workload, policy="eerl"), Job(workload, seed)
        play(controller, job, 150)
        while controller.plan.is_governor:
            step(controller, job)
        lock = (controller.plan.generation_mhz, controller.plan.training_mhz)
        record = job.update(*lock, controller.plan.plan_id)
        controller.observe(record)
        axes = {"generation": 0, "training": 1, "logprob": 1}
        locked = [name for name, axis in axes.items() if lock[axis] is not None]
        share = sum(record.phases[name].elapsed_s or 0.0 for name in locked) / (record.elapsed_s or 1.0)
        held = 0
        for index in range(50):
            plan = controller.plan
            now = (plan.generation_mhz, plan.training_mhz)
            slowed = [name for name, axis in axes.items() if now[axis] is not None]
            extra = 0.03 / share
            job.workload = replace(
                workload, **{name: _slowed(getattr(workload, name), extra) for name in slowed}
            )
            step(controller, job)
            held += index >= 20 and now == lock
        left += held <= 3

    assert left >= 9


def test_a_quiet_lock_is_seldom_left_without_a_cause() -> None:
    """Two thousand updates of two workloads, stragglers among them: at most one alarm in five hundred."""
    alarms = 0

    for workload in (BALANCED, LONG_GENERATION):
        for seed in range(2):
            controller, job = controller_for(workload, policy="eerl"), Job(workload, seed)
            play(controller, job, 100)
            truth = play(controller, job, 500)
            reasons = [plan.reason for plan in truth.plans[100:]]
            alarms += sum(
                now is Reason.DRIFT and before is not Reason.DRIFT for before, now in pairwise(reasons)
            )

    assert alarms <= 4


def test_a_machine_that_grows_slow_under_every_clock_is_no_loss_of_the_lock() -> None:
    """All updates take 8 % longer from one on, governor's too: the allowance is kept and saving goes on."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 13)
    play(controller, job, 150)
    job.workload = replace(
        BALANCED,
        **{name: _slowed(getattr(BALANCED, name), 0.08) for name in ("generation", "training", "logprob")},
    )
    before_j, before_gov_j = job.truth.energy_j, job.truth.governor_j

    play(controller, job, 150)

    assert job.truth.loss <= 0.021
    assert 1.0 - (job.truth.energy_j - before_j) / (job.truth.governor_j - before_gov_j) > 0.04


# -- field cases -------------------------------------------------------------------------------------------------


def test_c01_settings_above_a_power_cap_are_not_tried() -> None:
    """Everything above 1500 MHz runs at 1500: such a setting is never asked for."""
    capped = replace(
        BALANCED,
        generation=replace(BALANCED.generation, capped_mhz=1500),
        training=replace(BALANCED.training, capped_mhz=1500),
        logprob=replace(BALANCED.logprob, capped_mhz=1500),
    )

    for seed in range(3):
        truth = play(controller_for(capped, policy="eerl"), Job(capped, seed), 200)

        asked = {mhz for plan in truth.plans for mhz in (plan.generation_mhz, plan.training_mhz) if mhz}
        assert asked and max(asked) < 1500
        assert truth.saving > 0.0


def test_c05_an_uneven_table_is_respected() -> None:
    """Only clocks of the table and within the limits are ever asked for."""
    uneven = replace(BALANCED, grid=ClockGrid([345, 360, 510, 795, 1050, 1290, 1500, 1665, 1800, 1980], 1980))

    truth = play(controller_for(uneven, policy="eerl", min_mhz=500, max_mhz=1700), Job(uneven, 1), 200)

    asked = {mhz for plan in truth.plans for mhz in (plan.generation_mhz, plan.training_mhz) if mhz}
    assert asked and asked <= {510, 795, 1050, 1290, 1500, 1665}


def test_c06_the_first_update_after_a_change_misleads_nobody() -> None:
    """It shows the old clocks' behaviour; three seeds keep the allowance all the same."""
    for seed in range(3):
        controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, seed)
        old = (controller.plan.generation_mhz, controller.plan.training_mhz)
        last_id = controller.plan.plan_id
        for _ in range(200):
            plan = controller.plan
            shown = old if plan.plan_id != last_id else (plan.generation_mhz, plan.training_mhz)
            last_id, old = plan.plan_id, (plan.generation_mhz, plan.training_mhz)
            controller.observe(job.update(*shown, plan.plan_id))

        assert job.truth.loss <= 0.021
        assert job.truth.saving >= 0.5 * job.oracle()[0]


def test_c08_a_power_limit_that_comes_and_goes_is_learned_anew() -> None:
    """Clocks above the new limit are not asked for once it is seen; the allowance is kept over all."""
    names = ("generation", "training", "logprob")
    caps = {"generation": 1350, "training": 1200, "logprob": 1200}

    def limited(name: str) -> Phase:
        phase, cap = getattr(BALANCED, name), caps[name]
        return replace(_slowed(phase, phase.clock_bound * (1980 / cap - 1.0)), capped_mhz=cap)

    for seed in range(2):
        controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, seed)
        play(controller, job, 100)
        job.workload = replace(BALANCED, **{name: limited(name) for name in names})
        truth = play(controller, job, 150)
        late = truth.plans[-60:]
        job.workload = BALANCED
        play(controller, job, 150)

        assert all((p.generation_mhz or 0) < 1350 and (p.training_mhz or 0) < 1200 for p in late)
        assert job.truth.loss <= 0.03
        assert job.truth.saving > 0.02


def test_r04_numbers_are_labels() -> None:
    """A resumed run begins at 301: the plans are those of a fresh run."""
    fresh, resumed = controller_for(BALANCED, policy="eerl"), controller_for(BALANCED, policy="eerl")

    truth = play(fresh, Job(BALANCED, 6), 100)

    for record, plan in zip(truth.records, truth.plans, strict=True):
        assert resumed.plan == plan
        resumed.observe(replace(record, update=record.update + 300))


def _every_seventh_is_empty(index: int) -> Mapping[str, object]:
    return {"valid_tokens": 0} if index % 7 == 6 else {}


def test_r06_updates_without_tokens_spread_no_nan() -> None:
    """They count in time and loss, and in nothing that is divided by tokens."""
    controller = controller_for(BALANCED, policy="eerl")

    truth = play(controller, Job(BALANCED, 8), 200, edit=_every_seventh_is_empty)

    json.dumps(controller.snapshot(), allow_nan=False)
    assert truth.loss <= 0.021
    assert truth.saving > 0.03


def test_r07_a_stuck_rollout_buys_no_allowance() -> None:
    """One update takes 24 times as long for a stuck response: the next 100 lose no more than without it."""
    controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 9)
    play(controller, job, 60)

    for index in range(100):
        plan = controller.plan
        record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
        if index == 12:
            generation = record.phases["generation"]
            wait_s = 23.0 * (generation.elapsed_s or 0.0)
            longer = PhaseRecord(
                elapsed_s=(generation.elapsed_s or 0.0) + wait_s,
                energy_j=(generation.energy_j or 0.0) + 800.0 * wait_s,
            )
            record = replace(
                record,
                elapsed_s=(record.elapsed_s or 0.0) + wait_s,
                energy_j=(record.energy_j or 0.0) + 800.0 * wait_s,
                phases={**record.phases, "generation": longer},
            )
        controller.observe(record)

    assert job.truth.loss <= 0.021


def test_a_straggler_in_the_first_trial_does_not_pass_for_the_price_of_its_clock() -> None:
    """The first update of the first trial waits for a response, half as long again: what is believed of generation's
    clock stays near the truth, whichever of the trial's updates it is."""
    slopes = []

    for stuck in (-1, 1, 2):
        controller, job = controller_for(QUIET, policy="eerl"), Job(QUIET, 14)
        lowered = 0
        while lowered < 3:
            plan = controller.plan
            record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
            lowered += not plan.is_governor
            if not plan.is_governor and lowered - 1 == stuck:
                generation = record.phases["generation"]
                wait_s = 0.5 * (generation.elapsed_s or 0.0)
                longer = PhaseRecord(
                    elapsed_s=(generation.elapsed_s or 0.0) + wait_s, energy_j=generation.energy_j
                )
                record = replace(
                    record,
                    elapsed_s=(record.elapsed_s or 0.0) + wait_s,
                    phases={**record.phases, "generation": longer},
                )
            controller.observe(record)
        strategy = controller._strategy
        assert isinstance(strategy, BayesSync)
        times = strategy._learner.times
        row = response_row(0, Clocks((0.1, 0.0), (True, False), idles=False, switches=False))
        slopes.append(float(row @ times.bank.pooled_mean()))

    assert abs(slopes[1] - slopes[0]) < 0.03
    assert abs(slopes[2] - slopes[0]) < 0.03


def test_e10_growing_responses_keep_the_allowance() -> None:
    """Responses double over the run: the reference follows what the governor would do now."""
    growing = replace(BALANCED, growth_per_update=math.log(2.0) / 250, limit_tokens=16_384)

    for seed in range(3):
        truth = play(controller_for(growing, policy="eerl"), Job(growing, seed), 250)

        assert truth.loss <= 0.021
        assert truth.saving > 0.04


@pytest.mark.parametrize("mode", [ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT])
def test_asynchronous_modes_are_the_papers_for_now(mode: ExecutionMode) -> None:
    """Both policies begin there alike."""
    grid = ClockGrid(range(345, 1981, 15), 1980)

    plans = [Controller(Settings(policy=policy), mode, grid).plan for policy in ("eerl", "paper")]

    assert plans[0] == plans[1]
