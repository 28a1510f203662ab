"""Policy eerl with overlapping pools: whatever valid records come, no crash, no impossible clock, no chance."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from controller.test_properties import GRID, MAX_MHZ, MIN_MHZ, QUICK, tell, wild
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eerl_controller import Controller, ExecutionMode, PhaseRecord, PoolRecord
from eerl_controller.settings import Settings

MODES = [ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT]
MODEL = Settings.from_dict({**QUICK.to_dict(), "policy": "eerl"})


def tame(rng: np.random.Generator) -> dict[str, Any]:
    """Fields of a plausible record of two pools side by side."""
    generated = int(rng.integers(500, 2000))
    generation_s, training_s = float(rng.uniform(40, 80)), float(rng.uniform(20, 70))
    running_s, refit_s = max(generation_s, training_s), float(rng.uniform(1, 5))
    joules = [float(rng.uniform(3000, 5000)) for _ in range(2)]
    return {
        "elapsed_s": running_s + refit_s,
        "energy_j": sum(joules) + 2000.0,
        "phases": {
            "generation": PhaseRecord(elapsed_s=generation_s, energy_j=joules[0]),
            "training": PhaseRecord(elapsed_s=training_s, energy_j=joules[1]),
            "refit": PhaseRecord(elapsed_s=refit_s, energy_j=500.0),
        },
        "pools": {
            name: PoolRecord(
                achieved_mhz=float(rng.uniform(1200, 1980)),
                energy_j=joule + 1000.0,
                busy_s=busy_s,
                wait_s=running_s - busy_s,
            )
            for name, joule, busy_s in zip(
                ("generation", "training"), joules, (generation_s, training_s), strict=True
            )
        },
        "generated_tokens": generated,
        "longest_generated_tokens": 100,
        "valid_tokens": generated,
        "longest_consumed_tokens": 100,
        "policy_age_max": float(rng.integers(1, 4)),
        "reward": float(rng.normal()),
        "generation_arrival_s": generation_s,
        "training_arrival_s": training_s,
        "generation_busy_fraction": generation_s / (running_s + refit_s),
        "training_busy_fraction": training_s / (running_s + refit_s),
    }


Story = list[tuple[dict[str, Any], int, int]]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A run: fields, how many plans behind each update ran (-1: mixed), how far the update number moves.

    Most updates are plausible, made from a drawn seed; a few, drawn one by one, are anything.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steadiness = draw(st.sampled_from([0.6, 0.95]))
    story: Story = []
    for _ in range(draw(st.sampled_from([10, 40, 90]))):
        behind = 0 if rng.random() < steadiness else int(rng.integers(-1, 3))
        moved = 1 if rng.random() < steadiness else int(rng.integers(-3, 4))
        story.append((tame(rng), behind, moved))
    for place, fields in draw(st.lists(st.tuples(st.integers(0, 89), wild()), max_size=4)):
        if place < len(story):
            pools = {**story[place][0]["pools"], **fields["pools"]}
            story[place] = ({**fields, "pools": pools}, *story[place][1:])
    return story


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_any_run_is_survived_with_possible_clocks_only(mode: ExecutionMode, story: Story) -> None:
    """No exception but RecordError, no warning, no number that JSON cannot hold, no clock off the table."""
    controller = Controller(MODEL, mode, GRID)
    number = 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields, behind, moved in story:
            number += moved
            tell(controller, number, fields, behind)
            plan = controller.plan
            for mhz in (plan.generation_mhz, plan.training_mhz, plan.idle_mhz):
                assert mhz is None or (mhz in GRID.supported_mhz and MIN_MHZ <= mhz <= MAX_MHZ)
            assert plan.idle_mhz is None or mode is ExecutionMode.ASYNC_DRAINED
            assert controller.summary()
        json.dumps(controller.snapshot(), allow_nan=False)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(), st.integers(0, 89))
def test_equal_records_give_equal_plans_also_through_a_snapshot(
    mode: ExecutionMode, story: Story, cut: int
) -> None:
    """Two controllers agree, one of which was written down and read back in the middle."""
    one, other = Controller(MODEL, mode, GRID), Controller(MODEL, mode, GRID)
    number = 0

    for index, (fields, behind, moved) in enumerate(story):
        number += moved
        if index == cut:
            other = Controller.restore(json.loads(json.dumps(other.snapshot(), allow_nan=False)))
        tell(one, number, fields, behind)
        tell(other, number, fields, behind)
        assert one.plan == other.plan
        assert one.state is other.state
    assert one.snapshot() == other.snapshot()
