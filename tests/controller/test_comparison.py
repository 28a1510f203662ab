from __future__ import annotations

from dataclasses import replace

import pytest
from controller.examples import QUIET
from controller.workload import Job

from eerl_controller import ExecutionMode, GovernorModel
from eerl_controller.comparison import Change, Comparison, compare, pooled, without_stragglers
from eerl_controller.work import Observation, observe_work


def reference(seed: int = 0) -> GovernorModel:
    """The governor of the quiet job."""
    job = Job(replace(QUIET, slow_start=()), seed)
    model = GovernorModel.fit([job.update(None, None, 0) for _ in range(25)], ExecutionMode.COLOCATED_SYNC)
    assert model is not None
    return model


def under(
    generation_mhz: int | None, training_mhz: int | None, count: int, **changes: object
) -> list[Observation]:
    """Observations of the quiet job under given clocks."""
    job = Job(replace(QUIET, slow_start=(), **changes), 77)  # type: ignore[arg-type]
    return [observe_work(job.update(generation_mhz, training_mhz, 1)) for _ in range(count)]


@pytest.mark.parametrize("clocks", [(1500, 1500), (None, 1200), (1650, None), (990, 1980)])
def test_three_updates_of_other_work_show_the_clocks_true_effect(
    clocks: tuple[int | None, int | None],
) -> None:
    """Longer responses in the trial do not pass for an effect of its clocks."""
    loss, saving = Job(QUIET, 0).expected(*clocks)

    comparison = compare(reference(), under(*clocks, 3, mean_tokens=1750.0))

    assert comparison is not None
    assert comparison.loss == pytest.approx(loss, abs=0.006)
    assert -comparison.energy_change == pytest.approx(saving, abs=0.006)
    assert comparison.updates == 3


def test_added_time_is_booked_on_the_clock_that_added_it() -> None:
    """Only training was slowed, so only the training clock is responsible."""
    comparison = compare(reference(), under(None, 1200, 3))

    assert comparison is not None
    assert comparison.added_time.training > 0.05
    assert abs(comparison.added_time.generation) < 0.01


def test_waits_and_switches_outside_phases_count() -> None:
    """Two seconds more of unmarked time are a loss although no phase is slower."""
    model = reference()
    waiting = [
        replace(item, elapsed_s=item.elapsed_s + 2.0, energy_j=(item.energy_j or 0.0) + 4000.0)
        for item in under(None, None, 5)
    ]
    mean_s = sum(item.elapsed_s for item in model.references) / len(model.references)

    comparison = compare(model, waiting)

    assert comparison is not None
    assert comparison.added_time.rest == pytest.approx(2.0 / mean_s, rel=0.25)
    assert not comparison.passes(0.01)


def test_partial_energy_is_left_out_of_energy_only() -> None:
    """Time evidence comes from all updates, energy from those that have it."""
    observations = under(1500, 1500, 3)
    blind = replace(
        observations[0],
        energy_j=None,
        phases={name: (seconds, None) for name, (seconds, _) in observations[0].phases.items()},
    )

    whole = compare(reference(), observations)
    partial = compare(reference(), [blind, *observations[1:]])

    assert whole is not None and partial is not None
    assert partial.updates == 3
    assert partial.energy_change == pytest.approx(whole.energy_change, abs=0.01)
    assert compare(reference(), [blind]) is None


def test_a_straggler_among_the_trial_is_dropped() -> None:
    """The others of the same setting show what is usual."""
    observations = under(1500, 1500, 4)
    stuck = replace(observations[2], elapsed_s=observations[2].elapsed_s * 5)

    kept = without_stragglers(reference(), [*observations[:2], stuck, observations[3]])

    assert kept == [*observations[:2], observations[3]]


def _comparison(added_time: float, added_energy: float, updates: int = 3) -> Comparison:
    return Comparison(Change(added_time, 0.0, 0.0), Change(added_energy, 0.0, 0.0), 0.01, 0.01, updates)


def test_passing_needs_both_throughput_and_energy() -> None:
    """Algorithm 1: at least 98 % of the throughput and lower energy per token."""
    assert _comparison(0.02, -0.05).passes(0.02)
    assert not _comparison(0.03, -0.05).passes(0.02)
    assert not _comparison(0.01, 0.0).passes(0.02)
    assert not _comparison(-0.01, 0.01).passes(0.02)


def test_throughput_is_the_inverse_of_time() -> None:
    """A quarter more time is a fifth less throughput."""
    assert _comparison(0.25, 0.0).throughput_change == pytest.approx(-0.2)


def test_pooling_weighs_by_updates() -> None:
    """Six fresh updates say twice as much as three."""
    both = pooled([_comparison(0.03, -0.06, 3), _comparison(0.0, -0.03, 6)])

    assert both.added_time.total == pytest.approx(0.01)
    assert both.energy_change == pytest.approx(-0.04)
    assert both.updates == 9
    assert both.time_se < 0.01
    with pytest.raises(ValueError, match="nothing"):
        pooled([])


def test_a_comparison_survives_its_dictionary() -> None:
    """Snapshots lose nothing."""
    comparison = _comparison(0.012345678901234567, -0.1)

    assert Comparison.from_dict(comparison.to_dict()) == comparison
