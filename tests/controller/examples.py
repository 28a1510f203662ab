"""Small records and ready-made stretches of a run, for tests that say exactly what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.workload import BALANCED, Job, Phase, Workload

from eerl_controller import (
    ClockPlan,
    Controller,
    ExecutionMode,
    PhaseRecord,
    Settings,
    State,
    UpdateRecord,
)

#: A job without noise: what it shows is what is true.
QUIET = replace(BALANCED, name="quiet", noise_sd=0.0, correlation=0.0, rest_s=4.0)
#: Free of the clock in generation, bound by it in training (field case C03).
ONE_SIDED = Workload(
    "one-sided",
    generation=Phase(per_generated_s=4e-5, per_longest_s=8e-3, clock_bound=0.02, dynamic_w=4000.0),
    training=Phase(per_valid_s=4e-5, clock_bound=1.0, dynamic_w=4000.0),
    logprob=Phase(per_valid_s=8e-6, clock_bound=1.0, dynamic_w=4000.0),
    noise_sd=0.005,
)


def simple(update: int, **fields: object) -> UpdateRecord:
    """A plain governor record of 100 s and 10 kJ; ``fields`` replace what is to be different."""
    values: dict[str, object] = {
        "update": update,
        "plan_id": 0,
        "elapsed_s": 100.0,
        "energy_j": 10_000.0,
        "phases": {
            "generation": PhaseRecord(elapsed_s=60.0, energy_j=5000.0),
            "training": PhaseRecord(elapsed_s=30.0, energy_j=4000.0),
        },
        "generated_tokens": 1000,
        "longest_generated_tokens": 100,
        "valid_tokens": 900,
    }
    values.update(fields)
    return UpdateRecord(**values)  # type: ignore[arg-type]


def controller_for(workload: Workload, **settings: object) -> Controller:
    """A controller of a colocated job on this workload's grid; policy ``paper`` unless told otherwise."""
    settings.setdefault("policy", "paper")
    return Controller(Settings(**settings), ExecutionMode.COLOCATED_SYNC, workload.grid)  # type: ignore[arg-type]


def step(controller: Controller, job: Job, **fields: object) -> ClockPlan:
    """One update under the plan wished for, observed."""
    plan = controller.plan
    record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id, **fields)
    return controller.observe(record)


def run_until(
    controller: Controller, job: Job, wanted: Callable[[Controller], bool], limit: int = 400
) -> int:
    """Update after update until ``wanted``; returns how many it took and fails when it never comes."""
    for count in range(limit):
        if wanted(controller):
            return count
        step(controller, job)
    raise AssertionError(f"not within {limit} updates: now {controller.state}, {controller.plan}")


def locked(controller: Controller) -> bool:
    """Whether the controller holds a lock."""
    return controller.state is State.LOCKED
