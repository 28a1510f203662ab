"""Policy eerl where the balance of pools that overlap changes at once: training that was free decides from now on."""

from __future__ import annotations

import json
import math
import random

import pytest
from controller.pool_stream import GRID, TOP_MHZ, beside, clocks_mhz, watts

from eerl_controller import (
    ClockPlan,
    Controller,
    ExecutionMode,
    PhaseRecord,
    PoolRecord,
    Settings,
    UpdateRecord,
)

UPDATES, CHANGE = 200, 100


def update(index: int, plan: ClockPlan | None, rng: random.Random) -> UpdateRecord:
    """A drained update; from :data:`CHANGE` on training has three times as much to do for a token."""
    mhz = clocks_mhz(plan)
    work = math.exp(rng.gauss(0.0, 0.03))
    generation_s = 60.0 * work * (0.65 + 0.35 * TOP_MHZ / mhz[0]) * math.exp(rng.gauss(0.0, 0.01))
    training_s = 25.0 * work * (0.3 + 0.7 * TOP_MHZ / mhz[1]) * math.exp(rng.gauss(0.0, 0.01))
    training_s *= 3.0 if index >= CHANGE else 1.0
    sides_s, refit_s = (generation_s, training_s), 3.0
    running_s = max(sides_s)
    own_j = [side_s * watts(clock) for side_s, clock in zip(sides_s, mhz, strict=True)]
    pool_j = [
        own + 150.0 * (running_s - side) + 200.0 * refit_s for own, side in zip(own_j, sides_s, strict=True)
    ]
    return UpdateRecord(
        update=index,
        plan_id=plan.plan_id if plan else 0,
        elapsed_s=running_s + refit_s,
        energy_j=sum(pool_j),
        phases={
            "generation": PhaseRecord(elapsed_s=generation_s, energy_j=own_j[0]),
            "training": PhaseRecord(elapsed_s=training_s, energy_j=own_j[1]),
            "refit": PhaseRecord(elapsed_s=refit_s, energy_j=400.0 * refit_s),
        },
        pools={
            name: PoolRecord(achieved_mhz=clock, energy_j=joules, busy_s=side_s, wait_s=running_s - side_s)
            for name, clock, joules, side_s in zip(
                ("generation", "training"), mhz, pool_j, sides_s, strict=True
            )
        },
        generated_tokens=round(800_000 * work),
        longest_generated_tokens=4000,
        valid_tokens=round(790_000 * work),
        longest_consumed_tokens=4000,
        generation_arrival_s=generation_s,
        training_arrival_s=training_s,
        remaining_updates=UPDATES - 1 - index,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_free_no_longer_is_left_at_once(seed: int) -> None:
    """Training three times as long is no row of stragglers: a few updates are lost by it, and no more of them."""
    controller = Controller(Settings(), ExecutionMode.ASYNC_DRAINED, GRID)
    lost_s, low_mhz = [], []
    for index in range(UPDATES):
        low_mhz.append(controller.plan.training_mhz or TOP_MHZ)
        own, governed = beside(update, index, controller.plan, seed)
        lost_s.append((own.elapsed_s or 0.0) - (governed.elapsed_s or 0.0))
        controller.observe(own)
        if index in (CHANGE + 1, CHANGE + 5):
            controller = Controller.restore(json.loads(json.dumps(controller.snapshot())))

    assert min(low_mhz[:CHANGE]) < 1200
    assert sum(seconds > 30.0 for seconds in lost_s[CHANGE:]) <= 6
