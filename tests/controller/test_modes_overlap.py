"""Two pools side by side: what a slower one costs, by replaying the governor's updates."""

from __future__ import annotations

import pytest

from eerl_controller import ExecutionMode, GovernorModel, PhaseRecord, UpdateRecord
from eerl_controller.clocks import Pair
from eerl_controller.comparison import compare
from eerl_controller.overlap import Overlap
from eerl_controller.work import observe_work

TRAINING_ONLY = Pair(None, 1200)


def drained(
    update: int, generation_s: float, training_s: float, rest_s: float = 4.0, **fields: object
) -> UpdateRecord:
    """An update whose pools arrive after this many seconds; generated tokens follow generation's time."""
    values: dict[str, object] = {
        "update": update,
        "plan_id": 0,
        "elapsed_s": max(generation_s, training_s) + rest_s,
        "energy_j": 1e4,
        "phases": {
            "generation": PhaseRecord(elapsed_s=generation_s, energy_j=4e3),
            "training": PhaseRecord(elapsed_s=training_s, energy_j=4e3),
        },
        "generated_tokens": round(1e4 * generation_s),
        "longest_generated_tokens": round(40 * generation_s),
        "valid_tokens": round(2e4 * training_s),
        "generation_arrival_s": generation_s,
        "training_arrival_s": training_s,
    }
    return UpdateRecord(**{**values, **fields})  # type: ignore[arg-type]


def governed(generation_s: float = 60.0, training_s: float = 40.0) -> GovernorModel:
    """The governor's model from 15 updates that vary by a tenth, each pool for itself."""
    records = [
        drained(i, generation_s * (1 + 0.05 * (i % 3 - 1)), training_s * (1 + 0.05 * (i // 3 % 3 - 1)))
        for i in range(15)
    ]
    model = GovernorModel.fit(records, ExecutionMode.ASYNC_DRAINED)
    assert model is not None
    return model


def overlap_of(model: GovernorModel) -> Overlap:
    """Its arrivals."""
    assert model.overlap is not None
    return model.overlap


@pytest.mark.parametrize(("generation_s", "training_s", "first"), [(60.0, 40.0, 1), (40.0, 60.0, 0)])
def test_the_pool_that_usually_arrives_first_is_known(
    generation_s: float, training_s: float, first: int
) -> None:
    """0 is generation, 1 training."""
    assert overlap_of(governed(generation_s, training_s)).first_axis == first


def test_slower_training_costs_nothing_while_generation_takes_longer() -> None:
    """40 s of training behind 57 s of generation at the least: 1.3 times as long does not show."""
    overlap = overlap_of(governed())

    assert overlap.added_time(1.0, 1.3) == pytest.approx(0.0, abs=1e-9)
    assert overlap.added_time(1.0, 2.0) == pytest.approx(20.0 / 64.0, abs=0.02)
    assert overlap.added_time(1.1, 1.0) == pytest.approx(6.0 / 64.0, abs=0.002)


def test_how_far_a_pool_may_slow_down_follows_from_the_allowance() -> None:
    """The allowance is met at the ratio, and broken just above it."""
    overlap = overlap_of(governed())

    ratio = overlap.longest_ratio(1, 0.02, 4.0)

    assert overlap.added_time(1.0, ratio) == pytest.approx(0.02, abs=1e-6)
    assert overlap.longest_ratio(1, 0.02, 1.2) == 1.2


def test_only_training_slowed_is_judged_by_replay_whatever_generation_did() -> None:
    """The trial's responses were unlucky by 8 %; training took 1.2 times as long, which the wait hides."""
    model = governed()
    work = {"generated_tokens": 600_000, "longest_generated_tokens": 2400, "valid_tokens": 800_000}
    trial = [observe_work(drained(i, 65.0, 48.0, energy_j=9e3, **work)) for i in range(3)]

    replayed = compare(model, trial, TRAINING_ONLY)
    whole = compare(model, trial, Pair(1800, 1200))

    assert replayed is not None
    assert whole is not None
    assert replayed.slowdowns[1] == pytest.approx(1.2, abs=0.01)
    assert replayed.added_time.total == pytest.approx(0.0, abs=0.002)
    assert whole.added_time.total == pytest.approx(5.0 / 64.0, abs=0.01)


def test_a_refit_that_takes_longer_under_the_lower_clock_counts() -> None:
    """Acceptance is on the whole update: what follows the rendezvous is measured, not replayed."""
    model = governed()
    trial = [observe_work(drained(i, 60.0, 48.0, 8.0, valid_tokens=800_000)) for i in range(3)]

    word = compare(model, trial, TRAINING_ONLY)

    assert word is not None
    assert word.added_time.rest == pytest.approx(4.0 / 64.0, abs=0.005)


def test_the_governors_update_is_the_longer_of_both_and_the_rest() -> None:
    """Section 5.1, for work in which either pool is the later one."""
    model = governed(50.0, 50.0)

    slow_generation = model.predict(drained(1, 52.4, 47.6))
    slow_training = model.predict(drained(2, 47.6, 52.4))

    assert slow_generation.elapsed_s == pytest.approx(56.4, abs=0.5)
    assert slow_training.elapsed_s == pytest.approx(56.4, abs=0.5)


@pytest.mark.parametrize(
    "fields",
    [
        {"generation_arrival_s": 90.0},
        {"training_arrival_s": 0.0},
        {"training_arrival_s": None},
        {"phases": {"validation": PhaseRecord(elapsed_s=5.0, energy_j=1e2)}},
    ],
)
def test_arrivals_that_cannot_be_trusted_are_none(fields: dict[str, object]) -> None:
    """After the update's end, never, unknown, or moved by a visitor."""
    assert observe_work(drained(1, 60.0, 40.0, **fields)).arrivals_s is None
