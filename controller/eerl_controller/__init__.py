"""The eerl controller: a calculator that turns measured updates into clock plans. No I/O, no clock of its own."""

from eerl_controller.governor import GovernorModel, GovernorPrediction
from eerl_controller.machine import Controller
from eerl_controller.records import (
    FLAGS,
    ClockGrid,
    ClockPlan,
    ExecutionMode,
    PhaseRecord,
    PoolRecord,
    RecordError,
    UpdateRecord,
)
from eerl_controller.saving import Estimate
from eerl_controller.settings import POLICIES, Settings, SettingsError
from eerl_controller.states import TRANSITIONS, Reason, State
from eerl_controller.work import Unusable, unusable_reason

__all__ = [
    "FLAGS",
    "POLICIES",
    "TRANSITIONS",
    "ClockGrid",
    "ClockPlan",
    "Controller",
    "Estimate",
    "ExecutionMode",
    "GovernorModel",
    "GovernorPrediction",
    "PhaseRecord",
    "PoolRecord",
    "Reason",
    "RecordError",
    "Settings",
    "SettingsError",
    "State",
    "Unusable",
    "UpdateRecord",
    "unusable_reason",
]
