"""Worlds of the twin for tests of the modes with separate pools, and controllers that run in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from eerl_controller import ClockPlan, Controller, ExecutionMode, Settings
from eerl_twin import Costs, Noise, Run, World, simulate

DISAGGREGATED = ExecutionMode.DISAGGREGATED_SYNC
DRAINED = ExecutionMode.ASYNC_DRAINED
INFLIGHT = ExecutionMode.ASYNC_INFLIGHT
SEPARATE = (DISAGGREGATED, DRAINED, INFLIGHT)

#: Little noise: what a run shows is nearly what is true.
CALM = Noise(level_sd=0.003, phase_sd=0.003, slow_start=(3.0,))


def world(mode: ExecutionMode, **changes: Any) -> World:
    """A calm world in which generation takes about twice as long as training."""
    values: dict[str, Any] = {
        "name": "calm",
        "mode": mode,
        "generation_gpus": 8,
        "training_gpus": 24,
        "noise": CALM,
        **changes,
    }
    return World(**values)


def training_bound(mode: ExecutionMode) -> World:
    """The same with training as the bottleneck."""
    return world(mode, costs=replace(Costs(), per_trained_s=1.6e-4))


def controller_in(place: World, **settings: Any) -> Controller:
    """A controller of a job in this world, with the paper's policy."""
    return Controller(Settings(**{"policy": "paper", **settings}), place.mode, place.grid)


class Diary:
    """A plan source that passes everything to a controller and keeps every plan and state after each update."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.plans: list[ClockPlan] = []

    @property
    def plan(self) -> ClockPlan:
        """The plan wished for now."""
        return self.controller.plan

    @property
    def state(self) -> Any:
        """What the controller is doing."""
        return self.controller.state

    def observe(self, record: Any) -> ClockPlan:
        """Take one update in."""
        plan = self.controller.observe(record)
        self.plans.append(plan)
        return plan


def live(
    place: World, updates: int, seed: int = 1, **settings: Any
) -> tuple[Controller, Run, list[ClockPlan]]:
    """A run in this world: its controller, the truth, and the plan wished for after each update."""
    diary = Diary(controller_in(place, **settings))
    run = simulate(place, diary, updates, seed)
    return diary.controller, run, diary.plans


def stretches(run: Run, first: int = 0) -> list[tuple[ClockPlan, int]]:
    """The plans in force from an update index on, each with the number of updates that it held."""
    plans = [plan for plan in run.plans[first:] if plan is not None]
    grouped = [list(group) for _, group in groupby(plans, key=lambda plan: plan.plan_id)]
    return [(group[0], len(group)) for group in grouped]


def ceilings_mhz(run: Run) -> tuple[float, float]:
    """The clocks that generation and training reach under the governor."""
    generation, training = (
        max(record.pools[name].achieved_mhz or 0.0 for record in run.records)
        for name in ("generation", "training")
    )
    return generation, training


def is_on_lattice(mhz: int, ceiling_mhz: float, step_mhz: int) -> bool:
    """Whether a clock is a multiple of the step below the ceiling, within half a step of the 15 MHz table."""
    steps = (ceiling_mhz - mhz) / step_mhz
    return abs(steps - round(steps)) * step_mhz <= 7.5
