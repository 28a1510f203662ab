"""How far ``eerl replay --policy`` is from the truth, where the truth is known: modelled runs of policy paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.measured import Number
from launch.twin_ledger import recorded

from eerl_controller import ExecutionMode, Settings
from eerl_launch.what_if import what_if
from eerl_twin import FixedPlan, Totals, population, simulate

SEEDS, UPDATES = range(100, 108), 160


def measure() -> list[Number]:
    """Root mean square and largest error by mode, points of percent: the run's own saving, and other clocks'."""
    numbers = []
    for mode in ExecutionMode:
        errors: dict[str, list[float]] = {}
        for seed in SEEDS:
            for name, error in _errors(mode, seed).items():
                errors.setdefault(name, []).append(error)
        for name, found in errors.items():
            rms, worst = _rms(found), max(map(abs, found))
            note = f"what if, {mode.value}, {name}: largest of {len(found)} errors {worst:.2f} points"
            numbers.append(
                Number(f"what if, {mode.value}, {name}: rms error, points", "percent", rms, note=note)
            )
    return numbers


def _errors(mode: ExecutionMode, seed: int) -> dict[str, float]:
    world = population(seed, mode, horizon=UPDATES)
    events, run = recorded(world, Settings(policy="paper"), UPDATES, seed)
    governor = what_if(events, {"policy": "governor"})
    found = _of("as recorded", governor.saving(governor.recorded), run.totals())
    low = [event for event in events if event["ev"] == "plan" and event["training_mhz"] is not None]
    if low:
        pair = {f"fixed_{name}": low[-1][name] for name in ("generation_mhz", "training_mhz")}
        held = what_if(events, {"policy": "fixed", **pair})
        idle_mhz = held.plans[0][1]["idle_mhz"]
        plan = FixedPlan(low[-1]["generation_mhz"], low[-1]["training_mhz"], idle_mhz)
        found |= _of(
            "its last clocks all along",
            held.saving(held.would_be),
            simulate(world, plan, UPDATES, seed).totals(),
        )
    return found


def _of(name: str, saving: float | None, truth: Totals | None) -> dict[str, float]:
    return {} if saving is None or truth is None else {name: 100 * (saving - truth.energy_saving)}


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
