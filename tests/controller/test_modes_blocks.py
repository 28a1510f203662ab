"""How long a block has to be, and what it shows against its neighbours."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from eerl_controller import ExecutionMode, GovernorModel
from eerl_controller.blocks import BlockDesign, Noise, compare_blocks, design_blocks, estimate_noise
from eerl_controller.clocks import Pair
from eerl_controller.work import Observation


def observations(residuals: list[float], *, time: float = 1.0, energy: float = 1.0) -> list[Observation]:
    """Updates of equal work whose time and energy scatter by these logs."""
    return [
        Observation(
            elapsed_s=100.0 * time * math.exp(value),
            energy_j=1e4 * energy * math.exp(value),
            phases={},
            counts={"generated": 1e6, "longest": 4096.0, "longest_consumed": 4096.0, "valid": 1e6},
            busy=(0.9, 0.5),
        )
        for value in residuals
    ]


def ar1(count: int, sd: float, correlation: float, seed: int) -> list[float]:
    """A series of this standard deviation and lag-one correlation."""
    rng = np.random.default_rng(seed)
    values = [sd * rng.normal()]
    for _ in range(count - 1):
        values.append(correlation * values[-1] + sd * math.sqrt(1 - correlation**2) * rng.normal())
    return [float(value) for value in values]


def model_of(residuals: list[float]) -> GovernorModel:
    """The governor's model from updates that scatter by these logs."""
    model = GovernorModel.fit_observations(observations(residuals), ExecutionMode.ASYNC_INFLIGHT)
    assert model is not None
    return model


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("updates", [3, 6, 12])
def test_the_variance_of_a_blocks_mean_is_that_of_the_series(correlation: float, updates: int) -> None:
    """The formula against many simulated blocks."""
    means = [np.mean(ar1(updates, 0.02, correlation, seed)) for seed in range(4000)]

    assert Noise(0.02, correlation).variance(updates) == pytest.approx(float(np.var(means)), rel=0.12)


def test_a_comparison_with_two_governor_blocks_has_half_their_variance_on_top() -> None:
    """SE(n) = sqrt(V(n) + V(n) / 2)."""
    noise = Noise(0.02, 0.3)

    assert noise.comparison_se(6, 6, 6) == pytest.approx(math.sqrt(1.5 * noise.variance(6)))


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.6])
def test_noise_and_correlation_are_found_from_calibration(correlation: float) -> None:
    """Averaged over runs of 45 updates; one alone is uncertain by about 0.15."""
    found = []
    for seed in range(60):
        model = model_of(ar1(45, 0.01, correlation, seed))
        found.append(estimate_noise(model.time, [(item.elapsed_s, item) for item in model.references]))

    assert np.mean([noise.correlation for noise in found]) == pytest.approx(correlation, abs=0.06)
    assert np.mean([noise.sd for noise in found]) == pytest.approx(0.01, rel=0.12)


@pytest.mark.parametrize(
    ("sd", "correlation", "wanted"), [(0.01, 0.0, 3), (0.035, 0.0, 6), (0.04, 0.2, 12), (0.2, 0.5, 12)]
)
def test_the_shortest_block_that_is_certain_enough_is_taken(
    sd: float, correlation: float, wanted: int
) -> None:
    """2 % standard error; 12 updates when none reaches it."""
    lengths = []
    for seed in range(15):
        design = design_blocks(model_of(ar1(45, sd, correlation, seed)), 0.02)
        assert design is not None
        lengths.append(design.updates)

    assert sorted(lengths)[len(lengths) // 2] == wanted


def test_what_the_model_gets_wrong_in_common_cancels() -> None:
    """The whole machine has become 10 % slower; the candidate block is 3 % slower than its neighbours."""
    model = model_of(ar1(45, 0.001, 0.0, 1))
    design = BlockDesign(Noise(0.001, 0.0), Noise(0.001, 0.0), 3)
    around = [observations([0.0] * 3, time=1.09), observations([0.0] * 3, time=1.11)]
    candidate = observations([0.0] * 3, time=1.10 * 1.03, energy=0.9)

    word = compare_blocks(model, design, candidate, around, Pair(None, 1200))

    assert word is not None
    assert word.added_time.total == pytest.approx(0.03, abs=0.001)
    assert word.added_time.training == word.added_time.total
    assert word.energy_change == pytest.approx(-0.1, abs=0.001)


def test_updates_of_unknown_energy_count_for_time_only() -> None:
    """A block with half of its energy known is judged on that half."""
    model = model_of(ar1(45, 0.001, 0.0, 2))
    design = BlockDesign(Noise(0.001, 0.0), Noise(0.001, 0.0), 3)
    candidate = observations([0.0] * 4, energy=0.9)
    candidate = [replace(item, energy_j=None) if i % 2 else item for i, item in enumerate(candidate)]
    around = [observations([0.0] * 3), observations([0.0] * 3)]

    word = compare_blocks(model, design, candidate, around, Pair(None, 1200))
    nothing = compare_blocks(
        model, design, [replace(item, energy_j=None) for item in candidate], around, Pair(None, 1200)
    )

    assert word is not None
    assert word.updates == 4
    assert word.energy_change == pytest.approx(-0.1, abs=0.001)
    assert nothing is None


def test_a_governor_block_of_nothing_but_stragglers_is_no_block() -> None:
    """Half of its updates are far slower than the others: none is near their middle; the other block decides."""
    model = model_of(ar1(45, 0.001, 0.0, 2))
    design = BlockDesign(Noise(0.001, 0.0), Noise(0.001, 0.0), 4)
    around = [observations([0.0, 0.0, 2.0, 2.0]), observations([0.0] * 4)]

    word = compare_blocks(model, design, observations([0.0] * 4, energy=0.9), around, Pair(None, 1200))

    assert word is not None
    assert word.added_time.total == pytest.approx(0.0, abs=0.001)
