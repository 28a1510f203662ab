"""Disaggregated synchronous control: the joint search, with the idle clock of a waiting pool."""

from __future__ import annotations

from dataclasses import replace

from controller.worlds import DISAGGREGATED, ceilings_mhz, is_on_lattice, live, world

from eerl_controller import Reason, State
from eerl_twin import Power


def test_the_idle_clock_is_tried_alone_and_is_then_part_of_every_lowered_plan() -> None:
    """What it saves is known apart from what lower clocks save; governor references have all three None."""
    controller, _, plans = live(world(DISAGGREGATED), 120)

    trials = [plan for plan in plans if plan.reason is Reason.TRIAL]
    assert (trials[0].generation_mhz, trials[0].training_mhz, trials[0].idle_mhz) == (None, None, 345)
    lowered = [plan for plan in plans if plan.generation_mhz or plan.training_mhz]
    assert lowered
    assert all(plan.idle_mhz == 345 for plan in lowered)
    assert all(plan.is_governor for plan in plans if plan.reason is Reason.BETWEEN_TRIALS)
    assert controller.state is State.LOCKED
    assert controller.plan.idle_mhz == 345


def test_lock_and_idle_clock_are_confirmed_together() -> None:
    """The plan of the confirmation is the plan of the lock, down to its id."""
    _, _, plans = live(world(DISAGGREGATED), 120)

    confirming = [plan for plan in plans if plan.reason is Reason.CONFIRMING]
    confirmed = next(plan for plan in plans if plan.reason is Reason.CONFIRMED)

    assert confirmed.plan_id == confirming[-1].plan_id
    assert confirmed.idle_mhz == confirming[-1].idle_mhz == 345


def test_both_clocks_are_searched_together_on_a_90_mhz_lattice() -> None:
    """Section 6.1 and Table 3: the first pair has both reduced; steps are nominal, snapped to 15 MHz."""
    _, run, plans = live(world(DISAGGREGATED), 120)
    ceilings = ceilings_mhz(run)

    pairs = [
        plan for plan in plans if plan.reason is Reason.TRIAL and (plan.generation_mhz or plan.training_mhz)
    ]

    assert pairs[0].generation_mhz is not None
    assert pairs[0].training_mhz is not None
    for plan in pairs:
        for mhz, ceiling in zip((plan.generation_mhz, plan.training_mhz), ceilings, strict=True):
            assert mhz is None or is_on_lattice(mhz, ceiling, 90)


def test_the_idle_clock_is_snapped_to_what_the_site_allows() -> None:
    """A clamp at 500 MHz makes 345 into the lowest allowed clock."""
    _, _, plans = live(world(DISAGGREGATED), 120, min_mhz=500)

    assert {plan.idle_mhz for plan in plans if plan.idle_mhz is not None} == {510}


def test_without_an_idle_clock_the_search_begins_with_both_clocks() -> None:
    """``idle_mhz`` None is off."""
    _, _, plans = live(world(DISAGGREGATED), 120, idle_mhz=None)

    first = next(plan for plan in plans if plan.reason is Reason.TRIAL)
    assert first.generation_mhz is not None
    assert all(plan.idle_mhz is None for plan in plans)


def test_an_idle_clock_that_costs_time_is_left_out_of_the_search() -> None:
    """Switching that takes seconds is seen in the whole update's time; the clocks are then searched without it."""
    slow = world(DISAGGREGATED)
    slow = replace(slow, costs=replace(slow.costs, switch_s=6.0))

    controller, run, plans = live(slow, 200)

    idle = [plan for plan in plans if plan.idle_mhz is not None]
    assert idle
    assert all(plan.reason is Reason.TRIAL for plan in idle)
    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.02
    assert controller.plan.idle_mhz is None


def test_the_idle_clock_alone_is_locked_when_no_lower_clock_pays() -> None:
    """Phases wholly bound by the clock and static power leave only the waits to save in."""
    place = world(DISAGGREGATED)
    power = Power(
        wait=place.power.wait,
        generation=replace(place.power.generation, floor_w=450.0, clock_w=20.0, ceiling=1.0),
        training=replace(place.power.training, floor_w=600.0, clock_w=20.0, ceiling=1.0),
    )
    place = replace(
        place,
        power=power,
        generation_response=replace(place.generation_response, bound=1.0),
        training_response=replace(place.training_response, bound=1.0),
    )

    controller, run, _ = live(place, 150)

    assert controller.state is State.LOCKED
    assert (controller.plan.generation_mhz, controller.plan.training_mhz) == (None, None)
    assert controller.plan.idle_mhz == 345
    totals = run.totals(run.lock_update)
    assert totals is not None
    assert totals.energy_saving > 0.02


def test_saving_comes_near_the_best_fixed_setting() -> None:
    """The whole run, calibration and search included, in a calm world."""
    controller, run, _ = live(world(DISAGGREGATED), 300)

    totals = run.totals()
    assert totals is not None
    assert totals.energy_saving > 0.12
    assert totals.throughput_change > -0.02
    assert controller.saving is not None
    assert controller.saving.energy_saving is not None
    assert abs(controller.saving.energy_saving - totals.energy_saving) < 0.02
