"""The state of a running job, for operators and for the progress line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_launch.nodes import Nodes
from eerl_launch.pilot import Pilot
from eerl_launch.pools import ALL
from eerl_launch.running_estimate import RunningEstimate
from eerl_launch.steering import Steering


class Status:
    """Looks at the parts of a session; changes nothing."""

    def __init__(self, config: Mapping[str, Any], nodes: Nodes, steering: Steering, pilot: Pilot) -> None:
        self._config = config
        self._nodes = nodes
        self._steering = steering
        self._pilot = pilot
        self._estimate = RunningEstimate()

    def fields(self, updates_seen: int, now_s: float) -> dict[str, Any]:
        """What ``eerl status`` shows."""
        plan = self._steering.plan
        saving = self._estimate.latest(self._pilot.controller)
        return {
            "run_id": self._config["run_id"],
            "elapsed_s": now_s,
            "updates": updates_seen,
            "total_updates": self._pilot.total_updates,
            "state": self._pilot.controller.state.name if self._pilot.controller is not None else "WAITING",
            "hold": self._steering.hold,
            "control_off": self._steering.off_reason,
            "plan": None
            if plan is None
            else {
                "plan_id": plan.plan_id,
                "generation_mhz": plan.generation_mhz,
                "training_mhz": plan.training_mhz,
                "idle_mhz": plan.idle_mhz,
                "reason": plan.reason.name,
                "note": plan.note,
            },
            "applied_mhz": self._applied_mhz(),
            "nodes": {node.name: node.state for node in self._nodes.by_name.values()},
            "gpus": self._nodes.gpu_count(),
            "energy_saving_pct": None
            if saving is None or saving.energy_saving is None
            else 100 * saving.energy_saving,
            "throughput_change_pct": None if saving is None else 100 * saving.throughput_change,
            "simulated": self._config["start"]["simulated"],
        }

    def _applied_mhz(self) -> int | dict[str, int | None] | None:
        """The clock asked for last; by pool where there is more than one."""
        applied = {pool: self._steering.applied_mhz.get(pool) for pool in self._steering.map.pools}
        return applied.get(ALL, applied)

    def progress(self, updates_seen: int, now_s: float) -> tuple[str, str]:
        """State and line for the terminal."""
        status = self.fields(updates_seen, now_s)
        total = status["total_updates"]
        state = "HOLD" if status["hold"] else status["state"]
        if status["control_off"]:
            state = "MEASURING"
        parts = ["SIMULATED GPUs"] if status["simulated"] else []
        parts += [state.lower(), f"update {updates_seen}" + (f"/{total}" if total else "")]
        plan = status["plan"]
        if plan is not None and not status["control_off"]:
            words = [
                str(mhz) if mhz else "governor" for mhz in (plan["generation_mhz"], plan["training_mhz"])
            ]
            parts.append(
                "governor clocks" if words[0] == words[1] == "governor" else f"{'/'.join(words)} MHz"
            )
        if status["energy_saving_pct"] is not None:
            parts.append(f"energy/token {-status['energy_saving_pct']:+.1f} %")
            parts.append(f"throughput {status['throughput_change_pct']:+.1f} %")
        return state, " · ".join(parts)
