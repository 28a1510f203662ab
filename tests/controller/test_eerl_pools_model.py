"""What policy eerl believes of overlapping pools, against what is true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from controller.test_eerl_pools_properties import MODEL, tame
from controller.test_properties import GRID, tell
from controller.worlds import DRAINED, INFLIGHT, training_bound, world

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_controller.bayes.pool_strategy import BayesPools
from eerl_controller.bayes.sides import lowered
from eerl_controller.clocks import Pair
from eerl_twin import World, simulate
from eerl_twin.run import Settings as TwinSettings

PLACES = [make(mode) for mode in (DRAINED, INFLIGHT) for make in (world, training_bound)]


def lived(place: World, updates: int, seed: int = 1) -> tuple[BayesPools, Any]:
    """The strategy after a run, and the run."""
    controller = Controller(Settings(), place.mode, place.grid)
    run = simulate(place, controller, updates, seed)
    strategy = controller._strategy
    assert isinstance(strategy, BayesPools)
    return strategy, run


@pytest.mark.parametrize("place", PLACES[::2], ids=["drained", "inflight"])
def test_what_was_asked_before_is_not_told_again_after_something_was_learnt(place: World) -> None:
    """A belief is worked out once: a loss that is accounted for then counts at the next asking, and a doubt does."""
    paces = lived(place, 60)[0]._learner.paces
    setting = lowered(Pair(1200, 1200), (1980.0, 1980.0), 1980.0)
    (before_s, _), slow = paces.lost, paces.slow(setting)

    paces.lose((0.0, 0.0, 0.0), 7.0, setting)
    paces.slow(setting)

    assert paces.lost[0] == pytest.approx(before_s + 7.0)
    assert paces.slow(setting) == slow
    variance = paces.pooled[1][0, 0]
    paces.doubt((False, False), 0.1)
    assert paces.pooled[1][0, 0] == pytest.approx(variance + 0.01)


@pytest.mark.parametrize("place", PLACES, ids=["drained", "drained-train", "inflight", "inflight-train"])
def test_what_it_believes_to_have_lost_is_what_it_lost(place: World) -> None:
    """Seconds lost to lowered clocks over 200 updates: within a third of a percent of the run."""
    strategy, run = lived(place, 200)
    strategy._learner.refresh()

    truth_s = sum(run.elapsed_s) - sum(run.governor_elapsed_s)
    believed_s, _ = strategy._learner.paces.lost
    assert abs(believed_s - truth_s) < 0.0035 * sum(run.elapsed_s)


@pytest.mark.parametrize("place", PLACES[:2], ids=["generation", "training"])
def test_a_pace_under_the_clock_that_is_held_is_known(place: World) -> None:
    """How much slower training is under its lowered clock that was held last: within a point and a half."""
    strategy, run = lived(place, 200)
    plan = next(plan for plan in reversed(run.plans) if plan is not None and plan.training_mhz is not None)
    pair = Pair(plan.generation_mhz, plan.training_mhz, plan.idle_mhz)

    believed = strategy._learner.paces.slow(strategy._learner.setting_of(pair))

    setting = TwinSettings(place).of(pair.generation_mhz, pair.training_mhz, pair.idle_mhz, False)
    offset = place.lock_offset_training
    assert believed[1] == pytest.approx(np.log(setting.training_slow * (1.0 + offset)), abs=0.015)


@pytest.mark.parametrize("mode", [ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT])
def test_the_plausible_records_of_the_property_tests_have_clocks_lowered(mode: ExecutionMode) -> None:
    """Those tests would show nothing if the governor were never left."""
    controller, rng, lowered = Controller(MODEL, mode, GRID), np.random.default_rng(4), 0

    for number in range(60):
        tell(controller, number, tame(rng), 0)
        lowered += not controller.plan.is_governor

    assert lowered > 10
