"""What goes in is checked when it is made: errors end at the door."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from eerl_controller import ClockGrid, ClockPlan, PhaseRecord, PoolRecord, Reason, RecordError, UpdateRecord


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e16, True, "12"])
@pytest.mark.parametrize(
    "name", ["elapsed_s", "energy_j", "valid_tokens", "remaining_s", "training_arrival_s"]
)
def test_a_number_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    """The message says which field and what was seen."""
    with pytest.raises(RecordError, match=name):
        UpdateRecord(update=1, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"update": 1.5}, "update"),
        ({"update": True}, "update"),
        ({"update": 1, "plan_id": "2"}, "plan_id"),
        ({"update": 1, "plan_id": 2.0}, "plan_id"),
        ({"update": 1, "elapsed_s": 0.0}, "elapsed_s"),
        ({"update": 1, "reward": float("nan")}, "reward"),
        ({"update": 1, "reward": "high"}, "reward"),
        ({"update": 1, "phases": {"generation": 12.0}}, "phases"),
        ({"update": 1, "phases": None}, "phases"),
        ({"update": 1, "pools": {"training": PhaseRecord()}}, "pools"),
        ({"update": 1, "flags": "validation"}, "flags"),
        ({"update": 1, "flags": {"hardware_slowdwon"}}, "hardware_slowdwon"),
        ({"update": 1, "flags": None}, "flags"),
    ],
)
def test_a_record_of_the_wrong_shape_is_refused(fields: dict[str, object], named: str) -> None:
    """RecordError, not a crash three modules later."""
    with pytest.raises(RecordError, match=named):
        UpdateRecord(**fields)  # type: ignore[arg-type]


def test_parts_are_checked_too() -> None:
    """Phases and pools hold no impossible number."""
    with pytest.raises(RecordError, match="energy_j"):
        PhaseRecord(energy_j=-1.0)
    with pytest.raises(RecordError, match="achieved_mhz"):
        PoolRecord(achieved_mhz=float("nan"))


def test_unknown_is_none_and_a_negative_reward_is_fine() -> None:
    """Everything but the number of the update may be unknown."""
    record = UpdateRecord(update=7, reward=-0.3)

    assert record.elapsed_s is None and record.energy_j is None and record.plan_id is None
    assert not record.phases and not record.pools and not record.flags


def test_a_record_cannot_be_changed_afterwards() -> None:
    """Neither its fields nor its mappings, nor through the mapping it was made from."""
    phases = {"generation": PhaseRecord(elapsed_s=1.0)}
    record = UpdateRecord(update=1, phases=phases)
    phases["training"] = PhaseRecord(elapsed_s=2.0)

    assert list(record.phases) == ["generation"]
    with pytest.raises(FrozenInstanceError):
        record.update = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        record.phases["x"] = PhaseRecord()  # type: ignore[index]


def test_a_grid_needs_clocks() -> None:
    """An empty or senseless table is refused; duplicates and order do not matter."""
    for clocks, governor in (
        ([], 1980),
        ([0, 345], 1980),
        (None, 1980),
        (["fast"], 1980),
        ([345], 0),
        ([345], 1.5),
    ):
        with pytest.raises(RecordError):
            ClockGrid(clocks, governor)  # type: ignore[arg-type]
    assert ClockGrid([510, 345, 510], 1980).supported_mhz == (345, 510)


def test_a_plan_is_the_governors_only_when_all_of_it_is() -> None:
    """An idle clock alone is already not the governor."""
    assert ClockPlan(0, None, None, None, Reason.CALIBRATING).is_governor
    assert not ClockPlan(0, None, None, 345, Reason.CALIBRATING).is_governor
    assert not ClockPlan(0, 1500, None, None, Reason.TRIAL).is_governor
