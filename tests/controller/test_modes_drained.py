"""Asynchronous control with drained updates: one pool after the other, judged at the rendezvous."""

from __future__ import annotations

from itertools import pairwise

import pytest
from controller.worlds import DRAINED, ceilings_mhz, is_on_lattice, live, training_bound, world

from eerl_controller import Reason, State
from eerl_twin import FixedPlan, simulate


def test_training_is_searched_first_where_it_arrives_first() -> None:
    """Generation stays on the governor until training's clock is confirmed, and is then searched on top of it."""
    _, _, plans = live(world(DRAINED), 120)

    tried = [plan for plan in plans if plan.reason is Reason.TRIAL and not plan.is_governor]
    clocks = [
        (plan.generation_mhz, plan.training_mhz) for plan in tried if plan.generation_mhz or plan.training_mhz
    ]
    second = next(i for i, pair in enumerate(clocks) if pair[0] is not None)
    assert all(generation is None and training is not None for generation, training in clocks[:second])
    assert len({training for _, training in clocks[second:]}) == 1, "the first clock is held"


def test_generation_is_searched_first_where_training_is_the_bottleneck() -> None:
    """The order comes from the recorded arrivals, not from a habit."""
    _, _, plans = live(training_bound(DRAINED), 60)

    first = next(plan for plan in plans if plan.generation_mhz or plan.training_mhz)
    assert first.generation_mhz is not None
    assert first.training_mhz is None


def test_the_first_pool_is_searched_by_50_mhz_and_the_second_by_100() -> None:
    """Table 3, from the clock that the governor reaches down, snapped to the table of 15 MHz."""
    _, run, plans = live(world(DRAINED), 120)
    ceilings = ceilings_mhz(run)

    tried = [plan for plan in plans if plan.reason is Reason.TRIAL]
    first = [plan.training_mhz for plan in tried if plan.training_mhz and plan.generation_mhz is None]
    second = [plan.generation_mhz for plan in tried if plan.generation_mhz]

    for clocks, ceiling, step in ((first, ceilings[1], 50), (second, ceilings[0], 100)):
        assert clocks
        assert all(is_on_lattice(mhz, ceiling, step) for mhz in clocks)


def test_a_pool_that_waits_is_lowered_far_without_loss() -> None:
    """Section 7.3: training waits for half of the update and takes the time it is given."""
    controller, run, _ = live(world(DRAINED), 300)

    assert controller.state is State.LOCKED
    assert controller.plan.training_mhz is not None
    assert controller.plan.training_mhz < 1300
    totals = run.totals(run.lock_update)
    assert totals is not None
    assert totals.energy_saving > 0.18
    assert totals.throughput_change > -0.02


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_second_lowered_clock_stays_only_if_it_saves_on_top(seed: int) -> None:
    """Section 6.2: the pair uses no more energy than the first clock alone, by its own confirmation."""
    controller, run, plans = live(world(DRAINED), 160, seed)

    words = [
        plan.note for plan in plans if "now the other pool" in plan.note or plan.reason is Reason.CONFIRMED
    ]
    assert words, "a first clock was confirmed"
    locked = controller.plan
    alone = simulate(run.world, FixedPlan(None, locked.training_mhz, locked.idle_mhz), 160, seed).totals(60)
    both = simulate(
        run.world, FixedPlan(locked.generation_mhz, locked.training_mhz, locked.idle_mhz), 160, seed
    ).totals(60)
    assert alone is not None
    assert both is not None
    assert both.energy_saving >= alone.energy_saving - 0.005
    assert both.throughput_change > -0.025


def test_feedback_after_locking_takes_50_mhz() -> None:
    """Table 3: no larger step for a larger loss, unlike the synchronous modes."""
    place = world(DRAINED)
    controller, _, plans = live(place, 300, max_throughput_loss=0.005)

    settings = controller.settings.for_mode(DRAINED)
    moved = [
        (before.training_mhz, after.training_mhz)
        for before, after in pairwise(plans)
        if after.reason in (Reason.SHORTFALL, Reason.MARGIN) and before.plan_id != after.plan_id
    ]

    assert settings.feedback_step_mhz == settings.feedback_large_step_mhz == 50
    for before, after in moved:
        if before and after:
            assert abs(before - after) <= 60


def test_the_idle_clock_is_used_and_lifted_for_every_governor_reference() -> None:
    """Between trials, and whenever the governor is measured again, waiting pools are the governor's too."""
    _, run, _ = live(world(DRAINED), 150)

    used = {
        plan.idle_mhz for plan in run.plans if plan is not None and (plan.training_mhz or plan.generation_mhz)
    }
    governed = {
        plan.idle_mhz
        for plan in run.plans
        if plan is not None and plan.reason in (Reason.BETWEEN_TRIALS, Reason.CALIBRATING)
    }
    assert used == {345}
    assert governed == {None}
