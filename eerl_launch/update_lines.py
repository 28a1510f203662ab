"""Plans and updates as the ledger writes them (:mod:`eerl_launch.ledger` lists the fields)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from eerl_launch.gpu_detail import millijoules
from eerl_launch.record_builder import Built
from eerl_launch.updates import Update

if TYPE_CHECKING:
    from eerl_controller import Controller, GovernorPrediction
    from eerl_controller.records import ClockPlan, UpdateRecord


def plan_fields(controller: Controller, plan: ClockPlan) -> dict[str, Any]:
    """The ``plan`` event."""
    return {
        "plan_id": plan.plan_id,
        "generation_mhz": plan.generation_mhz,
        "training_mhz": plan.training_mhz,
        "idle_mhz": plan.idle_mhz,
        "state": controller.state.name,
        "reason": plan.reason.name,
        "note": plan.note,
    }


def _unusable(update: Update, record: UpdateRecord) -> str | None:
    """Why reports cannot compare this update, None when they can."""
    if not update.trained:
        return "no training phase in this update"
    if record.energy_j is None:
        return "energy is partial"
    return None if record.valid_tokens else "no valid training tokens"


def update_fields(
    update: Update, built: Built, state: str | None, prediction: GovernorPrediction | None
) -> dict[str, Any]:
    """The ``update`` event: the record, the governor's prediction for the same work, and energy by GPU."""
    record = built.record
    reason = _unusable(update, record)
    governor = None
    if prediction is not None:
        governor = {
            "elapsed_s": prediction.elapsed_s,
            "energy_j": prediction.energy_j,
            "inside_coverage": prediction.inside_coverage,
        }
    return {
        "index": update.index,
        "label": update.label,
        "begin_s": update.begin_s,
        "end_s": update.end_s,
        "record": record_to_dict(record),
        "responses": update.numbers.get("responses"),
        "state": state,
        "plan_id": record.plan_id,
        "governor": governor,
        "gpu_energy_j": millijoules(built.gpu_energy_j),
        "unattributed": built.unattributed,
        "pool_waits": built.waits,
        "usable": reason is None,
        "unusable_reason": reason,
    }


def record_to_dict(record: UpdateRecord) -> dict[str, Any]:
    """An UpdateRecord as plain JSON values."""
    plain = {field.name: getattr(record, field.name) for field in fields(record)}
    for group in ("phases", "pools"):
        plain[group] = {
            name: {field.name: getattr(part, field.name) for field in fields(part)}
            for name, part in plain[group].items()
        }
    plain["flags"] = sorted(record.flags)
    return plain
