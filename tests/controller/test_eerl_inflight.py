"""Policy eerl with in-flight updates: whole runs, and the queue by which it knows how both pools go together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from controller.test_modes_bad_input import Delayed, Spoiled
from controller.worlds import INFLIGHT, training_bound, world

from eerl_controller import Controller, Reason, Settings, UpdateRecord
from eerl_controller.bayes.backlog import GOVERNED, Queue, batches_of
from eerl_controller.bayes.knee import meeting
from eerl_controller.bayes.latency import BELIEFS, believe
from eerl_twin import FixedPlan, World, simulate
from eerl_twin.conditions import draw
from eerl_twin.oracle import best_fixed


def controller_in(place: World, **settings: Any) -> Controller:
    """A controller of a job in this world, with the model's policy."""
    return Controller(Settings(**settings), place.mode, place.grid)


@pytest.mark.parametrize("place", [world(INFLIGHT), training_bound(INFLIGHT)], ids=["generation", "training"])
def test_the_allowance_is_kept_and_most_of_what_can_be_saved_is(place: World) -> None:
    """Whichever pool is the slower one: within 2 % over the whole run, and near the best fixed clocks."""
    controller = controller_in(place)
    run = simulate(place, controller, 250, 1)
    best = best_fixed(place, draw(place, 250, 1))

    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.02
    assert totals.energy_saving > 0.75 * best.energy_saving
    assert all(plan is None or plan.idle_mhz is None for plan in run.plans)


def test_a_plan_that_waits_an_update_is_attributed_by_its_id() -> None:
    """Every plan comes into force an update late, and every record two more: the allowance is kept all the same."""
    place = world(INFLIGHT, plan_lag=1)

    totals = simulate(place, Delayed(controller_in(place), 2), 250, 2).totals()

    assert totals is not None
    assert totals.throughput_change > -0.021
    assert totals.energy_saving > 0.05


@pytest.mark.parametrize("at", [4, 12, 80])
def test_a_snapshot_goes_on_with_the_same_plans(at: int) -> None:
    """Written as JSON and restored in calibration, in search and under the lock."""
    place = world(INFLIGHT, max_policy_age=3)
    controller = controller_in(place)
    run = simulate(place, controller, 140, 3)
    first = controller_in(place)
    for record in run.records[:at]:
        first.observe(record)

    second = Controller.restore(json.loads(json.dumps(first.snapshot())))
    for record in run.records[at:]:
        assert second.observe(record) == first.observe(record)
    assert second.snapshot() == controller.snapshot()


def test_unknown_busy_times_leave_it_to_the_governor() -> None:
    """Neither fractions nor busy seconds: the plan says what is missing."""
    controller = controller_in(world(INFLIGHT))
    fields: dict[str, Any] = {"generation_busy_fraction": None, "training_busy_fraction": None, "pools": {}}

    def blind(record: UpdateRecord) -> UpdateRecord:
        return replace(record, **fields)

    simulate(world(INFLIGHT), Spoiled(controller, blind), 60, 1)

    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.MISSING_BUSY


def test_a_later_arrival_is_replayed() -> None:
    """Generation 100 s and training 60 s: training is free until it takes as long, and then decides."""
    knee = meeting([(100.0, 60.0)] * 5)

    assert knee.at(0.0, np.log(1.5)).running_s == pytest.approx(100.0, rel=2e-3)
    assert knee.at(0.0, np.log(2.0)).running_s == pytest.approx(120.0, rel=2e-3)
    assert knee.at(np.log(1.1), 0.0).running_s == pytest.approx(110.0, rel=2e-3)
    assert [float(part) for part in knee.governed.critical_s] == pytest.approx([100.0, 0.0])


def taken(
    place: World, training_mhz: int | None, updates: int = 160
) -> list[tuple[float, float, float, float]]:
    """Busy seconds of both pools, seconds in which both could work, and the longest response, by update."""
    run = simulate(place, FixedPlan(None, training_mhz), updates, 1)
    found = []
    for record in run.records[20:]:
        pools = record.pools
        busy = [pools[name].busy_s or 0.0 for name in ("generation", "training")]
        longest = float(record.longest_consumed_tokens or 0)
        found.append((*busy, busy[0] + (pools["generation"].wait_s or 0.0), longest))
    return found


@pytest.mark.parametrize("age", [1, 3])
@pytest.mark.parametrize("latency_share", [0.3, 3.0])
def test_the_queue_tells_what_slower_training_costs(age: int, latency_share: float) -> None:
    """From a governor run, whether work or the latency of long responses decides: what lower clocks would take."""
    place = world(INFLIGHT, max_policy_age=age)
    place = replace(place, lengths=replace(place.lengths, latency_share=latency_share))
    governed = taken(place, None)
    batches = batches_of(
        [row[:2] for row in governed],
        [row[3] for row in governed],
        [row[2] for row in governed],
        [(0.0, 0.0)] * len(governed),
        age,
    )

    knee, _ = believe(batches, Queue.empty((BELIEFS, 1)))

    for mhz in (1395, 900, 600):
        rows = taken(place, mhz)
        slower = np.log(np.mean([row[1] for row in rows]) / np.mean([row[1] for row in governed]))
        truth_s = float(np.mean([row[2] for row in rows]))
        assert knee.at(0.0, slower).running_s == pytest.approx(truth_s, rel=0.02)


def test_what_is_lost_for_a_while_is_won_back() -> None:
    """Ten updates of training slower than generation fill the queue; with training as fast as before it empties."""
    slow = [(0.0, 0.0)] * 10 + [(0.0, 0.3)] * 10 + [(0.0, 0.0)] * 20
    seconds = [(50.0, 45.0 * float(np.exp(t))) for _, t in slow]
    batches = batches_of(seconds, [1.0] * 40, [max(g, t) for g, t in seconds], slow, 2)

    was = batches.run(Queue.empty((1, 1)), np.zeros(1), batches.as_it_was)[:, 0, 0]
    would = batches.run(Queue.empty((1, 1)), np.zeros(1), GOVERNED)[:, 0, 0]

    lost = np.cumsum(was - would)
    assert lost[19] > 80.0
    assert lost[-1] < lost[19] - 50.0
