"""Whole runs on very different workloads: what the controller promises, on average over seeds."""

from __future__ import annotations

import warnings
from statistics import fmean

import pytest
from controller.examples import controller_for
from controller.workload import WORKLOADS, Job, Workload, play

SEEDS = range(6)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_whole_run_keeps_the_throughput_and_saves_energy(workload: Workload) -> None:
    """Search, confirmation and corrections included; the oracle knows everything and pays for nothing."""
    oracle = Job(workload, 0).oracle()[0]
    losses, savings = [], []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in SEEDS:
            truth = play(controller_for(workload), Job(workload, seed), 300)
            losses.append(truth.loss)
            savings.append(truth.saving)

    assert fmean(losses) <= 0.02
    assert max(losses) <= 0.03
    assert min(savings) > 0.0
    assert fmean(savings) >= 0.4 * oracle


@pytest.mark.parametrize("lag", [0, 1])
def test_a_lag_of_one_update_costs_little(lag: int) -> None:
    """Plans that take effect at the next boundary or the one after."""
    workload = WORKLOADS[0]

    truths = [play(controller_for(workload), Job(workload, seed), 300, lag=lag) for seed in SEEDS]

    assert fmean(truth.loss for truth in truths) <= 0.02
    assert fmean(truth.saving for truth in truths) >= 0.4 * Job(workload, 0).oracle()[0]


def test_a_long_run_does_not_lose_its_saving_to_noise() -> None:
    """Over a thousand updates, monitoring neither ratchets the clocks up nor wanders below the limit."""
    workload = WORKLOADS[0]

    truths = [play(controller_for(workload), Job(workload, seed), 1000) for seed in range(3)]

    assert fmean(truth.loss for truth in truths) <= 0.02
    assert fmean(truth.saving for truth in truths) >= 0.55 * Job(workload, 0).oracle()[0]
