"""A recorded ledger through its own policy again: the same plans, or the first difference.

Another policy's plans are :mod:`eerl_launch.what_if`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eerl_launch.ledger_records import NO_CONTROLLER, ReplayError, controller_of, record_from_dict
from eerl_launch.update_lines import plan_fields

if TYPE_CHECKING:
    from eerl_controller import Controller, UpdateRecord

_PLAN_KEYS = ("plan_id", "generation_mhz", "training_mhz", "idle_mhz", "state", "reason", "note")


@dataclass(slots=True)
class Replay:
    """What came out: plans as they changed (with the update after which), and the first difference."""

    updates: int = 0
    passed_over: int = 0
    plans: list[tuple[int | None, dict[str, Any]]] = field(default_factory=list)
    difference: str | None = None


def _say(plan: Mapping[str, Any] | None) -> str:
    return "no new plan" if plan is None else ", ".join(f"{key} {plan.get(key)!r}" for key in _PLAN_KEYS)


class _Replayer:
    """Goes through a ledger: records to the controller, plans against those it gives."""

    def __init__(self) -> None:
        self.result = Replay()
        self.controller: Controller | None = None
        self._shown: dict[str, Any] = {}
        #: The update just observed, and the plan event that must follow it (None: no event, nothing changed).
        self._expected: tuple[int | None, dict[str, Any] | None] | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the ledger; whatever is neither controller, plan nor update passes by."""
        kind = event.get("ev")
        if kind == "controller" and self.controller is None:
            self.controller = controller_of(event)
            self._note(None)
        elif self.controller is None:
            return
        elif kind == "plan":
            self.compare(event)
        elif kind == "update" and event.get("record"):
            self.compare(None)
            if self.result.difference is None:
                self._observe(self.controller, record_from_dict(event["record"]))

    def compare(self, recorded: Mapping[str, Any] | None) -> None:
        """Hold the recorded plan (None: the ledger has none here) against the one expected."""
        if self._expected is None:
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


def replay(events: Iterable[Mapping[str, Any]]) -> Replay:
    """Feed the ledger's records to a fresh controller; stops at the first plan that is not the recorded one.

    Raises :class:`ReplayError` when there is no controller event.
    """
    replayer = _Replayer()
    last: Mapping[str, Any] = {}
    for event in events:
        last = event
        replayer.take(event)
        if replayer.result.difference is not None:
            return replayer.result
    if replayer.controller is None:
        raise ReplayError(NO_CONTROLLER)
    if last.get("ev") == "end":  # a killed run may lack the line of its last plan
        replayer.compare(None)
    return replayer.result
