"""What a ledger holds of the controller's side, as the controller's own types again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eerl_launch.errors import EerlError

if TYPE_CHECKING:
    from eerl_controller import Controller, UpdateRecord


class ReplayError(EerlError):
    """A ledger that holds nothing to replay, or records that this eerl does not know."""


#: When a ledger ends before any controller was asked.
NO_CONTROLLER = "the ledger has no controller event: no update was ever shown to a controller"


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


def controller_of(event: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Controller:
    """A fresh controller with the settings of a ``controller`` event, some of them changed."""
    from eerl_controller import ClockGrid, Controller, ExecutionMode, Settings, SettingsError

    try:
        settings: Settings = Settings.from_dict({**event["settings"], **(changes or {})})
        grid = ClockGrid(event["grid"]["supported_mhz"], event["grid"]["governor_mhz"])
        prior = event.get("prior") if settings.policy == "eerl" else None
        return Controller(settings, ExecutionMode(event["mode"]), grid, event.get("seed", 0), prior)
    except (KeyError, TypeError, ValueError, SettingsError) as error:
        raise ReplayError(f"the ledger's controller event cannot be used by this eerl: {error}") from error
