"""A recorded ledger through the controller again: the same plans, or the first difference.

With another policy the records stay what they were measured under the recorded clocks, so the answer is what
the controller would have wished for, not what would have happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eerl_launch.errors import EerlError

if TYPE_CHECKING:
    from eerl_controller import ClockPlan, Controller, Settings, UpdateRecord

_PLAN_KEYS = ("plan_id", "generation_mhz", "training_mhz", "idle_mhz", "state", "reason", "note")


class ReplayError(EerlError):
    """A ledger that holds nothing to replay, or records that this eerl does not know."""


@dataclass(slots=True)
class Replay:
    """What came out: plans as they changed (with the update after which), and the first difference."""

    updates: int = 0
    passed_over: int = 0
    plans: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list)
    difference: str | None = None


def record_from_dict(plain: Mapping[str, Any]) -> UpdateRecord:
    """The record that the ledger holds as plain values."""
    from eerl_controller import PhaseRecord, PoolRecord, RecordError, UpdateRecord

    values = dict(plain)
    try:
        values["phases"] = {name: PhaseRecord(**part) for name, part in values.get("phases", {}).items()}
        values["pools"] = {name: PoolRecord(**part) for name, part in values.get("pools", {}).items()}
        values["flags"] = frozenset(values.get("flags", ()))
        return UpdateRecord(**values)
    except (TypeError, AttributeError, RecordError) as error:
        raise ReplayError(f"the record of update {plain.get('update')} is not one: {error}") from error


def _shape(controller: Controller) -> dict[str, Any]:
    """The controller's plan and state as the ledger writes them."""
    plan: ClockPlan = controller.plan
    return {
        "plan_id": plan.plan_id,
        "generation_mhz": plan.generation_mhz,
        "training_mhz": plan.training_mhz,
        "idle_mhz": plan.idle_mhz,
        "state": controller.state.name,
        "reason": plan.reason.name,
        "note": plan.note,
    }


def _say(plan: Mapping[str, Any] | None) -> str:
    return "no new plan" if plan is None else ", ".join(f"{key} {plan.get(key)!r}" for key in _PLAN_KEYS)


def _controller(event: Mapping[str, Any], changes: Mapping[str, Any] | None) -> Controller:
    from eerl_controller import ClockGrid, Controller, ExecutionMode, Settings, SettingsError

    try:
        settings: Settings = Settings.from_dict({**event["settings"], **(changes or {})})
        grid = ClockGrid(event["grid"]["supported_mhz"], event["grid"]["governor_mhz"])
        return Controller(settings, ExecutionMode(event["mode"]), grid, seed=event.get("seed", 0))
    except (KeyError, TypeError, ValueError, SettingsError) as error:
        raise ReplayError(f"the ledger's controller event cannot be used by this eerl: {error}") from error


def replay(events: Iterable[Mapping[str, Any]], changes: Mapping[str, Any] | None = None) -> Replay:
    """Feed the ledger's records to a fresh controller.

    Without ``changes`` every plan is compared with the recorded one and the replay stops at the first that
    differs. ``changes`` are settings to try instead (``Policy.controller_settings()``); then nothing is compared.
    Raises :class:`ReplayError` when there is no controller event.
    """
    from eerl_controller import RecordError

    result = Replay()
    controller: Controller | None = None
    shown: dict[str, Any] = {}
    awaited: tuple[int | None, dict[str, Any] | None] | None = None
    recorded_clocks: dict[Any, tuple[Any, ...]] = {}
    issued: dict[tuple[Any, ...], int] = {}
    ended = False

    def compare(seen: Mapping[str, Any] | None) -> str | None:
        """The difference between the plan that should come now and the recorded one."""
        if awaited is None or changes is not None:
            return None
        after, expected = awaited
        recorded = None if seen is None else {key: seen.get(key) for key in _PLAN_KEYS}
        if recorded == expected:
            return None
        return f"after update {after}: the ledger has {_say(recorded)}; replay gives {_say(expected)}"

    def note(after: int | None) -> None:
        nonlocal shown, awaited
        shape = _shape(controller) if controller is not None else {}
        changed = [shape.get(key) != shown.get(key) for key in ("plan_id", "reason", "state")]
        awaited = (after, shape if any(changed) else None)
        if any(changed):
            shown = shape
            result.plans.append((after, shape))
            issued[tuple(shape[key] for key in _PLAN_KEYS[1:4])] = shape["plan_id"]

    for event in events:
        kind = event.get("ev")
        if kind == "controller" and controller is None:
            controller = _controller(event, changes)
            note(None)
        elif kind == "plan" and controller is not None:
            recorded_clocks[event.get("plan_id")] = tuple(event.get(key) for key in _PLAN_KEYS[1:4])
            result.difference = compare(event)
            awaited = None
        elif kind == "update" and controller is not None and event.get("record"):
            result.difference = compare(None)
            if result.difference is None:
                record = record_from_dict(event["record"])
                if changes is not None:
                    record = replace(record, plan_id=issued.get(recorded_clocks.get(record.plan_id, ())))
                result.updates += 1
                try:
                    controller.observe(record)
                except RecordError:
                    result.passed_over += 1
                note(record.update)
        ended = kind == "end"
        if result.difference is not None:
            return result
    if controller is None:
        raise ReplayError("the ledger has no controller event: no update was ever shown to a controller")
    if ended:  # a killed run may lack the line of its last plan
        result.difference = compare(None)
    return result
