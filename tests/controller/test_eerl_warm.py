"""Warm start: a later run of the same job on the same GPUs begins from what an earlier one knew, and checks it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from controller.worlds import DRAINED, INFLIGHT, training_bound

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_controller.strategy import Strategy
from eerl_twin import Run, World, population, simulate
from eerl_twin.response import TimeResponse

KEY: dict[str, Any] = {
    "model": "qwen",
    "framework": "nemo",
    "mode": "async_drained",
    "batch_shape": [64, 8, 4096],
    "gpu_model": "H100",
    "pool_sizes": [8, 24],
    "gpus": ["GPU-a", "GPU-b"],
}


#: A world for each of the synchronous modes, in which lower clocks pay.
SYNCHRONOUS = [
    population(2, mode) for mode in (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC)
]


def strategy_of(controller: Controller) -> Strategy:
    """The strategy, on which the pair of methods is."""
    return controller._strategy


def run_in(
    place: World, seed: int, posterior: dict[str, Any] | None = None, updates: int = 120
) -> tuple[Controller, Run]:
    """A run, from a posterior if there is one."""
    controller = Controller(Settings(), place.mode, place.grid)
    if posterior is not None:
        assert strategy_of(controller).from_posterior(posterior, KEY)
    return controller, simulate(place, controller, updates, seed)


def learnt(place: World) -> dict[str, Any]:
    """What a run of 200 updates knows, through JSON."""
    controller, _ = run_in(place, 1, updates=200)
    posterior = strategy_of(controller).posterior(KEY)
    return dict(json.loads(json.dumps(posterior, allow_nan=False)))


@pytest.mark.parametrize("mode", [DRAINED, INFLIGHT])
def test_a_warm_run_saves_as_much_and_keeps_the_limit(mode: ExecutionMode) -> None:
    """Sixty updates of the same job: a cold search is short, so there is little to gain, and nothing may be lost."""
    place = training_bound(mode)
    posterior = learnt(place)

    cold, warm = (
        [run_in(place, seed, known, updates=60)[1].totals() for seed in (2, 3, 4)]
        for known in (None, posterior)
    )

    saved = [sum(item.energy_saving for item in runs if item is not None) for runs in (cold, warm)]
    assert saved[1] > 0.9 * saved[0] > 0.0
    assert min(item.throughput_change for item in warm if item is not None) > -0.021


def test_the_first_trial_is_no_deeper_than_without() -> None:
    """It is confirmed first: one tenth below the clock that the governor reaches, where a trial costs anything."""
    place = training_bound(DRAINED)
    _, run = run_in(place, 2, learnt(place), updates=30)

    first = next(plan for plan in run.plans if plan is not None and plan.training_mhz is not None)
    ceiling = max(record.pools["training"].achieved_mhz or 0.0 for record in run.records)
    assert (first.training_mhz or 0) > 0.88 * ceiling


def test_what_is_not_so_is_found_out() -> None:
    """The posterior is of work that the clock does not touch; here it does, wholly: the limit is kept."""
    place = training_bound(DRAINED)
    posterior = learnt(replace(place, training_response=TimeResponse(bound=0.02)))
    stiff = replace(place, training_response=TimeResponse(bound=1.0))

    for seed in (5, 6):
        _, run = run_in(stiff, seed, posterior, updates=150)
        totals = run.totals()
        assert totals is not None
        assert totals.throughput_change > -0.021


@pytest.mark.parametrize("name", sorted(KEY))
def test_another_job_starts_afresh(name: str) -> None:
    """Any part of the key that differs, or is not known: nothing is taken over."""
    posterior = learnt(training_bound(DRAINED)) if name == "gpus" else {"version": 1, "key": KEY}
    place = training_bound(DRAINED)
    controller = Controller(Settings(), place.mode, place.grid)
    before = controller.snapshot()

    assert not strategy_of(controller).from_posterior(posterior, {**KEY, name: "another"})
    assert not strategy_of(controller).from_posterior(posterior, {**KEY, name: None})
    assert controller.snapshot() == before


@pytest.mark.parametrize("place", SYNCHRONOUS, ids=lambda place: str(place.mode.value))
def test_a_synchronous_run_takes_up_what_it_is_told(place: World) -> None:
    """Forty updates of the same job: what the clocks do is known sooner, the limit is kept, and no less is saved."""
    posterior = learnt(place)
    cold, warm = (
        [run_in(place, seed, known, updates=40)[1].totals() for seed in (2, 3, 4)]
        for known in (None, posterior)
    )

    saved = [sum(item.energy_saving for item in runs if item is not None) for runs in (cold, warm)]
    assert saved[1] > 0.9 * saved[0] > 0.0
    assert min(item.throughput_change for item in warm if item is not None) > -0.025


@pytest.mark.parametrize("place", SYNCHRONOUS, ids=lambda place: str(place.mode.value))
def test_a_warm_run_goes_on_from_its_snapshot(place: World) -> None:
    """What it was told, and how far that is confirmed, is part of the snapshot."""
    controller, _ = run_in(place, 2, learnt(place), updates=12)

    copy = Controller.restore(json.loads(json.dumps(controller.snapshot(), allow_nan=False)))

    assert copy.snapshot() == controller.snapshot()
    assert strategy_of(copy).posterior(KEY) == strategy_of(controller).posterior(KEY)


@pytest.mark.parametrize("place", SYNCHRONOUS, ids=lambda place: str(place.mode.value))
def test_knowledge_that_is_wrong_is_dropped(place: World) -> None:
    """Told that the clock costs nothing at all, as surely as can be: the first lowered updates contradict, and the
    limit is kept.
    """
    posterior = learnt(place)
    size = len(posterior["times"]["mean"])
    posterior["times"] = {
        "mean": [0.0] * size,
        "covariance": [[1e-6 * (i == j) for j in range(size)] for i in range(size)],
    }
    _, run = run_in(place, 3, posterior, updates=150)
    totals = run.totals()

    assert totals is not None and totals.throughput_change > -0.025


def test_a_run_that_knows_nothing_leaves_nothing() -> None:
    """Three updates are no knowledge."""
    controller, _ = run_in(training_bound(DRAINED), 1, updates=3)

    assert strategy_of(controller).posterior(KEY) is None


def spoilt(value: Any, by: float) -> Any:
    """The same plain data with every number that is not whole replaced."""
    if isinstance(value, dict):
        return {name: spoilt(item, by) for name, item in value.items()}
    if isinstance(value, list):
        return [spoilt(item, by) for item in value]
    return by if isinstance(value, float) else value


@pytest.mark.parametrize("place", [training_bound(DRAINED), training_bound(INFLIGHT), SYNCHRONOUS[0]])
def test_a_damaged_posterior_is_as_good_as_none(place: World) -> None:
    """What cannot be a belief (missing, no numbers, huge, negative or no variance) leaves the run without it."""
    posterior = learnt(place)
    parts = [name for name in ("times", "powers", "paces", "watts") if name in posterior]

    without = run_in(place, 2, {**posterior, **dict.fromkeys(parts)}, updates=40)[1].plans
    damaged: list[dict[str, Any]] = [
        {name: value for name, value in posterior.items() if name not in parts},
        {**posterior, **dict.fromkeys(parts, "gone")},
        *(
            {**posterior, **{name: spoilt(posterior[name], by) for name in parts}}
            for by in (1e300, -1e6, -1.0, 0.0)
        ),
    ]

    assert len(parts) == 2
    for given in damaged:
        assert run_in(place, 2, given, updates=40)[1].plans == without
    assert run_in(place, 2, posterior, updates=40)[1].plans != without
