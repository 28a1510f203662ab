"""Ledgers of modelled runs, written as the session writes them: the truth behind them is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eerl_controller import ClockPlan, Controller, Settings, UpdateRecord
from eerl_launch.update_lines import plan_fields, record_to_dict
from eerl_twin import Run, World, simulate


class Recording:
    """A plan source that writes down what a controller is shown and what it wishes."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.events: list[dict[str, Any]] = [
            {"ev": "start", "t_s": 0.0, "schema_version": 1},
            {
                "ev": "controller",
                "t_s": 0.0,
                "settings": controller.settings.to_dict(),
                "mode": controller.mode.value,
                "grid": {
                    "supported_mhz": list(controller.grid.supported_mhz),
                    "governor_mhz": controller.grid.governor_mhz,
                },
                "seed": controller.seed,
            },
        ]
        self._shown: dict[str, Any] = {}
        self._log_plan()

    @property
    def plan(self) -> ClockPlan:
        """The controller's wish."""
        return self.controller.plan

    @property
    def state(self) -> Any:
        """The controller's state."""
        return self.controller.state

    def observe(self, record: UpdateRecord) -> ClockPlan:
        """Write the update, ask the controller, write a new plan."""
        self.events.append({"ev": "update", "t_s": 0.0, "record": record_to_dict(record)})
        plan = self.controller.observe(record)
        self._log_plan()
        return plan

    def _log_plan(self) -> None:
        shape = plan_fields(self.controller, self.controller.plan)
        if any(shape[key] != self._shown.get(key) for key in ("plan_id", "reason", "state")):
            self._shown = shape
            self.events.append({"ev": "plan", "t_s": 0.0, **shape})


def recorded(
    world: World, settings: Settings, updates: int, seed: int = 0
) -> tuple[list[dict[str, Any]], Run]:
    """The events of a whole run's ledger, as JSON gives them back, and the run itself."""
    source = Recording(Controller(settings, world.mode, world.grid))
    run = simulate(world, source, updates, seed)
    source.events.append({"ev": "end", "t_s": 0.0, "status": "complete"})
    return json.loads(json.dumps(source.events)), run


def write(events: list[dict[str, Any]], folder: Path) -> Path:
    """The events as a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ledger.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder
