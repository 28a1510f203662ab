"""Worlds and their parts: serialisable, monotone, and saying what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from twin.examples import eventful, world

from eerl_controller import ExecutionMode
from eerl_twin import PowerShape, TimeResponse, World, draw, population
from eerl_twin.machine import Machine
from eerl_twin.work_cost import Shares, costs_for

MODES = list(ExecutionMode)
FRACTIONS = np.linspace(0.1, 1.0, 91)


@pytest.mark.parametrize("mode", MODES)
def test_a_world_survives_json(mode: ExecutionMode) -> None:
    """Plain worlds, eventful ones and drawn ones come back equal from JSON."""
    for made in (world(mode), eventful(mode), *(population(seed, mode) for seed in range(20))):
        text = json.dumps(made.to_dict())

        assert World.from_dict(json.loads(text)) == made


def test_an_unknown_parameter_is_refused() -> None:
    """A misspelt name does not vanish."""
    values = {**world(ExecutionMode.COLOCATED_SYNC).to_dict(), "lenghts": {}}

    with pytest.raises(TypeError, match="lenghts"):
        World.from_dict(values)


@pytest.mark.parametrize(
    "response",
    [
        TimeResponse(bound=0.3, exponent=0.8),
        TimeResponse("piecewise", clocks=(0.2, 0.6, 1.0), values=(2.5, 1.1, 1.0)),
        TimeResponse("table", clocks=(0.2, 0.5, 0.7, 1.0), values=(2.0, 1.3, 1.3, 1.0)),
    ],
)
def test_time_falls_with_the_clock_and_never_faster_than_it(response: TimeResponse) -> None:
    """In every form: 1 at the top, never falling as the clock falls, never more than the clock's own ratio."""
    times = response.relative_time(FRACTIONS)

    assert times[-1] == pytest.approx(1.0)
    assert (np.diff(times) <= 1e-12).all()
    assert (times <= 1.0 / FRACTIONS + 1e-12).all()


@pytest.mark.parametrize(
    "shape",
    [
        PowerShape("voltage"),
        PowerShape("quadratic"),
        PowerShape("table", clocks=(0.1, 0.5, 1.0), values=(0.05, 0.3, 1.0)),
    ],
)
def test_power_rises_with_the_clock(shape: PowerShape) -> None:
    """In every form: 1 at the top and never falling as the clock rises."""
    power = shape.relative_power(FRACTIONS)

    assert power[-1] == pytest.approx(1.0)
    assert (np.diff(power) >= -1e-12).all()
    assert (power >= 0.0).all()


def test_shapes_that_cannot_be_are_refused() -> None:
    """Unknown forms, points out of order, time that falls with the clock."""
    with pytest.raises(ValueError, match="form"):
        TimeResponse("spline")
    with pytest.raises(ValueError, match="monotone"):
        TimeResponse("table", clocks=(0.2, 0.5, 1.0), values=(1.1, 1.3, 1.0))
    with pytest.raises(ValueError, match="end at clock 1"):
        PowerShape("table", clocks=(0.2, 0.9), values=(0.3, 1.0))
    with pytest.raises(ValueError, match="one pool"):
        World(name="two", generation_gpus=8, training_gpus=16)


def test_the_power_cap_bounds_the_clock() -> None:
    """A cap below training's power lowers the clock that training reaches, and no other."""
    base = world(ExecutionMode.COLOCATED_SYNC)
    capped = Machine(replace(base, power=replace(base.power, cap_w=450.0))).one(None, None, None)
    free = Machine(base).one(None, None, None)

    assert capped.generation_mhz == free.generation_mhz
    assert capped.training_mhz < free.training_mhz
    assert capped.training_w <= 450.0 < free.training_w


def test_the_population_is_broad() -> None:
    """Every form, mode, kind of GPU and event occurs; no response is steeper than the clock."""
    worlds = [population(seed) for seed in range(300)]

    for phase in ("generation_response", "training_response"):
        assert {getattr(item, phase).form for item in worlds} == {"power_law", "piecewise", "table"}
        for item in worlds:
            times = getattr(item, phase).relative_time(FRACTIONS)
            assert (np.diff(times) <= 1e-12).all()
            assert (times <= 1.0 / FRACTIONS + 1e-9).all()
    assert {item.power.shape.form for item in worlds} == {"voltage", "quadratic", "table"}
    assert {item.mode for item in worlds} == set(MODES)
    assert len({item.supported_mhz for item in worlds}) == 4
    for seldom in ("shifts", "plan_lag"):
        assert 0 < sum(bool(getattr(item, seldom)) for item in worlds) < 300
    for part in ("throttle_share", "partial_energy_share", "lost_share", "late_share", "mixed_share"):
        assert any(getattr(item.faults, part) > 0 for item in worlds)
    assert all(0.0 <= item.lock_offset_training <= 0.02 for item in worlds)


def test_a_world_of_the_population_is_its_seed() -> None:
    """The same seed gives the same world in a given mode, whichever was drawn before."""
    assert population(5, MODES[2]) == population(5, MODES[2])
    assert population(5).mode in MODES
    assert population(5, population(5).mode) == population(5)


def test_lengths_follow_the_world() -> None:
    """Cut at the limit, growing as told, masked tokens out of the loss, thrown-away rounds in generation only."""
    base = world(ExecutionMode.COLOCATED_SYNC)
    long = replace(base, lengths=replace(base.lengths, mean_tokens=8000.0))
    growing = replace(base, lengths=replace(base.lengths, growth=0.005))
    masked = replace(base, lengths=replace(base.lengths, masked_share=0.25))
    repeated = replace(base, lengths=replace(base.lengths, rounds_share=1.0))

    plain, cut, grown, less, more = (draw(item, 200, 1) for item in (base, long, growing, masked, repeated))

    assert max(cut.longest) == base.lengths.limit_tokens
    assert sum(grown.generated[150:]) > 1.5 * sum(plain.generated[150:])
    assert sum(less.valid) == pytest.approx(0.75 * sum(plain.valid), rel=0.02)
    assert less.generated == plain.generated
    assert more.valid == plain.valid
    assert sum(more.generated) == pytest.approx(2 * sum(plain.generated), rel=1e-4)


def test_noise_has_the_size_and_memory_it_was_given() -> None:
    """The sd of log multipliers and their correlation from update to update."""
    base = world(ExecutionMode.COLOCATED_SYNC)
    noise = replace(
        base.noise, level_sd=0.02, level_correlation=0.7, phase_sd=1e-6, slow_start=(), tail_df=30.0
    )

    logs = np.log(draw(replace(base, noise=noise), 5000, 1).training_time)

    assert logs.std() == pytest.approx(0.02, rel=0.1)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(0.7, abs=0.05)


@pytest.mark.parametrize("mode", [ExecutionMode.COLOCATED_SYNC, ExecutionMode.ASYNC_DRAINED])
def test_costs_give_the_times_they_were_made_for(mode: ExecutionMode) -> None:
    """Mean governor seconds of generation and training, tail, attention and extra rounds included."""
    shares = Shares(
        generation_s=80.0, training_s=50.0, reward_s=1.0, refit_s=3.0, rest_s=2.0, tail=0.5, attention=0.3
    )
    lengths = replace(world(mode).lengths, rounds_share=0.3)
    made = world(mode, lengths=lengths, costs=costs_for(shares, lengths))

    conditions = draw(made, 400, 1)

    generation_s = np.mean(conditions.throughput_s) + np.mean(conditions.latency_s)
    assert generation_s == pytest.approx(80.0, rel=0.05)
    assert np.mean(conditions.training_s) == pytest.approx(50.0, rel=0.05)
    assert np.mean(conditions.refit_s) == pytest.approx(3.0, rel=0.05)
