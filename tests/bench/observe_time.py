"""What one decision of the controller costs in a long run, beside the same in a short one."""

from __future__ import annotations

import time

from bench.measured import Number, median, quantile
from controller.workload import BALANCED, LONG_GENERATION, Job, Workload

from eerl_controller import Controller, ExecutionMode, Settings

PAST_UPDATES, MEASURED = 1000, 200
_SHORT = 100


def measure() -> list[Number]:
    """Median and p99 of ``observe`` after 1000 updates, and the slowest of all updates."""
    numbers = []
    for workload in (BALANCED, LONG_GENERATION):
        numbers += _measure(workload)
    return numbers


def _measure(workload: Workload) -> list[Number]:
    controller = Controller(Settings(), ExecutionMode.COLOCATED_SYNC, workload.grid, seed=0)
    job = Job(workload, seed=1)
    plan = controller.plan
    taken_ms = []
    for _ in range(PAST_UPDATES + MEASURED):
        record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
        begin = time.perf_counter()
        plan = controller.observe(record)
        taken_ms.append((time.perf_counter() - begin) * 1000)
    late, early = taken_ms[PAST_UPDATES:], taken_ms[_SHORT : _SHORT + MEASURED]
    name, what = f"observe(), {workload.name}", f"updates {_SHORT} to {_SHORT + MEASURED} of the same run"
    note = (
        f"{name}: ends in state {controller.state.value}; the slowest update is number {_slowest(taken_ms)}"
    )
    return [
        Number(
            f"{name}, {PAST_UPDATES} past updates: median", "ms", median(late), median(early), what, note=note
        ),
        Number(
            f"{name}, {PAST_UPDATES} past updates: p99",
            "ms",
            quantile(late, 0.99),
            quantile(early, 0.99),
            what,
        ),
        Number(f"{name}, slowest of all updates", "ms", max(taken_ms)),
    ]


def _slowest(taken_ms: list[float]) -> int:
    return taken_ms.index(max(taken_ms)) + 1
