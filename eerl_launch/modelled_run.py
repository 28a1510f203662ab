"""A modelled workload under a policy: a run in virtual time by :mod:`eerl_twin`, with the truth beside it.

Nothing here is of real hardware. The truth is what the governor would have done with the same work and noise.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eerl_controller import Controller, Estimate, ExecutionMode, Settings, State
from eerl_launch.errors import OptionError
from eerl_twin import (
    Oracle,
    Preset,
    Run,
    World,
    best_fixed,
    draw,
    mistral,
    population,
    preset,
    preset_names,
    simulate,
)

MODES = tuple(mode.value for mode in ExecutionMode)
#: Worlds that are drawn by a seed, and what is known of them.
DRAWN = {
    "population": "drawn broadly; calibrated on nothing",
    "mistral": "one of many worlds that Mistral-NeMo could be; the paper has no sweep of it",
}


@dataclass(frozen=True, slots=True)
class Modelled:
    """A simulated run, the controller's own estimate of it, and the best fixed clocks in hindsight.

    ``extrapolated`` counts the updates below every clock that the preset was calibrated on; ``lowest_mhz`` are
    these clocks (generation, training).
    """

    name: str
    about: str
    run: Run
    state: State
    policy: str
    claimed: Estimate | None
    best: Oracle
    extrapolated: int
    lowest_mhz: tuple[int | None, int | None] | None


def names() -> list[str]:
    """Everything ``--twin`` takes: presets, and the patterns of worlds drawn by a seed."""
    return [*preset_names(), *(f"{kind}:SEED:MODE" for kind in DRAWN)]


def world_of(name: str, updates: int) -> tuple[World, Preset | None, str]:
    """The world of this name, its preset if it is one, and what is known of it; OptionError for another name."""
    kind, *rest = name.split(":")
    if kind in DRAWN:
        if len(rest) != 2 or not rest[0].isdigit() or rest[1] not in MODES:
            raise OptionError(f"--twin {name}: allowed is {kind}:SEED:MODE with a mode of {', '.join(MODES)}")
        seed, mode = int(rest[0]), ExecutionMode(rest[1])
        made = population(seed, mode, horizon=updates) if kind == "population" else mistral(seed, mode)
        return made, None, DRAWN[kind]
    try:
        found = preset(name)
    except KeyError:
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"; nearest: {near[0]}" if near else ""
        raise OptionError(f"--twin {name}: no such workload{hint}; `--twin list` has all of them") from None
    return found.world, found, "calibrated on the paper's fixed-clock rows"


def modelled(name: str, changes: Mapping[str, Any], updates: int, seed: int) -> Modelled:
    """Run ``updates`` updates of the world under the default settings with these changes."""
    world, known, about = world_of(name, updates)
    settings = Settings.from_dict({**Settings().to_dict(), **changes})
    conditions = draw(world, updates, seed)
    controller = Controller(settings, world.mode, world.grid, seed)
    run = simulate(world, controller, updates, seed, conditions=conditions)
    pairs = [(plan.generation_mhz, plan.training_mhz) for plan in run.plans if plan is not None]
    return Modelled(
        name=name,
        about=about,
        run=run,
        state=controller.state,
        policy=settings.policy,
        claimed=controller.saving,
        best=best_fixed(world, conditions, max_loss=settings.max_throughput_loss),
        extrapolated=sum(known.extrapolates(*pair) for pair in pairs) if known else 0,
        lowest_mhz=(known.lowest_generation_mhz, known.lowest_training_mhz) if known else None,
    )
