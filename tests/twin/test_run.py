"""Runs of all four modes: reproducible, paired, and with every joule and second in its place."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from twin.examples import eventful, quiet, world

from eerl_controller import Controller, ExecutionMode, Settings, State
from eerl_twin import Faults, FixedPlan, Shift, TimeResponse, simulate
from eerl_twin.world import SYNCHRONOUS

MODES = list(ExecutionMode)
SEPARATE = [mode for mode in MODES if mode is not ExecutionMode.COLOCATED_SYNC]


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_run(mode: ExecutionMode) -> None:
    """Records and truth are equal for equal seeds and differ for others."""
    plan = FixedPlan(1500, 1200, 345)

    one, again, other = (simulate(eventful(mode), plan, 60, seed) for seed in (3, 3, 4))

    assert one.records == again.records
    assert one.energy_j == again.energy_j
    assert one.records != other.records


@pytest.mark.parametrize("mode", MODES)
def test_two_policies_meet_the_same_work_and_the_same_governor(mode: ExecutionMode) -> None:
    """The counterfactual beside a controlled run is the governor's own run."""
    governor = simulate(eventful(mode), FixedPlan(), 60, 3)

    lowered = simulate(eventful(mode), FixedPlan(1500, 1200, 345), 60, 3)

    assert lowered.governor_elapsed_s == governor.elapsed_s
    assert lowered.governor_energy_j == governor.energy_j
    assert [r.valid_tokens for r in lowered.records] == [r.valid_tokens for r in governor.records]
    assert None in [r.valid_tokens for r in governor.records]


@pytest.mark.parametrize("mode", MODES)
def test_a_longer_run_begins_like_a_shorter_one(mode: ExecutionMode) -> None:
    """How long the job will be does not change what happens first."""
    long, short = (simulate(eventful(mode), FixedPlan(), updates, 3) for updates in (90, 50))

    assert long.elapsed_s[:50] == short.elapsed_s
    assert long.energy_j[:50] == short.energy_j


@pytest.mark.parametrize("mode", MODES)
def test_pools_add_up_to_the_allocation(mode: ExecutionMode) -> None:
    """Joules of the pools (synchronous: of phases and the unmarked rest) are the update's joules."""
    run = simulate(eventful(mode), FixedPlan(1500, 1200, 345), 60, 3)

    for record in run.records:
        if record.energy_j is None:
            continue
        pools_j = sum(pool.energy_j or 0.0 for pool in record.pools.values())
        phases_j = sum(phase.energy_j or 0.0 for phase in record.phases.values())
        phases_s = sum(phase.elapsed_s or 0.0 for phase in record.phases.values())
        assert record.elapsed_s is not None
        if mode is not ExecutionMode.COLOCATED_SYNC:
            assert math.isclose(pools_j, record.energy_j, rel_tol=1e-9)
        if mode in SYNCHRONOUS:
            rest_s = record.elapsed_s - phases_s
            rest_w = (record.energy_j - phases_j) / rest_s
            gpus = 16 if mode is ExecutionMode.COLOCATED_SYNC else 32
            assert rest_s > 0.0
            assert 60.0 * gpus < rest_w < 130.0 * gpus


@pytest.mark.parametrize("mode", SEPARATE)
def test_a_pool_is_busy_or_waits(mode: ExecutionMode) -> None:
    """Without visits, a pool's busy and waiting seconds and what both do together fill the update."""
    run = simulate(quiet(mode), FixedPlan(), 40, 3)

    for record in run.records[2:]:
        together = (record.phases["refit"].elapsed_s or 0.0) + 2.0
        for pool in record.pools.values():
            assert pool.busy_s is not None and pool.wait_s is not None and record.elapsed_s is not None
            assert math.isclose(pool.busy_s + pool.wait_s + together, record.elapsed_s, rel_tol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_top_clock_is_the_governor(mode: ExecutionMode) -> None:
    """Without a cost of locking and without idle control, locking the top clock changes nothing."""
    totals = simulate(quiet(mode), FixedPlan(1980, 1980), 60, 3).totals()

    assert totals is not None
    assert abs(totals.energy_saving) < 1e-9
    assert abs(totals.throughput_change) < 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_requests_above_the_reachable_clock_are_one_setting(mode: ExecutionMode) -> None:
    """Above the ceiling that power allows, a request and the governor act alike (paper, 1800/1800 rows)."""
    base = quiet(mode, refit_response=TimeResponse(bound=0.0))
    power = replace(
        base.power,
        generation=replace(base.power.generation, ceiling=0.85),
        training=replace(base.power.training, ceiling=0.85),
    )

    above = simulate(replace(base, power=power), FixedPlan(1725, 1725), 40, 3)
    below = simulate(replace(base, power=power), FixedPlan(1605, 1605), 40, 3)

    assert above.elapsed_s == above.governor_elapsed_s
    assert above.records[5].pools["training"].achieved_mhz == pytest.approx(0.85 * 1980)
    assert sum(below.elapsed_s) > sum(below.governor_elapsed_s)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pool", [0, 1])
def test_a_lower_clock_is_never_faster(mode: ExecutionMode, pool: int) -> None:
    """Whichever clock falls, no update gets shorter; the whole run gets longer unless it only waited less."""
    before: list[float] = []
    for mhz in (1980, 1605, 1200, 810, 345):
        clocks: list[int | None] = [None, None]
        clocks[pool] = mhz

        run = simulate(quiet(mode), FixedPlan(*clocks), 40, 3)

        if mode is ExecutionMode.ASYNC_INFLIGHT:
            assert not before or sum(run.elapsed_s) >= sum(before) - 1e-6
        else:
            assert all(new >= old - 1e-9 for new, old in zip(run.elapsed_s, before, strict=False))
        before = run.elapsed_s


@pytest.mark.parametrize("mode", [ExecutionMode.DISAGGREGATED_SYNC, ExecutionMode.ASYNC_DRAINED])
def test_a_waiting_pool_saves_at_the_idle_clock(mode: ExecutionMode) -> None:
    """The idle clock lowers energy and hardly touches time; the governor keeps waiting GPUs at the top."""
    totals = simulate(quiet(mode), FixedPlan(1980, 1980, 345), 60, 3).totals()

    assert totals is not None
    assert 0.02 < totals.energy_saving < 0.2
    assert abs(totals.throughput_change) < 0.005


def test_in_flight_has_no_idle_clock() -> None:
    """An in-flight job never lowers a waiting pool (paper, section 6.3)."""
    world_ = quiet(ExecutionMode.ASYNC_INFLIGHT)

    with_idle, without = (simulate(world_, FixedPlan(1500, 1200, idle), 40, 3) for idle in (345, None))

    assert with_idle.energy_j == without.energy_j


def test_the_later_arrival_decides_a_drained_update() -> None:
    """Slowing the pool that arrives first costs nothing until it arrives last."""
    run = simulate(quiet(ExecutionMode.ASYNC_DRAINED), FixedPlan(), 40, 3)
    record = run.records[10]
    assert record.generation_arrival_s is not None and record.training_arrival_s is not None
    assert record.elapsed_s is not None
    rest_s = record.elapsed_s - max(record.generation_arrival_s, record.training_arrival_s)

    slowed = simulate(quiet(ExecutionMode.ASYNC_DRAINED), FixedPlan(None, 1605), 40, 3).records[10]

    assert rest_s == pytest.approx(5.0, rel=1e-6)
    assert record.training_arrival_s < record.generation_arrival_s
    assert slowed.training_arrival_s is not None
    assert record.training_arrival_s < slowed.training_arrival_s < record.generation_arrival_s
    assert slowed.elapsed_s == pytest.approx(record.elapsed_s, rel=1e-3)


@pytest.mark.parametrize("age", [1, 2, 4])
def test_policy_age_is_bounded(age: int) -> None:
    """No consumed response was begun more than the bound before, even when training is the bottleneck."""
    base = world(ExecutionMode.ASYNC_INFLIGHT, max_policy_age=age)
    slow_training = replace(base, costs=replace(base.costs, per_trained_s=1e-3))

    records = simulate(slow_training, FixedPlan(), 60, 3).records

    ages = [record.policy_age_max for record in records]
    assert max(value for value in ages if value is not None) == age
    assert records[30].training_busy_fraction is not None and records[30].training_busy_fraction > 0.9
    assert records[30].generation_busy_fraction is not None and records[30].generation_busy_fraction < 0.9


def test_in_flight_generates_what_it_consumes() -> None:
    """Over a long run generated tokens are the tokens of the batches, a bounded number of them ahead."""
    base = world(ExecutionMode.ASYNC_INFLIGHT)

    records = simulate(base, FixedPlan(), 200, 3).records

    generated = sum(record.generated_tokens or 0 for record in records)
    consumed = sum(record.valid_tokens or 0 for record in records)
    assert 0 <= generated - consumed <= 3.5 * consumed / 200


@pytest.mark.parametrize("lag", [0, 1])
def test_records_name_the_plan_that_was_in_force(lag: int) -> None:
    """A plan takes effect at the next boundary, or one later; a change in mid-update has no plan at all."""
    base = world(ExecutionMode.COLOCATED_SYNC, plan_lag=lag)

    class Every5(FixedPlan):
        def observe(self, record):  # type: ignore[no-untyped-def]
            if record.update % 5 == 0:
                number = self._plan.plan_id + 1
                self._plan = replace(self._plan, plan_id=number, generation_mhz=1500 - 15 * number)
            return self._plan

    run = simulate(base, Every5(), 30, 3)
    mixed = simulate(replace(base, faults=replace(base.faults, mixed_share=1.0)), Every5(), 30, 3)

    for index, record in enumerate(run.records):
        assert record.plan_id == max(index - lag, 0) // 5
    for index, record in enumerate(mixed.records):
        changed = index > lag and (index - lag) % 5 == 0
        assert record.plan_id == (None if changed else max(index - lag, 0) // 5)


def test_in_flight_responses_carry_the_plan_they_were_begun_under() -> None:
    """After a change of clocks consumed responses are of the old plan for as long as the queue is deep."""
    base = world(ExecutionMode.ASYNC_INFLIGHT)

    class Once(FixedPlan):
        def observe(self, record):  # type: ignore[no-untyped-def]
            if record.update == 20:
                self._plan = replace(self._plan, plan_id=1, training_mhz=1200)
            return self._plan

    records = simulate(base, Once(), 40, 3).records

    assert [record.plan_id for record in records] == [0] * 20 + [1] * 20
    oldest = [record.oldest_request_plan_id for record in records]
    first_new = oldest.index(1)
    assert 20 < first_new <= 23
    assert oldest == [0] * first_new + [1] * (40 - first_new)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["governor", "fixed", "paper", "eerl"])
def test_the_controller_takes_every_record(mode: ExecutionMode, policy: str) -> None:
    """Whatever happens in a run, no record is malformed: lost, late, mixed, throttled, without energy."""
    settings = Settings(policy=policy, fixed_generation_mhz=1500, fixed_training_mhz=1500)
    eventful_world = eventful(mode)
    controller = Controller(settings, mode, eventful_world.grid)

    run = simulate(eventful_world, controller, 150, 3)

    assert len(run.records) == 150
    flags = frozenset().union(*(record.flags for record in run.records))
    assert {"validation", "checkpoint", "hardware_slowdown", "partial_energy"} <= flags


@pytest.mark.parametrize("mode", SYNCHRONOUS)
def test_a_lock_may_become_dearer(mode: ExecutionMode) -> None:
    """A shift adds its cost to every lock from then on, and leaves the governor alone."""
    base = quiet(mode)
    shifted = replace(base, shifts=(Shift(update=20, lock_cost=0.03),))

    before, after = (simulate(item, FixedPlan(1500, 1200), 40, 3) for item in (base, shifted))

    assert after.governor_elapsed_s == before.governor_elapsed_s
    assert after.elapsed_s[:20] == before.elapsed_s[:20]
    for index in range(20, 40):
        assert 1.02 < after.elapsed_s[index] / before.elapsed_s[index] < 1.03


@pytest.mark.parametrize("mode", MODES)
def test_a_more_sensitive_phase_is_slower_under_low_clocks_only(mode: ExecutionMode) -> None:
    """Sensitivity multiplies what low clocks add; no work is slowed by more than its clock."""
    base = quiet(mode, training_response=TimeResponse(bound=0.8))
    costs = replace(base.costs, per_trained_s=1e-3)
    shifted = replace(base, costs=costs, shifts=(Shift(update=20, training_sensitivity=10.0),))
    base = replace(base, costs=costs)

    before, after = (simulate(item, FixedPlan(None, 990), 40, 3) for item in (base, shifted))

    assert after.governor_elapsed_s == before.governor_elapsed_s
    ratio = 0.9 * 1980 / 990
    for index in range(20, 40):
        parts = [run.records[index].phases["training"].elapsed_s or 0.0 for run in (before, after)]
        assert parts[1] / parts[0] == pytest.approx(ratio / (1.0 + 0.8 * (1 / 0.5 - 1.0)) * (0.2 + 0.8 / 0.9))


def test_in_flight_work_spills_into_the_next_update() -> None:
    """An update's time follows its own tokens and, downwards, those of the update before (paper, appendix E)."""
    base = world(ExecutionMode.ASYNC_INFLIGHT)

    records = simulate(base, FixedPlan(), 300, 3).records[20:]

    logs = np.log([[record.elapsed_s or 0.0, record.valid_tokens or 0] for record in records])
    time, tokens = logs[1:, 0], logs[:, 1]
    left = []
    for features in ([tokens[1:]], [tokens[1:], tokens[:-1]]):
        design = np.column_stack([np.ones(len(time)), *features])
        slopes = np.linalg.lstsq(design, time, rcond=None)[0]
        left.append(float((time - design @ slopes).std()))
    assert slopes[1] > 0.0 > slopes[2]
    assert left[1] < 0.5 * left[0]


@pytest.mark.parametrize("mode", MODES)
def test_late_records_come_in_order_and_lost_ones_never(mode: ExecutionMode) -> None:
    """What a controller sees: every record but the lost, none before its update is over, none out of order."""
    base = world(mode, faults=Faults(late_share=0.3, lost_share=0.1))
    seen: list[int] = []

    class Listening(FixedPlan):
        def observe(self, record):  # type: ignore[no-untyped-def]
            seen.append(record.update)
            return self._plan

    run = simulate(base, Listening(), 200, 3)

    assert seen == sorted(set(seen))
    assert 150 < len(seen) < 200
    assert len(run.records) == 200


def test_stale_responses_cost_reward_where_told() -> None:
    """Reward falls by the cost of each update of policy age, and by nothing where it is free."""
    base = world(ExecutionMode.ASYNC_INFLIGHT, max_policy_age=3)

    free, dear = (
        simulate(replace(base, staleness_cost=cost), FixedPlan(), 40, 3).records for cost in (0.0, 0.01)
    )

    for one, other in zip(free, dear, strict=True):
        assert one.reward is not None and other.reward is not None and one.policy_age_max is not None
        assert one.reward - other.reward == pytest.approx(0.01 * one.policy_age_max)


def test_totals_count_from_the_lock() -> None:
    """The lock is in force from the update after it; totals before and after it add up to the whole run's."""

    class Locking(FixedPlan):
        state = State.SEARCH

        def observe(self, record):  # type: ignore[no-untyped-def]
            if record.update == 20:
                self.state = State.LOCKED
                self._plan = replace(self._plan, plan_id=1, training_mhz=1200)
            return self._plan

    run = simulate(quiet(ExecutionMode.COLOCATED_SYNC), Locking(), 50, 3)

    assert run.lock_update == 20
    assert run.clock_changes == 1
    whole, before, after = run.totals(), run.totals(0, 20), run.totals(20)
    assert whole is not None and before is not None and after is not None
    assert (before.updates, after.updates) == (20, 30)
    assert before.energy_saving == 0.0
    assert 0.0 < whole.energy_saving < after.energy_saving
    assert run.totals(50) is None
