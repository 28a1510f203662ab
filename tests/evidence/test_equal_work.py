"""Appendix E and appendix B: at equal work, and how well work foretells the governor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evidence.twin_ledgers import quiet, write_run
from scipy.stats import binom

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_launch.evidence.normalized import normalized
from eerl_launch.evidence.pooled import features_of, fit_pooled
from eerl_launch.evidence.predictor import evaluate_predictor, forward_test
from eerl_launch.evidence.runs import EvidenceError, load_run
from eerl_twin import FixedPlan, World, population, preset, simulate


def frame(
    seed: int, updates: int = 200, *, tokens: float = 1.0, slow: float = 1.0, cheap: float = 1.0
) -> pd.DataFrame:
    """A synchronous run whose phases are exactly linear in their counts."""
    rng = np.random.default_rng(seed)
    generated = tokens * rng.uniform(5e5, 9e5, updates)
    longest = rng.uniform(2000, 4000, updates)
    valid = generated * rng.uniform(0.6, 0.9, updates)
    generation_s = 4.0 + 2e-5 * generated + 3e-3 * longest
    training_s = 2.0 + 3e-5 * valid
    columns = {
        "generated_tokens": generated,
        "longest_tokens": longest,
        "longest_consumed_tokens": longest,
        "valid_tokens": valid,
        "generation_elapsed_s": slow * generation_s,
        "training_elapsed_s": slow * training_s,
        "rest_elapsed_s": np.full(updates, slow * 3.0),
        "generation_energy_j": cheap * 500.0 * generation_s,
        "training_energy_j": cheap * 900.0 * training_s,
        "rest_energy_j": np.full(updates, cheap * 300.0),
    }
    found = pd.DataFrame(columns, index=pd.RangeIndex(1, updates + 1))
    for unit in ("elapsed_s", "energy_j"):
        found[unit] = found[[f"{part}_{unit}" for part in ("generation", "training", "rest")]].sum(axis=1)
        found[f"own_{unit}"] = found[unit]
        found[f"visits_{unit}"] = 0.0
    return found.assign(usable=True)


def test_work_is_taken_out() -> None:
    """A run with a fifth more tokens, 2 % slower and 10 % cheaper, comes out as just that."""
    governors = [frame(1), frame(2, tokens=1.3)]

    found = normalized(
        frame(3, tokens=1.2, slow=1.02, cheap=0.9), governors, fit_pooled(governors, "colocated_sync")
    )

    assert found.energy_saving_percent == pytest.approx(10.0, abs=1e-6)
    assert found.throughput.change_percent == pytest.approx(100 * (1 / 1.02 - 1), abs=1e-6)
    assert found.governor_time_ratios == pytest.approx((1.0, 1.0))
    assert found.energy.high is not None and found.energy.high - found.energy.ratio < 1e-6


def test_warm_up_does_not_bend_the_model_and_counts_in_the_totals() -> None:
    """A slow second update of every run leaves the coefficients alone, and cancels between the runs."""
    runs = [frame(seed) for seed in (1, 2, 3)]
    for run in runs:
        for column in ("training_elapsed_s", "own_elapsed_s", "elapsed_s"):
            run.loc[2, column] += 500.0

    model = fit_pooled(runs[:2], "colocated_sync")
    found = normalized(runs[2], runs[:2], model)

    training = next(fit for fit in model.fits["elapsed_s"] if fit.part == "training")
    assert training.coefficients == pytest.approx((2.0, 3e-5), rel=1e-6)
    assert found.governor_time_ratios[0] > 1.01
    assert found.throughput.change_percent == pytest.approx(0.0, abs=0.2)


def test_visits_are_taken_as_they_were_measured() -> None:
    """Validation of one run only is neither a loss nor a cost, and does not widen the interval."""
    governors = [frame(1), frame(2)]
    run = frame(3, cheap=0.9)
    for unit, size in (("elapsed_s", 40.0), ("energy_j", 9000.0)):
        run.loc[::20, f"visits_{unit}"] = size
        run.loc[::20, unit] += size

    found = normalized(run, governors, fit_pooled(governors, "colocated_sync"))

    scored = run.loc[2:]
    own_j, visits_j = scored["own_energy_j"].sum(), scored["visits_energy_j"].sum()
    share = own_j / 0.9 / (own_j / 0.9 + visits_j)
    assert found.energy_saving_percent == pytest.approx(10.0 * share, abs=1e-6)
    assert found.throughput.change_percent == pytest.approx(0.0, abs=1e-6)


def test_runs_that_differ_as_wholes_widen_the_interval() -> None:
    """Two governors 4 % apart say that a difference of 2 % is nothing."""
    governors = [frame(1, slow=0.98), frame(2, slow=1.02)]

    found = normalized(frame(3, slow=1.02), governors, fit_pooled(governors, "colocated_sync"))

    low, high = found.throughput.change_interval()
    assert low is not None and high is not None
    assert low < -10.0 and high > 10.0


def test_features_follow_the_mode() -> None:
    """What the paper names for each mode; where L barely varies, drained updates take N instead."""
    pooled = frame(1).assign(previous_valid_tokens=1.0)
    at_limit = pooled.assign(longest_tokens=4096.0)

    assert features_of("colocated_sync", pooled) == {
        "generation": ("generated_tokens", "longest_tokens"),
        "training": ("valid_tokens",),
    }
    assert features_of("async_drained", pooled) == {"whole": ("longest_tokens", "generated_tokens")}
    assert features_of("async_drained", at_limit) == {"whole": ("generated_tokens", "valid_tokens")}
    assert features_of("async_inflight", pooled) == {
        "whole": ("valid_tokens", "longest_consumed_tokens", "previous_valid_tokens")
    }


def test_training_on_masked_tokens() -> None:
    """Where training works on tokens that N does not count, G joins N; else it does not."""
    plain = [frame(1), frame(2)]
    masked = [run.copy() for run in plain]
    for run in masked:
        run["training_elapsed_s"] = 2.0 + 3e-5 * run["generated_tokens"]

    features = [
        next(
            fit.features
            for fit in fit_pooled(runs, "colocated_sync").fits["elapsed_s"]
            if fit.part == "training"
        )
        for runs in (plain, masked)
    ]

    assert features == [("valid_tokens",), ("valid_tokens", "generated_tokens")]


def test_too_few_governor_updates() -> None:
    """A model of three coefficients from twenty updates is refused, and says what it needs."""
    with pytest.raises(EvidenceError, match="30 are needed"):
        fit_pooled([frame(1, 11), frame(2, 11)], "colocated_sync")


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(ExecutionMode), ids=lambda mode: mode.value)
def test_intervals_hold_the_twins_truth(mode: ExecutionMode, tmp_path: Path) -> None:
    """A controller's run of its own work and two governor runs of theirs: the truth is inside as often as said."""
    worlds, hits = 12, [0, 0]

    for seed in range(worlds):
        world = quiet(population(5100 + seed, mode))
        run = simulate(world, Controller(Settings(policy="paper"), mode, world.grid), 200, seed)
        frames = [load_run(write_run(tmp_path / f"c{seed}", run, "paper")).frame]
        for place in (1, 2):
            governor = simulate(world, FixedPlan(), 200, 1000 + 10 * seed + place)
            frames.append(load_run(write_run(tmp_path / f"g{seed}-{place}", governor, "governor")).frame)
        found = normalized(frames[0], frames[1:], fit_pooled(frames[1:], mode.value))
        truth = run.totals(1)
        assert truth is not None
        for place, (limits, value) in enumerate(
            (
                (found.energy.saving_interval(), truth.energy_saving),
                (found.throughput.change_interval(), truth.throughput_change),
            )
        ):
            low, high = limits
            assert low is not None and high is not None
            hits[place] += low <= 100 * value <= high

    assert min(hits) >= binom.ppf(0.002, worlds, 0.95), hits


def governor_world() -> World:
    """A colocated job whose work varies, without events."""
    return quiet(preset("nemotron-colocated").world)


def test_forward_test_of_the_predictor() -> None:
    """Token counts foretell later governor updates better than a constant does, block by block as in appendix B."""
    world = governor_world()

    tests = forward_test(simulate(world, FixedPlan(), 100, 1).records, world.mode)

    assert len(tests) == (100 - 15) // 3
    medians = tests.median()
    assert medians["throughput_token_work"] < 0.7 * medians["throughput_constant"]
    assert medians["energy_token_work"] < 0.7 * medians["energy_constant"]


def test_forward_test_over_several_runs(tmp_path: Path) -> None:
    """Blocks of all runs are pooled; a run too short for one block adds none."""
    world = governor_world()
    folders = [
        write_run(tmp_path / str(seed), simulate(world, FixedPlan(), updates, seed), "governor")
        for seed, updates in ((1, 45), (2, 45), (3, 17))
    ]

    found = evaluate_predictor([load_run(folder) for folder in folders])

    assert found is not None and (found.runs, found.blocks) == (2, 20)
    assert evaluate_predictor([load_run(folders[2])]) is None
