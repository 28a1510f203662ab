"""What one decision of the controller costs in a long run, and in a very long one, beside the same in a short one.

Processor time: deciding waits for nothing, and a busy machine's neighbours are not its cost.
"""

from __future__ import annotations

import json
import time

from bench.measured import Number, median, quantile
from controller.workload import BALANCED, LONG_GENERATION, Job, Workload
from controller.worlds import DRAINED, INFLIGHT, training_bound

from eerl_controller import ClockPlan, Controller, ExecutionMode, Settings, UpdateRecord
from eerl_twin import World, simulate

PAST_UPDATES, VERY_MANY, MEASURED = 1000, 100_000, 200
_SHORT = 100
#: Wanted: median and p99 after 1,000 updates, median after 100,000, milliseconds.
MEDIAN_MS, P99_MS, VERY_MANY_MS = 1.0, 5.0, 20.0
#: A snapshot is all that a controller remembers: it may grow by this much from 1,000 updates to 100,000.
GROWTH = 2.0
POLICIES = {
    "paper": Settings(policy="paper"),
    "eerl": Settings(policy="eerl"),
}


def measure() -> list[Number]:
    """Median and p99 of ``observe`` after 1,000 updates, by policy and workload, and where pools overlap."""
    numbers = []
    for policy, settings in POLICIES.items():
        for workload in (BALANCED, LONG_GENERATION):
            run = _Run(settings, workload)
            run.go(PAST_UPDATES + MEASURED)
            numbers += _numbers(f"observe(), {policy}, {workload.name}", run.controller, run.taken_ms)
        for mode in (DRAINED, INFLIGHT):
            timed = _Timed(settings, training_bound(mode))
            simulate(timed.place, timed, PAST_UPDATES + MEASURED, 1)
            numbers += _numbers(f"observe(), {policy}, {mode.value}", timed.controller, timed.taken_ms)
    return numbers


def measure_very_many() -> list[Number]:
    """The same after 100,000 updates, and what the controller remembers then; minutes."""
    numbers = []
    for policy, settings in POLICIES.items():
        run = _Run(settings, BALANCED)
        run.go(PAST_UPDATES + MEASURED)
        early, small = run.taken_ms[PAST_UPDATES:], run.remembered_bytes()
        run.go(VERY_MANY - PAST_UPDATES)
        late, large = run.taken_ms[VERY_MANY:], run.remembered_bytes()
        name = f"observe(), {policy}, {VERY_MANY} past updates"
        what = f"after {PAST_UPDATES} updates of the same run"
        numbers += [
            Number(f"{name}: median", "ms", median(late), median(early), what, target=VERY_MANY_MS),
            Number(
                f"{name}: p99", "ms", quantile(late, 0.99), quantile(early, 0.99), what, target=VERY_MANY_MS
            ),
            Number(
                f"{policy}: snapshot after {VERY_MANY} updates",
                "mb",
                large / 1e6,
                small / 1e6,
                what,
                target=GROWTH,
                target_of_ratio=True,
            ),
        ]
    return numbers


class _Run:
    """One job that a controller steers, and the milliseconds that each of its answers took."""

    def __init__(self, settings: Settings, workload: Workload) -> None:
        self.controller = Controller(settings, ExecutionMode.COLOCATED_SYNC, workload.grid, seed=0)
        self.taken_ms: list[float] = []
        self._job = Job(workload, seed=1)

    def go(self, updates: int) -> None:
        """So many more updates."""
        plan = self.controller.plan
        for _ in range(updates):
            record = self._job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id)
            begin = time.process_time()
            plan = self.controller.observe(record)
            self.taken_ms.append((time.process_time() - begin) * 1000)

    def remembered_bytes(self) -> int:
        """Length of the snapshot as JSON."""
        return len(json.dumps(self.controller.snapshot()))


class _Timed:
    """A controller of a job in the twin's virtual time, and the milliseconds that each of its answers took."""

    def __init__(self, settings: Settings, place: World) -> None:
        self.place = place
        self.controller = Controller(settings, place.mode, place.grid, seed=0)
        self.taken_ms: list[float] = []

    @property
    def plan(self) -> ClockPlan:
        """The plan wished for now."""
        return self.controller.plan

    def observe(self, record: UpdateRecord) -> ClockPlan:
        """Take one update in."""
        begin = time.process_time()
        plan = self.controller.observe(record)
        self.taken_ms.append((time.process_time() - begin) * 1000)
        return plan


def _numbers(name: str, controller: Controller, taken_ms: list[float]) -> list[Number]:
    late, early = taken_ms[PAST_UPDATES:], taken_ms[_SHORT : _SHORT + MEASURED]
    what = f"updates {_SHORT} to {_SHORT + MEASURED} of the same run"
    slowest = taken_ms.index(max(taken_ms)) + 1
    note = f"{name}: ends in state {controller.state.value}; the slowest update is number {slowest}"
    past = f"{PAST_UPDATES} past updates"
    return [
        Number(
            f"{name}, {past}: median", "ms", median(late), median(early), what, target=MEDIAN_MS, note=note
        ),
        Number(
            f"{name}, {past}: p99", "ms", quantile(late, 0.99), quantile(early, 0.99), what, target=P99_MS
        ),
        Number(f"{name}, slowest of all updates", "ms", max(taken_ms)),
    ]
