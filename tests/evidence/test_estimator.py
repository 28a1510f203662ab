"""Appendix A's estimator: pairing, averaging over seeds, and intervals that hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from eerl_launch.evidence.estimator import (
    GOVERNOR,
    Cell,
    Setting,
    Totals,
    best_setting,
    compare_settings,
)

FAST: Setting = (1800, 1500)
SLOW: Setting = (1200, 1200)


def cell(seed: int, block: str, setting: Setting, log_q: float, log_e: float) -> Cell:
    """A run with these logs of throughput and energy per token."""
    return Cell(seed, block, setting, Totals(1e6, 1e6 / math.exp(log_q), 1e6 * math.exp(log_e)))


def test_runs_are_compared_within_their_block() -> None:
    """A governor of another allocation is no reference, however close its seed."""
    cells = [
        cell(1, "a", GOVERNOR, 0.0, 0.0),
        cell(1, "a", FAST, -0.01, -0.1),
        cell(1, "b", GOVERNOR, 0.5, 0.5),
        cell(1, "c", SLOW, 0.3, -0.9),
    ]

    found = compare_settings(cells)

    assert [item.setting for item in found] == [FAST]
    assert found[0].throughput.ratio == pytest.approx(math.exp(-0.01))
    assert found[0].energy.ratio == pytest.approx(math.exp(-0.1))


def test_seeds_weigh_alike_however_often_they_ran() -> None:
    """Repetitions of a seed are averaged before the seeds are."""
    cells = []
    for seed, block, value in ((1, "a", -0.10), (1, "b", -0.20), (2, "c", -0.05)):
        cells += [cell(seed, block, GOVERNOR, 0.0, 0.0), cell(seed, block, FAST, 0.0, value)]

    (found,) = compare_settings(cells)

    assert found.energy.ratio == pytest.approx(math.exp((-0.15 - 0.05) / 2))
    assert (found.seeds, found.pairs) == (2, 3)


def test_one_seed_has_no_interval() -> None:
    """Nothing is known of the noise from one pair, so nothing is said."""
    (found,) = compare_settings([cell(1, "a", GOVERNOR, 0.0, 0.0), cell(1, "a", FAST, -0.1, -0.1)])

    assert found.energy.low is None and found.energy.high is None
    assert found.energy.saving_interval() == (None, None)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Three settings and two seeds, drawn 400 times: 95 % of the intervals have the truth, give or take chance."""
    rng = np.random.default_rng(1)
    truth = {FAST: -0.02, SLOW: -0.11, (1500, None): -0.05}
    draws, hits = 400, dict.fromkeys(truth, 0)

    for _ in range(draws):
        cells = []
        for seed in (1, 2):
            level = rng.normal(0.0, 0.3)  # the allocation's own: it must cancel
            cells.append(cell(seed, str(seed), GOVERNOR, 0.0, level + rng.normal(0.0, 0.01)))
            cells += [
                cell(seed, str(seed), setting, 0.0, level + value + rng.normal(0.0, 0.01))
                for setting, value in truth.items()
            ]
        for item in compare_settings(cells):
            assert item.energy.low is not None and item.energy.high is not None
            hits[item.setting] += item.energy.low <= math.exp(truth[item.setting]) <= item.energy.high

    low, high = binom.ppf([0.0005, 0.9995], draws, 0.95)
    assert all(low <= count <= high for count in hits.values()), hits


def test_the_best_setting_keeps_the_limit_and_saves() -> None:
    """The largest saving within the limit is taken; what loses more, or saves nothing, is not eligible."""
    cells = []
    for seed in (1, 2):
        block = str(seed)
        cells += [
            cell(seed, block, GOVERNOR, 0.0, 0.0),
            cell(seed, block, FAST, math.log(0.985), math.log(0.93)),
            cell(seed, block, SLOW, math.log(0.90), math.log(0.75)),
            cell(seed, block, (1980, 1980), math.log(1.0), math.log(1.01)),
        ]
    found = compare_settings(cells)

    strict = best_setting(found, 0.02)
    loose = best_setting(found, 0.15)

    assert strict is not None and strict.setting == FAST
    assert loose is not None and loose.setting == SLOW
    assert best_setting(found, 0.001) is None
