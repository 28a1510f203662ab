from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from controller.examples import QUIET, simple
from controller.workload import BALANCED, Job

from eerl_controller import ExecutionMode, GovernorModel, PhaseRecord, UpdateRecord

SYNC = ExecutionMode.COLOCATED_SYNC


def governor_records(count: int, seed: int = 0, **changes: object) -> list[UpdateRecord]:
    """Records of a governor run after its slow start."""
    job = Job(replace(BALANCED, slow_start=(), **changes), seed)  # type: ignore[arg-type]
    return [job.update(None, None, 0) for _ in range(count)]


def test_equal_work_is_predicted_from_tokens() -> None:
    """Longer responses take longer under any clock; the model knows by how much."""
    records = governor_records(30, noise_sd=0.0)
    model = GovernorModel.fit(records, SYNC)
    assert model is not None
    longer = Job(replace(QUIET, slow_start=(), mean_tokens=1800.0, spread=0.0), 9).update(None, None, 0)

    prediction = model.predict(longer)

    assert prediction.elapsed_s == pytest.approx(longer.elapsed_s, rel=0.02)
    assert prediction.energy_j == pytest.approx(longer.energy_j, rel=0.02)
    assert prediction.phases["generation"].elapsed_s == pytest.approx(
        longer.phases["generation"].elapsed_s, rel=0.02
    )
    assert prediction.references == 30


def test_token_counts_beat_a_constant_reference_as_in_appendix_b() -> None:
    """Fit 15 past governor updates, predict the next three, advance by three; compare with their mean."""
    records = governor_records(75, seed=3, spread=0.15)
    with_tokens, constant = [], []

    for start in range(0, 60, 3):
        past, future = records[start : start + 15], records[start + 15 : start + 18]
        model = GovernorModel.fit(past, SYNC)
        assert model is not None
        measured = sum(record.elapsed_s or 0.0 for record in future)
        predicted = sum(model.predict(record).elapsed_s for record in future)
        mean = np.mean([record.elapsed_s for record in past])
        with_tokens.append(abs(measured / predicted - 1.0))
        constant.append(abs(measured / (3 * mean) - 1.0))

    assert np.median(with_tokens) < 0.015
    assert np.median(with_tokens) < np.median(constant) / 3


def test_too_few_updates_are_no_reference() -> None:
    """Two updates predict nothing."""
    assert GovernorModel.fit(governor_records(2), SYNC) is None
    assert GovernorModel.fit([], SYNC) is None


def test_three_updates_give_a_median_without_slopes() -> None:
    """Small samples get the constant reference, not a wild fit."""
    model = GovernorModel.fit(governor_records(3), SYNC)

    assert model is not None
    assert all(not term.names for term in model.time.terms.values())


def test_warm_up_and_stragglers_are_left_out() -> None:
    """A first update of 30 times, a second of 3 times (field case R03), and a stuck rollout (R07)."""
    records = governor_records(20, noise_sd=0.01)
    slow = {0: 30.0, 1: 3.0, 11: 24.0}
    spoilt = [
        replace(record, elapsed_s=(record.elapsed_s or 0.0) * slow.get(index, 1.0))
        for index, record in enumerate(records)
    ]

    model, clean = GovernorModel.fit(spoilt, SYNC), GovernorModel.fit(records, SYNC)

    assert model is not None and clean is not None
    assert len(model.references) == 17
    assert model.predict(records[5]).elapsed_s == pytest.approx(clean.predict(records[5]).elapsed_s, rel=0.02)


def test_work_outside_the_references_is_said_to_be() -> None:
    """A prediction beyond the range by more than the stated widening is marked."""
    model = GovernorModel.fit(governor_records(20), SYNC)
    assert model is not None
    inside = governor_records(1)[0]

    assert model.predict(inside).inside_coverage
    assert not model.predict(replace(inside, valid_tokens=(inside.valid_tokens or 0) * 3)).inside_coverage
    assert not model.predict(replace(inside, longest_generated_tokens=None)).inside_coverage


def test_other_phases_and_the_rest_are_governor_medians() -> None:
    """Refit has no token law: its median is predicted when it ran."""
    records = governor_records(15)
    model = GovernorModel.fit(records, SYNC)
    assert model is not None

    refit = [record.phases["refit"].elapsed_s or 0.0 for record in records]

    assert model.predict(records[0]).phases["refit"].elapsed_s == pytest.approx(np.median(refit))


def test_validation_is_predicted_as_measured() -> None:
    """Nothing is claimed for a validation: it stands in the prediction with its own time and energy."""
    records = governor_records(15)
    model = GovernorModel.fit(records, SYNC)
    assert model is not None
    plain = records[3]
    visited = replace(
        plain,
        elapsed_s=(plain.elapsed_s or 0.0) + 50.0,
        energy_j=(plain.energy_j or 0.0) + 9000.0,
        phases={**plain.phases, "validation": PhaseRecord(elapsed_s=50.0, energy_j=9000.0)},
        flags=frozenset({"validation"}),
    )

    extra_s = model.predict(visited).elapsed_s - model.predict(plain).elapsed_s
    extra_j = (model.predict(visited).energy_j or 0.0) - (model.predict(plain).energy_j or 0.0)

    assert extra_s == pytest.approx(50.0)
    assert extra_j == pytest.approx(9000.0)


def test_records_without_phases_use_the_whole_update() -> None:
    """Without phase markers the update as a whole is still a function of its tokens."""
    records = [replace(record, phases={}) for record in governor_records(20, noise_sd=0.0)]
    model = GovernorModel.fit(records, SYNC)

    assert model is not None
    assert model.predict(records[4]).elapsed_s == pytest.approx(records[4].elapsed_s, rel=0.02)
    assert not model.predict(records[4]).phases


def test_overlapping_modes_use_the_whole_update() -> None:
    """In asynchronous modes phases do not add up to the update."""
    model = GovernorModel.fit(governor_records(20), ExecutionMode.ASYNC_DRAINED)

    assert model is not None
    assert list(model.time.terms) == ["update"]


def test_unknown_energy_is_none_not_zero() -> None:
    """A job whose energy cannot be read gets predicted times only."""
    model = GovernorModel.fit([simple(k, energy_j=None) for k in range(8)], SYNC)

    assert model is not None
    assert model.predict(simple(9)).energy_j is None


def test_identical_updates_are_predicted_exactly() -> None:
    """No variance anywhere: nothing is divided by zero."""
    model = GovernorModel.fit([simple(k) for k in range(8)], SYNC)

    assert model is not None
    assert model.predict(simple(9)).elapsed_s == pytest.approx(100.0)
    assert model.predict(simple(9)).energy_j == pytest.approx(10_000.0)


def test_only_a_straggler_is_slower_than_its_clocks_explain() -> None:
    """At half the clock twice the time is possible; three times is something else."""
    model = GovernorModel.fit([simple(k) for k in range(8)], SYNC)
    assert model is not None

    assert not model.slower_than_clocks_explain(simple(9, elapsed_s=200.0, phases={}), 2.0)
    assert model.slower_than_clocks_explain(simple(9, elapsed_s=300.0, phases={}), 2.0)
    assert not model.slower_than_clocks_explain(simple(9, elapsed_s=None), 2.0)
