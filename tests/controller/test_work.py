from __future__ import annotations

import pytest
from controller.examples import simple

from eerl_controller import PhaseRecord, PoolRecord, Unusable, unusable_reason
from eerl_controller.work import Observation, observe_work


def test_a_plain_update_is_evidence() -> None:
    """Counts, time and energy come through unchanged."""
    observation = observe_work(simple(1, pools={"training": PoolRecord(achieved_mhz=1755.0)}))

    assert unusable_reason(simple(1)) is None
    assert observation.elapsed_s == 100.0
    assert observation.energy_j == 10_000.0
    assert observation.counts == {"generated": 1000.0, "longest": 100.0, "valid": 900.0}
    assert observation.training_achieved_mhz == 1755.0
    assert observation.generation_achieved_mhz is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"plan_id": None}, Unusable.MIXED_PLANS),
        ({"elapsed_s": None}, Unusable.NO_ELAPSED),
        ({"valid_tokens": None}, Unusable.MISSING_COUNTS),
        ({"valid_tokens": 0}, Unusable.ZERO_TOKENS),
        ({"generated_tokens": 0}, Unusable.ZERO_TOKENS),
        ({"flags": {"hardware_slowdown"}}, Unusable.HARDWARE_SLOWDOWN),
        ({"flags": {"not_honoured"}}, Unusable.NOT_HONOURED),
        ({"flags": {"operator_hold", "not_honoured"}}, Unusable.OPERATOR_HOLD),
        ({"flags": {"validation"}}, Unusable.VISITOR_NOT_SEPARATE),
        ({"flags": {"checkpoint"}}, Unusable.VISITOR_NOT_SEPARATE),
    ],
)
def test_what_cannot_be_compared_is_named(fields: dict[str, object], reason: Unusable) -> None:
    """Each cause has its own name, for the ledger and the report."""
    assert unusable_reason(simple(1, **fields)) is reason


def test_validation_and_checkpoint_are_taken_out() -> None:
    """An update with a validation shows the same own work as one without (field case R01)."""
    plain = simple(1)
    visited = simple(
        2,
        elapsed_s=128.0,
        energy_j=11_000.0,
        phases={
            **plain.phases,
            "validation": PhaseRecord(elapsed_s=20.0, energy_j=800.0),
            "checkpoint": PhaseRecord(elapsed_s=8.0, energy_j=200.0),
        },
        flags={"validation", "checkpoint"},
    )

    assert unusable_reason(visited) is None
    assert observe_work(visited) == observe_work(plain)


def test_partial_energy_keeps_the_time() -> None:
    """A GPU lost for a moment spoils the joules, not the seconds."""
    observation = observe_work(simple(1, flags={"partial_energy"}))

    assert observation.elapsed_s == 100.0
    assert observation.energy_j is None
    assert all(joules is None for _, joules in observation.phases.values())


def test_validation_of_unknown_energy_leaves_the_energy_unknown() -> None:
    """Unknown joules cannot be taken out, so the rest is unknown too, not wrong."""
    record = simple(1, phases={"validation": PhaseRecord(elapsed_s=5.0)}, flags={"validation"})

    assert observe_work(record).energy_j is None


def test_subphases_are_summed_into_their_phase() -> None:
    """A partition that names parts of a phase means the phase."""
    record = simple(
        1,
        phases={
            "training/forward": PhaseRecord(elapsed_s=10.0, energy_j=100.0),
            "training/backward": PhaseRecord(elapsed_s=20.0, energy_j=300.0),
            "generation": PhaseRecord(elapsed_s=None, energy_j=1.0),
        },
    )

    assert observe_work(record).phases == {"training": (30.0, 400.0)}


def test_an_observation_survives_its_dictionary() -> None:
    """Snapshots lose nothing."""
    observation = observe_work(simple(1))

    assert Observation.from_dict(observation.to_dict()) == observation
