"""A recorded ledger through the controller again: the same plans, or the first difference.

With another policy the records stay what they were measured under the recorded clocks, so the answer is what
the controller would have wished for, not what would have happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eerl_launch.errors import EerlError
from eerl_launch.update_lines import plan_fields

if TYPE_CHECKING:
    from eerl_controller import Controller, Settings, UpdateRecord

_CLOCK_KEYS = ("generation_mhz", "training_mhz", "idle_mhz")
_PLAN_KEYS = ("plan_id", *_CLOCK_KEYS, "state", "reason", "note")


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


class _Replayer:
    """Goes through a ledger: records to the controller, plans against those it gives."""

    def __init__(self, changes: Mapping[str, Any] | None) -> None:
        self.result = Replay()
        self.controller: Controller | None = None
        self._changes = changes
        self._shown: dict[str, Any] = {}
        #: The update just observed, and the plan event that must follow it (None: no event, nothing changed).
        self._expected: tuple[int | None, dict[str, Any] | None] | None = None
        self._recorded_clocks: dict[Any, tuple[Any, ...]] = {}
        self._issued: dict[tuple[Any, ...], int] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the ledger; whatever is neither controller, plan nor update passes by."""
        kind = event.get("ev")
        if kind == "controller" and self.controller is None:
            self.controller = _controller(event, self._changes)
            self._note(None)
        elif self.controller is None:
            return
        elif kind == "plan":
            self._recorded_clocks[event.get("plan_id")] = tuple(event.get(key) for key in _CLOCK_KEYS)
            self.compare(event)
        elif kind == "update" and event.get("record"):
            self.compare(None)
            if self.result.difference is None:
                self._observe(self.controller, record_from_dict(event["record"]))

    def compare(self, recorded: Mapping[str, Any] | None) -> None:
        """Hold the recorded plan (None: the ledger has none here) against the one expected."""
        if self._expected is None or self._changes is not None:
            return
        after, expected = self._expected
        self._expected = None
        seen = None if recorded is None else {key: recorded.get(key) for key in _PLAN_KEYS}
        if seen != expected:
            self.result.difference = (
                f"after update {after}: the ledger has {_say(seen)}; replay gives {_say(expected)}"
            )

    def _observe(self, controller: Controller, record: UpdateRecord) -> None:
        from eerl_controller import RecordError

        if self._changes is not None:
            # The recorded plan's number means nothing to this controller; its own plan with the same clocks does.
            clocks = self._recorded_clocks.get(record.plan_id, ())
            record = replace(record, plan_id=self._issued.get(clocks))
        self.result.updates += 1
        try:
            controller.observe(record)
        except RecordError:  # the session passed over it too, and wrote a warning
            self.result.passed_over += 1
        self._note(record.update)

    def _note(self, after: int | None) -> None:
        """Remember what the ledger must say next: the session writes a plan when one of three things changed."""
        shape = plan_fields(self.controller, self.controller.plan) if self.controller is not None else {}
        changed = any(shape.get(key) != self._shown.get(key) for key in ("plan_id", "reason", "state"))
        self._expected = (after, shape if changed else None)
        if changed:
            self._shown = shape
            self.result.plans.append((after, shape))
            self._issued[tuple(shape[key] for key in _CLOCK_KEYS)] = shape["plan_id"]


def replay(events: Iterable[Mapping[str, Any]], changes: Mapping[str, Any] | None = None) -> Replay:
    """Feed the ledger's records to a fresh controller.

    Without ``changes`` every plan is compared with the recorded one and the replay stops at the first that
    differs. ``changes`` are settings to try instead (``Policy.controller_settings()``); then nothing is compared.
    Raises :class:`ReplayError` when there is no controller event.
    """
    replayer = _Replayer(changes)
    last: Mapping[str, Any] = {}
    for event in events:
        last = event
        replayer.take(event)
        if replayer.result.difference is not None:
            return replayer.result
    if replayer.controller is None:
        raise ReplayError("the ledger has no controller event: no update was ever shown to a controller")
    if last.get("ev") == "end":  # a killed run may lack the line of its last plan
        replayer.compare(None)
    return replayer.result
