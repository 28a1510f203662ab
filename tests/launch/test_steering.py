"""From plan and phase to the clock that should hold (contract 3.7, colocated clock map)."""

from __future__ import annotations

from enum import Enum

import pytest

from eerl_controller.records import ClockPlan
from eerl_launch.clock_maps import SHORTEST_SWITCHED_S
from eerl_launch.pools import ALL
from eerl_launch.steering import Steering


class Why(Enum):
    TEST = "test"


def plan(plan_id: int, generation_mhz: int | None, training_mhz: int | None) -> ClockPlan:
    return ClockPlan(plan_id, generation_mhz, training_mhz, None, Why.TEST)


@pytest.fixture
def steering() -> Steering:
    """A plan is in force since the run began."""
    steering = Steering()
    steering.adopt(plan(1, 1200, 1500), 0.0)
    return steering


@pytest.mark.parametrize(
    ("phase", "mhz"),
    [
        ("generation", 1200),
        ("validation", 1200),
        ("logprob", 1500),
        ("training", 1500),
        ("critic", 1500),
    ],
)
def test_clock_of_each_phase(steering: Steering, phase: str, mhz: int) -> None:
    """Phases that compute have the clock of their kind."""
    steering.map.begins(phase, 0.0)

    assert steering.wanted_mhz() == {ALL: mhz}


@pytest.mark.parametrize("phase", ["refit", "reward", "checkpoint", "old_log_prob", "anything"])
@pytest.mark.parametrize(("before", "mhz"), [("generation", 1200), ("training", 1500)])
def test_phases_that_keep_the_clock(steering: Steering, phase: str, before: str, mhz: int) -> None:
    """Refit, reward, checkpoint and names we do not know keep the clock they find."""
    steering.map.begins(before, 0.0)

    steering.map.begins(phase, 0.0)

    assert steering.wanted_mhz() == {ALL: mhz}


def test_no_clock_before_the_first_phase() -> None:
    """Until a plan and a phase are there, the governor rules."""
    steering = Steering()
    steering.map.begins("generation", 0.0)
    assert steering.wanted_mhz() == {ALL: None}

    other = Steering()
    other.adopt(plan(1, 1200, 1500), 0.0)
    assert other.wanted_mhz() == {ALL: None}


def test_short_phases_do_not_switch(steering: Steering) -> None:
    """A phase that usually takes less than a second keeps the clock it finds; one slow run changes nothing."""
    steering.map.begins("generation", 0.0)
    for elapsed_s in (0.2, 0.3, 0.2, 30.0):
        steering.map.ends("logprob", 0.0, elapsed_s)

    steering.map.begins("logprob", 0.0)

    assert steering.wanted_mhz() == {ALL: 1200}


def test_phase_that_has_become_long_switches(steering: Steering) -> None:
    """Lengths of long ago are forgotten."""
    steering.map.begins("generation", 0.0)
    for elapsed_s in [0.2] * 20 + [SHORTEST_SWITCHED_S * 2] * 3:
        steering.map.ends("logprob", 0.0, elapsed_s)

    steering.map.begins("logprob", 0.0)

    assert steering.wanted_mhz() == {ALL: 1500}


def test_first_run_of_a_phase_switches(steering: Steering) -> None:
    """A phase that has not been timed yet is taken as long."""
    steering.map.begins("generation", 0.0)
    steering.map.begins("training", 0.0)

    assert steering.wanted_mhz() == {ALL: 1500}


def test_hold_hands_the_clocks_to_the_governor(steering: Steering) -> None:
    """While an operator holds, no clock is wanted and no plan is in force; afterwards both are back."""
    steering.map.begins("generation", 0.0)
    steering.hold = True
    assert steering.plan is not None
    steering.adopt(steering.plan, 5.0)

    assert steering.wanted_mhz() == {ALL: None}
    assert steering.plans.at(6.0) is None

    steering.hold = False
    steering.adopt(steering.plan, 7.0)
    assert steering.wanted_mhz() == {ALL: 1200}
    assert steering.plans.only(5.0, 8.0) == (None, False)
    assert steering.plans.only(7.0, 8.0) == (1, True)


def test_control_that_ended_takes_the_plan_out_of_force(steering: Steering) -> None:
    """When clocks cannot be set any more, what runs is not the plan's doing, and records must not say so."""
    steering.map.begins("training", 0.0)
    steering.asked(ALL, 1500, 1.0)

    steering.off_reason = "clocks cannot be set"
    steering.asked(ALL, None, 9.0)
    steering.adopt(plan(2, 900, 900), 20.0)

    assert steering.wanted_mhz() == {ALL: None}
    assert steering.plans.only(1.0, 8.0) == (1, True)
    assert steering.plans.only(1.0, 12.0) == (1, False)
    assert steering.plans.at(25.0) is None


def test_governor_plan_is_in_force_without_control(steering: Steering) -> None:
    """A plan that leaves everything to the governor rules even where no clock can be set."""
    steering.off_reason = "no broker"

    steering.adopt(plan(3, None, None), 4.0)

    assert steering.plans.at(5.0) == 3


def test_plan_adopted_late_leaves_the_clocks_history_alone(steering: Steering) -> None:
    """Within the grace a plan counts from the generation's begin, the clocks from when they were asked for."""
    steering.asked(ALL, 1200, 10.0)

    steering.adopt(plan(2, 1300, 1400), 10.0)
    steering.asked(ALL, 1300, 10.4)

    assert steering.plans.only(10.0, 20.0) == (2, True)
    assert steering.clocks[ALL].at(10.2) == 1200
    assert steering.clocks[ALL].mostly([(10.0, 20.0)]) == 1300
    steering.forget_before(15.0)
    assert (steering.plans.at(15.0), steering.clocks[ALL].at(15.0)) == (2, 1300)
