"""Policy eerl in flight where generation is busy all the time and yet follows training: empty slots, nobody waits."""

from __future__ import annotations

import math
import random

import numpy as np
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
from eerl_controller.bayes.pace_priors import Layout, doubt_following

UPDATES = 200


def update(index: int, plan: ClockPlan | None, rng: random.Random) -> UpdateRecord:
    """A batch is generated and then trained on; one straggling response keeps generation busy beside training."""
    generation_mhz, training_mhz = clocks_mhz(plan)
    work = math.exp(rng.gauss(0.0, 0.03))
    data_s = 40.0 * work * (0.65 + 0.35 * TOP_MHZ / generation_mhz) * math.exp(rng.gauss(0.0, 0.01))
    training_s = 30.0 * work * (0.3 + 0.7 * TOP_MHZ / training_mhz) * math.exp(rng.gauss(0.0, 0.01))
    busy_s, refit_s = data_s + training_s, 3.0
    generation_j, training_j = busy_s * watts(generation_mhz), training_s * watts(training_mhz)
    pools_j = generation_j + 200.0 * refit_s, training_j + 150.0 * data_s + 200.0 * refit_s
    plan_id = plan.plan_id if plan else 0
    return UpdateRecord(
        update=index,
        plan_id=plan_id,
        elapsed_s=busy_s + refit_s,
        energy_j=sum(pools_j),
        phases={
            "generation": PhaseRecord(elapsed_s=busy_s, energy_j=generation_j),
            "training": PhaseRecord(elapsed_s=training_s, energy_j=training_j),
            "refit": PhaseRecord(elapsed_s=refit_s, energy_j=400.0 * refit_s),
        },
        pools={
            "generation": PoolRecord(
                requested_mhz=plan.generation_mhz if plan else None,
                achieved_mhz=generation_mhz,
                energy_j=pools_j[0],
                busy_s=busy_s,
                wait_s=0.0,
            ),
            "training": PoolRecord(
                requested_mhz=plan.training_mhz if plan else None,
                achieved_mhz=training_mhz,
                energy_j=pools_j[1],
                busy_s=training_s,
                wait_s=data_s,
            ),
        },
        generated_tokens=round(800_000 * work),
        longest_generated_tokens=4000,
        valid_tokens=round(790_000 * work),
        longest_consumed_tokens=4000,
        policy_age_max=1.0,
        oldest_request_plan_id=plan_id,
        remaining_updates=UPDATES - 1 - index,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_training_that_generation_follows_is_not_free(seed: int) -> None:
    """Training waits half of the time, and its clock costs all the same: the limit is kept, some energy saved."""
    controller = Controller(Settings(), ExecutionMode.ASYNC_INFLIGHT, GRID)
    elapsed_s = governor_s = energy_j = governor_j = 0.0
    for index in range(UPDATES):
        own, governed = beside(update, index, controller.plan, seed)
        elapsed_s, governor_s = elapsed_s + (own.elapsed_s or 0.0), governor_s + (governed.elapsed_s or 0.0)
        energy_j, governor_j = energy_j + (own.energy_j or 0.0), governor_j + (governed.energy_j or 0.0)
        controller.observe(own)

    assert elapsed_s < 1.02 * governor_s
    assert energy_j < 0.97 * governor_j


@pytest.mark.parametrize(("found", "follows"), [(0.0, False), (0.3, True)])
def test_the_evidence_says_whether_generation_follows(found: float, follows: bool) -> None:
    """Near nothing it is most likely nothing; what is clearly there stays. What is known together stays known."""
    mean, covariance = np.zeros(Layout.size), np.eye(Layout.size) * 1e-6
    at, own = Layout.following, Layout.offset[0]
    mean[at] = found
    # The sum of both is known to a thousandth, either alone to three hundredths.
    covariance[np.ix_([at, own], [at, own])] = [[9e-4, -8.995e-4], [-8.995e-4, 9e-4]]
    before = mean[at] + mean[own]

    doubt_following(mean, covariance)

    both = covariance[at, at] + covariance[own, own] + 2.0 * covariance[at, own]
    assert mean[at] == pytest.approx(found, abs=0.01)
    assert mean[at] + mean[own] == pytest.approx(before, abs=1e-3)
    assert both == pytest.approx(1e-6, abs=1e-6)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    assert (covariance[at, at] < 3e-4) is not follows
