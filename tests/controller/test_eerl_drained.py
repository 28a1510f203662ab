"""Policy eerl with drained updates, over whole runs: what it keeps, saves, tries first, and how it fails."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from controller.test_modes_bad_input import Delayed, Spoiled
from controller.worlds import DRAINED, training_bound, world

from eerl_controller import TRANSITIONS, Controller, Reason, RecordError, Settings, UpdateRecord
from eerl_twin import Faults, Run, World, simulate
from eerl_twin.conditions import draw
from eerl_twin.oracle import best_fixed


def controller_in(place: World, **settings: Any) -> Controller:
    """A controller of a job in this world, with the model's policy."""
    return Controller(Settings(**settings), place.mode, place.grid)


def lived(place: World, updates: int, seed: int = 1, **settings: Any) -> tuple[Controller, Run]:
    """A run in this world and its controller."""
    controller = controller_in(place, **settings)
    return controller, simulate(place, controller, updates, seed)


@pytest.mark.parametrize("place", [world(DRAINED), training_bound(DRAINED)], ids=["generation", "training"])
def test_the_allowance_is_kept_and_most_of_what_can_be_saved_is(place: World) -> None:
    """Whichever pool is the later one: within 2 % over the whole run, and near the best fixed clocks."""
    _, run = lived(place, 250)
    best = best_fixed(place, draw(place, 250, 1))

    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.02
    assert totals.energy_saving > 0.8 * best.energy_saving


def test_the_pool_that_waits_anyway_is_lowered_at_once() -> None:
    """Training has time to spare: after six usable updates its clock falls, further than generation's ever."""
    _, run = lived(world(DRAINED), 40)

    lowered = [plan for plan in run.plans if plan is not None and plan.training_mhz is not None]
    first = next(i for i, plan in enumerate(run.plans) if plan is not None and not plan.is_governor)
    assert first <= 10
    assert len(lowered) >= 25
    assert min(plan.training_mhz or 0 for plan in lowered) < 1300
    assert min(plan.generation_mhz or 1980 for plan in lowered) > 1300


def test_waiting_pools_take_the_idle_clock() -> None:
    """Once something is held, the idle clock is part of it."""
    controller, _ = lived(world(DRAINED), 120)

    assert controller.plan.idle_mhz == 345


def test_a_probe_leaves_the_other_side_lowered() -> None:
    """The loss of a lowered generation clock is compared with the governor's while training stays low."""
    place = training_bound(DRAINED)
    controller = controller_in(place)
    probes = []

    class Watching:
        """A plan source that keeps the probes."""

        @property
        def plan(self) -> Any:
            """The plan wished for now."""
            return controller.plan

        def observe(self, record: UpdateRecord) -> Any:
            """Take one update in."""
            plan = controller.observe(record)
            if plan.reason is Reason.REFERENCE_AGE:
                probes.append(plan)
            return plan

    simulate(place, Watching(), 250, 3)

    assert probes
    assert any(not plan.is_governor for plan in probes)


def test_every_change_of_state_is_a_legal_one() -> None:
    """Over a run with faults, states follow the table."""
    place = world(DRAINED, faults=Faults(throttle_share=0.02, lost_share=0.02, mixed_share=0.3))

    _, run = lived(place, 300, 2)

    for before, after in pairwise(run.states):
        assert before is not None
        assert after == before or after in TRANSITIONS[before]


def test_the_same_records_give_the_same_plans() -> None:
    """Two controllers, one run: no lot is drawn."""
    controller, run = lived(world(DRAINED), 120)
    other = controller_in(world(DRAINED))

    for record in run.records:
        other.observe(record)

    assert other.snapshot() == controller.snapshot()


@pytest.mark.parametrize("at", [3, 9, 20, 90])
def test_a_snapshot_goes_on_with_the_same_plans(at: int) -> None:
    """Written as JSON and restored in calibration, in search and under the lock."""
    controller, run = lived(world(DRAINED), 150)
    first = controller_in(world(DRAINED))
    for record in run.records[:at]:
        first.observe(record)

    second = Controller.restore(json.loads(json.dumps(first.snapshot())))
    for record in run.records[at:]:
        assert second.observe(record) == first.observe(record)
    assert second.snapshot() == controller.snapshot()


def test_memory_does_not_grow() -> None:
    """Twice the updates, the same memory but for digits."""
    sizes = [len(json.dumps(lived(world(DRAINED), updates)[0].snapshot())) for updates in (600, 1200)]

    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.parametrize("delay", [1, 3])
def test_late_records_keep_the_allowance(delay: int) -> None:
    """Records come up to three updates late: they are attributed by their plan."""
    place = world(DRAINED)

    totals = simulate(place, Delayed(controller_in(place), delay), 250, 2).totals()

    assert totals is not None
    assert totals.throughput_change > -0.021
    assert totals.energy_saving > 0.05


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"training_arrival_s": None}, Reason.MISSING_ARRIVALS),
        ({"generation_arrival_s": 1e6}, Reason.MISSING_ARRIVALS),
        ({"training_arrival_s": 0.0}, Reason.MISSING_ARRIVALS),
        ({"valid_tokens": None}, Reason.MISSING_COUNTS),
        ({"energy_j": None}, Reason.MISSING_ENERGY),
        ({"pools": {}}, Reason.MISSING_ENERGY),
    ],
)
def test_without_what_it_learns_from_it_stays_on_the_governor(fields: dict[str, Any], reason: Reason) -> None:
    """Arrivals, counts and the pools' energy; the plan says what is missing."""
    controller = controller_in(world(DRAINED))

    simulate(world(DRAINED), Spoiled(controller, lambda record: replace(record, **fields)), 60, 1)

    assert controller.plan.is_governor
    assert controller.plan.reason is reason


def test_arrivals_that_stop_coming_lead_back_to_the_governor() -> None:
    """From update 60 on no pool arrives: clocks are let go of after twenty updates, and not taken up again."""
    controller = controller_in(world(DRAINED))

    def silent(record: UpdateRecord) -> UpdateRecord:
        if record.update < 60:
            return record
        return replace(record, generation_arrival_s=None, training_arrival_s=None)

    simulate(world(DRAINED), Spoiled(controller, silent), 150, 1)

    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.MISSING_ARRIVALS


def test_nothing_allowed_takes_free_savings_only() -> None:
    """With no allowance the pool that waits may still be lowered as far as physics says that it is free."""
    controller, run = lived(world(DRAINED), 150, max_throughput_loss=0.0)

    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.0005
    assert controller.plan.generation_mhz is None


def test_the_same_update_twice_changes_nothing() -> None:
    """RecordError, and the controller is as it was."""
    controller, run = lived(world(DRAINED), 40)
    before = controller.snapshot()

    with pytest.raises(RecordError):
        controller.observe(run.records[-1])

    assert controller.snapshot() == before
