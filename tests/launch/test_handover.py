"""When a plan takes effect, by mode (contract 3.7: first legal boundary after it exists)."""

from __future__ import annotations

from enum import Enum

import pytest

from eerl_controller.records import ClockPlan
from eerl_launch.clock_maps import clock_map
from eerl_launch.handover import Handover
from eerl_launch.modes import Mode
from eerl_launch.steering import Steering


class Why(Enum):
    TEST = "test"


def plan(plan_id: int, mhz: int | None = 1500) -> ClockPlan:
    return ClockPlan(plan_id, mhz, mhz, None, Why.TEST)


@pytest.fixture
def steering() -> Steering:
    return Steering(clock_map(Mode.ASYNC_INFLIGHT))


@pytest.fixture
def handover(steering: Steering) -> Handover:
    """Governor plan 0 in force since the run began; the first update began at 10 s."""
    made = Handover(steering, 1.0)
    made.first(plan(0, None))
    made.border(10.0, Mode.ASYNC_INFLIGHT)
    return made


def wanted(steering: Steering) -> int | None:
    return steering.wanted_mhz()["training"]


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.ASYNC_INFLIGHT])
def test_plan_just_after_the_border_counts_from_it(
    handover: Handover, steering: Steering, mode: Mode
) -> None:
    """Where clocks may change in an update's first second, a plan made then rules all of it."""
    handover.border(20.0, mode)

    handover.take(plan(1), mode, 20.0, 20.4)

    assert steering.plans.only(20.0, 30.0) == (1, True)
    assert steering.plans.only(10.0, 20.0) == (0, True)


@pytest.mark.parametrize("border_s", [20.0, None])
def test_late_plan_waits_an_update(handover: Handover, steering: Steering, border_s: float | None) -> None:
    """Late counts: the plan takes effect at the next border, and nothing changes before."""
    handover.take(plan(1), Mode.DISAGGREGATED_SYNC, border_s, 25.0)
    assert steering.plan is not None and steering.plan.plan_id == 0

    handover.border(30.0, Mode.DISAGGREGATED_SYNC)

    assert steering.plans.only(30.0, 40.0) == (1, True)
    assert steering.plans.only(20.0, 30.0) == (0, True)


def test_in_flight_the_pause_changes_clocks(handover: Handover, steering: Steering) -> None:
    """However early it is made, a plan waits for the next pause; it counts from the pause's end."""
    handover.border(20.0, Mode.ASYNC_INFLIGHT)
    handover.take(plan(1), Mode.ASYNC_INFLIGHT, 20.0, 20.1)
    assert wanted(steering) is None

    handover.approach(29.0)
    assert wanted(steering) == 1500
    assert steering.plan_id_asked() == 1 and steering.plan_id_in_force() == 0
    handover.border(30.0, Mode.ASYNC_INFLIGHT)

    assert steering.plans.only(20.0, 30.0) == (0, True)
    assert steering.plans.only(30.0, 40.0) == (1, True)


def test_in_flight_plan_made_in_the_pause(handover: Handover, steering: Steering) -> None:
    """A plan that comes while generation is paused is still in time; one that comes after it is not."""
    handover.approach(19.0)
    handover.take(plan(1), Mode.ASYNC_INFLIGHT, None, 19.5)
    assert wanted(steering) == 1500
    handover.border(20.0, Mode.ASYNC_INFLIGHT)
    assert steering.plan_id_in_force() == 1

    handover.approach(29.0)
    handover.border(30.0, Mode.ASYNC_INFLIGHT)
    handover.take(plan(2, 900), Mode.ASYNC_INFLIGHT, 30.0, 30.1)

    assert wanted(steering) == 1500
    handover.border(40.0, Mode.ASYNC_INFLIGHT)
    assert steering.plan_id_in_force() == 1, "no pause was seen, so the clocks did not change"


def test_refit_whose_end_got_lost(handover: Handover, steering: Steering) -> None:
    """The update that spans a lost border ran under two plans, and is known to."""
    handover.take(plan(1), Mode.ASYNC_DRAINED, None, 15.0)
    handover.approach(19.0)

    handover.approach(29.0)
    handover.border(30.0, Mode.ASYNC_DRAINED)

    assert steering.plans.only(10.0, 30.0) == (0, False)
    assert steering.plans.only(30.0, 40.0) == (1, True)


def test_newest_plan_wins(handover: Handover, steering: Steering) -> None:
    """A plan that never came into force is forgotten for a newer one."""
    handover.take(plan(1), Mode.ASYNC_INFLIGHT, None, 15.0)
    handover.take(plan(2, 900), Mode.ASYNC_INFLIGHT, None, 25.0)

    handover.approach(29.0)
    handover.border(30.0, Mode.ASYNC_INFLIGHT)

    assert wanted(steering) == 900
    assert steering.plans.only(10.0, 40.0) == (0, False)
    assert 1 not in steering.plans.values


def test_failed_controller_leaves_no_plan(handover: Handover, steering: Steering) -> None:
    """After a fault nothing waits for a border."""
    handover.take(plan(1), Mode.ASYNC_INFLIGHT, None, 15.0)
    handover.approach(19.0)

    handover.forget()
    handover.border(20.0, Mode.ASYNC_INFLIGHT)

    assert steering.plan_id_in_force() == 0 and wanted(steering) is None


def test_first_plan_with_clocks_waits_for_the_first_border(steering: Steering) -> None:
    """Fixed clocks begin with the first update, in flight too: nothing has been begun yet."""
    handover = Handover(steering, 1.0)
    handover.first(plan(0))
    assert wanted(steering) is None

    handover.border(5.0, Mode.ASYNC_INFLIGHT)

    assert steering.plans.only(5.0, 9.0) == (0, True) and wanted(steering) == 1500
