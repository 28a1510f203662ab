"""Whatever valid records come, in whatever order: no crash, no impossible clock, no difference between equals."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eerl_controller import (
    FLAGS,
    ClockGrid,
    Controller,
    ExecutionMode,
    PhaseRecord,
    PoolRecord,
    RecordError,
    Settings,
    UpdateRecord,
)

GRID = ClockGrid([345, 360, 510, 795, 1050, 1290, 1500, 1665, 1800, 1950, 1980, 2010], 1980)
MIN_MHZ, MAX_MHZ = 400, 1900

#: Modes in which a whole pool waits long enough to lower its clock for it.
SEPARATE_AND_WAITING = (ExecutionMode.DISAGGREGATED_SYNC, ExecutionMode.ASYNC_DRAINED)

#: Short phases of the machine, so that a few hundred arbitrary records reach all of it.
QUICK = Settings(
    policy="paper",
    calibration_updates=4,
    async_inflight_calibration_updates=4,
    trial_updates=1,
    confirmation_updates=2,
    settle_updates=0,
    monitor_window=4,
    monitor_every=2,
    coverage_failures=3,
    remeasure_updates=2,
    give_up_updates=6,
    suspend_updates=2,
    reference_window=12,
    min_mhz=MIN_MHZ,
    max_mhz=MAX_MHZ,
)
SETTINGS = [QUICK, replace(QUICK, policy="eerl")]

numbers = st.one_of(st.none(), st.floats(0, 1e15), st.floats(50, 150), st.just(0.0))
counts = st.one_of(st.none(), st.integers(0, 10**15), st.integers(900, 1100), st.just(0))
ids = st.one_of(st.none(), st.integers(0, 40))
shares = st.one_of(st.none(), st.floats(0.0, 1.0), st.floats(0, 1e15))
phase_names = st.sampled_from(
    ["generation", "training", "logprob", "critic", "refit", "validation", "checkpoint", "training/x", "odd"]
)
flag_sets = st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(sorted(FLAGS)), max_size=2))


@st.composite
def wild(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of any valid record; how its plan relates to the one wished for is drawn as well."""
    return {
        "elapsed_s": draw(st.one_of(st.none(), st.floats(1e-300, 1e15), st.floats(50, 150))),
        "energy_j": draw(numbers),
        "phases": {
            name: PhaseRecord(elapsed_s=draw(numbers), energy_j=draw(numbers))
            for name in draw(st.lists(phase_names, max_size=5, unique=True))
        },
        "pools": {"training": PoolRecord(achieved_mhz=draw(numbers))} if draw(st.booleans()) else {},
        "generated_tokens": draw(counts),
        "longest_generated_tokens": draw(counts),
        "valid_tokens": draw(counts),
        "longest_consumed_tokens": draw(counts),
        "generation_arrival_s": draw(numbers),
        "training_arrival_s": draw(numbers),
        "generation_busy_fraction": draw(shares),
        "training_busy_fraction": draw(shares),
        "oldest_request_plan_id": draw(ids),
        "policy_age_max": draw(numbers),
        "remaining_updates": draw(st.one_of(st.none(), st.integers(0, 500))),
        "remaining_s": draw(st.one_of(st.none(), st.floats(0, 1e9))),
        "flags": draw(flag_sets),
    }


def tame(rng: np.random.Generator) -> dict[str, Any]:
    """Fields of a plausible record, with time and energy that may or may not favour low clocks."""
    generated = int(rng.integers(500, 2000))
    generation_s, training_s = float(rng.uniform(40, 80)), float(rng.uniform(20, 40))
    return {
        "elapsed_s": generation_s + training_s + 5.0,
        "energy_j": float(rng.uniform(9000, 15000)),
        "phases": {
            "generation": PhaseRecord(elapsed_s=generation_s, energy_j=float(rng.uniform(3000, 5000))),
            "training": PhaseRecord(elapsed_s=training_s, energy_j=float(rng.uniform(3000, 4000))),
        },
        "generated_tokens": generated,
        "longest_generated_tokens": 100,
        "valid_tokens": generated,
        "longest_consumed_tokens": 100,
        "generation_arrival_s": generation_s,
        "training_arrival_s": training_s,
        "generation_busy_fraction": generation_s / (generation_s + training_s + 5.0),
        "training_busy_fraction": training_s / (generation_s + training_s + 5.0),
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
    for _ in range(draw(st.sampled_from([10, 60, 150]))):
        behind = 0 if rng.random() < steadiness else int(rng.integers(-1, 3))
        moved = 1 if rng.random() < steadiness else int(rng.integers(-3, 4))
        story.append((tame(rng), behind, moved))
    for place, fields in draw(st.lists(st.tuples(st.integers(0, 149), wild()), max_size=4)):
        if place < len(story):
            story[place] = (fields, *story[place][1:])
    return story


def tell(controller: Controller, number: int, fields: dict[str, Any], plan_behind: int) -> None:
    """Observe a record that ran under the plan ``plan_behind`` ids ago (-1: mixed); refusals are legal."""
    now = controller.plan.plan_id
    plan_id = None if plan_behind < 0 else max(now - plan_behind, 0)
    record = UpdateRecord(update=number, plan_id=plan_id, **fields)
    before = controller.snapshot()
    try:
        controller.observe(record)
    except RecordError:
        assert controller.snapshot() == before


@pytest.mark.parametrize("quick", SETTINGS, ids=lambda item: item.policy)
@pytest.mark.parametrize("mode", list(ExecutionMode))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_any_run_is_survived_with_possible_clocks_only(
    mode: ExecutionMode, quick: Settings, story: Story
) -> None:
    """No exception but RecordError, no warning, no number that JSON cannot hold, no clock off the table."""
    controller = Controller(quick, mode, GRID)
    number = 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields, behind, moved in story:
            number += moved
            tell(controller, number, fields, behind)
            plan = controller.plan
            for mhz in (plan.generation_mhz, plan.training_mhz, plan.idle_mhz):
                assert mhz is None or (mhz in GRID.supported_mhz and MIN_MHZ <= mhz <= MAX_MHZ)
            assert plan.idle_mhz is None or mode in SEPARATE_AND_WAITING
            assert controller.summary()
        json.dumps(controller.snapshot(), allow_nan=False)


@pytest.mark.parametrize("quick", SETTINGS, ids=lambda item: item.policy)
@pytest.mark.parametrize("mode", list(ExecutionMode))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories(), st.integers(0, 149))
def test_equal_records_give_equal_plans_also_through_a_snapshot(
    mode: ExecutionMode, quick: Settings, story: Story, cut: int
) -> None:
    """Two controllers agree, one of which was written down and read back in the middle."""
    one = Controller(quick, mode, GRID)
    other = Controller(quick, mode, GRID)
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
    assert one.saving == other.saving
