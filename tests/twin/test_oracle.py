"""The oracle and the sweep behind it: the same truth as a run, and nothing better within the limit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from twin.examples import eventful, quiet, world

from eerl_controller import ExecutionMode
from eerl_twin import FixedPlan, best_fixed, draw, simulate, sweep

MODES = list(ExecutionMode)


@pytest.mark.parametrize("mode", MODES)
def test_a_sweep_is_many_runs(mode: ExecutionMode) -> None:
    """Pairs worked out together give what a run of each gives, faults and shifts included."""
    made = replace(eventful(mode), plan_lag=0)
    conditions = draw(made, 60, 3)
    pairs = [(1500, 1200), (None, 1200), (1980, None), (810, 810), (None, None)]
    clocks = [
        np.array([math.nan if pair[k] is None else float(pair[k] or 0) for pair in pairs]) for k in (0, 1)
    ]

    together = sweep(made, conditions, clocks[0], clocks[1], 345)

    for index, pair in enumerate(pairs):
        alone = simulate(made, FixedPlan(*pair, 345), 60, 3).totals()
        assert alone is not None
        assert together.energy_saving[index] == pytest.approx(alone.energy_saving, abs=1e-9)
        assert together.throughput_change[index] == pytest.approx(alone.throughput_change, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_no_fixed_pair_within_the_limit_beats_the_oracle(mode: ExecutionMode) -> None:
    """Over a dense grid, with and without the idle clock, the best within 2 % is the oracle's to a tenth."""
    made = world(mode)
    conditions = draw(made, 60, 3)

    best = best_fixed(made, conditions)

    clocks = np.arange(345.0, 1981.0, 45.0)
    one, other = (axis.ravel() for axis in np.meshgrid(clocks, np.append(clocks, math.nan)))
    for idle_mhz in (345, None):
        swept = sweep(made, conditions, one, other, idle_mhz)
        allowed = swept.energy_saving[swept.throughput_change >= -0.02]
        assert allowed.max() <= best.energy_saving + 0.001
    played = simulate(made, FixedPlan(best.generation_mhz, best.training_mhz, best.idle_mhz), 60, 3).totals()
    assert played is not None
    assert played.energy_saving == pytest.approx(best.energy_saving, abs=1e-9)
    assert played.throughput_change >= -0.02
    assert best.energy_saving > 0.02


def test_without_an_allowance_only_free_savings_remain() -> None:
    """At 0 % a colocated job whose every lock costs time is left to the governor."""
    costly = world(ExecutionMode.COLOCATED_SYNC, lock_offset_generation=0.01, lock_offset_training=0.01)
    conditions = draw(costly, 40, 3)

    best = best_fixed(costly, conditions, max_loss=0.0)

    assert (best.generation_mhz, best.training_mhz) == (None, None)
    assert best.energy_saving == 0.0


def test_calibration_costs_its_share() -> None:
    """The bound after a calibration is lower by about the updates left to the governor."""
    made = quiet(ExecutionMode.DISAGGREGATED_SYNC)
    conditions = draw(made, 100, 3)

    free = best_fixed(made, conditions).energy_saving
    bound = best_fixed(made, conditions, governor_updates=20).energy_saving

    assert 0.75 * free < bound < 0.95 * free
