"""A virtual-time twin of RL runs in all four execution modes. It judges the controller; it never configures it."""

from eerl_twin.conditions import Conditions, draw
from eerl_twin.oracle import Oracle, Sweep, best_fixed, sweep
from eerl_twin.population import population, without_events
from eerl_twin.presets import Preset, mistral, preset, preset_names
from eerl_twin.response import PowerShape, TimeResponse
from eerl_twin.run import FixedPlan, PlanSource, Run, Totals, simulate
from eerl_twin.world import (
    Activity,
    Ageing,
    Costs,
    Faults,
    Lengths,
    Noise,
    Power,
    Shift,
    Visits,
    World,
)

__all__ = [
    "Activity",
    "Ageing",
    "Conditions",
    "Costs",
    "Faults",
    "FixedPlan",
    "Lengths",
    "Noise",
    "Oracle",
    "PlanSource",
    "Power",
    "PowerShape",
    "Preset",
    "Run",
    "Shift",
    "Sweep",
    "TimeResponse",
    "Totals",
    "Visits",
    "World",
    "best_fixed",
    "draw",
    "mistral",
    "population",
    "preset",
    "preset_names",
    "simulate",
    "sweep",
    "without_events",
]
