"""Calibrated worlds of the paper's configurations, from the frozen numbers in ``presets.json``.

``python -m eerl_twin.calibrate`` makes that file; nothing else writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from eerl_controller import ExecutionMode
from eerl_twin.family import OWN, SHARED, Configuration, world_of
from eerl_twin.world import World

#: Short names: the configurations of the paper's controller runs (table 4), and Nemotron's like them.
ALIASES = {
    "qwen-colocated": "qwen-h100-colocated_sync-32-32-M",
    "qwen-disagg": "qwen-h100-disaggregated_sync-8-32-M",
    "qwen-drained": "qwen-h100-async_drained-8-24-S",
    "qwen-inflight": "qwen-h100-async_inflight-16-32-S",
    "nemotron-colocated": "nemotron-h100-colocated_sync-64-64-M",
    "nemotron-disagg": "nemotron-h100-disaggregated_sync-16-64-M",
    "nemotron-drained": "nemotron-h100-async_drained-16-64-M",
    "nemotron-inflight": "nemotron-h100-async_inflight-16-64-M",
}
#: Mistral's GPUs (paper, table 4) by mode.
_MISTRAL_GPUS = {
    ExecutionMode.COLOCATED_SYNC: (16, 16),
    ExecutionMode.DISAGGREGATED_SYNC: (8, 16),
    ExecutionMode.ASYNC_DRAINED: (8, 16),
    ExecutionMode.ASYNC_INFLIGHT: (8, 16),
}
#: A Mistral parameter lies between Qwen's and Nemotron's, or this share of their distance outside.
_MISTRAL_OUTSIDE = 0.25


@dataclass(frozen=True, slots=True)
class Preset:
    """A calibrated world, and the lowest clocks in MHz that the paper tested in it (the governor's is None)."""

    world: World
    lowest_generation_mhz: int | None
    lowest_training_mhz: int | None

    def extrapolates(self, generation_mhz: int | None, training_mhz: int | None) -> bool:
        """Whether these clocks in MHz lie below everything measured: what the twin says there is a guess."""
        pairs = (
            (generation_mhz, self.lowest_generation_mhz),
            (training_mhz, self.lowest_training_mhz),
        )
        return any(mhz is not None and (lowest is None or mhz < lowest) for mhz, lowest in pairs)


@lru_cache(maxsize=1)
def frozen() -> dict[str, Any]:
    """The content of ``presets.json``."""
    content: dict[str, Any] = json.loads((files("eerl_twin") / "presets.json").read_text())
    return content


def _entries() -> Iterator[tuple[str, Configuration, dict[str, float], dict[str, Any]]]:
    for family in frozen()["families"].values():
        for entry in family["configurations"]:
            configuration = Configuration(
                entry["model"],
                entry["gpu"],
                ExecutionMode(entry["mode"]),
                entry["generation_gpus"],
                entry["training_gpus"],
                entry["size"],
            )
            yield configuration.name, configuration, {**family["shared"], **entry["own"]}, entry


def preset_names() -> list[str]:
    """Every preset's name, the short ones first."""
    return [*ALIASES, *(name for name, _, _, _ in _entries())]


def preset(name: str) -> Preset:
    """The preset of this name; raises KeyError with the known names for another."""
    wanted = ALIASES.get(name, name)
    for known, configuration, parameters, entry in _entries():
        if known == wanted:
            return Preset(
                world_of(configuration, parameters),
                entry["lowest_generation_mhz"],
                entry["lowest_training_mhz"],
            )
    raise KeyError(f"no preset {name!r}; known are {', '.join(preset_names())}")


def mistral(seed: int, mode: ExecutionMode) -> World:
    """One of many worlds that Mistral-NeMo could be: the paper has no sweep of it, so this has no target.

    Its parameters lie around those of the two fitted families. Judge a range of seeds, never one of them.
    """
    rng = np.random.default_rng([seed, 12])
    families = frozen()["families"]
    one, other = families["Qwen3-30B-A3B H100"]["shared"], families["Nemotron-Super-49B H100"]["shared"]
    parameters = {parameter.name: parameter.start for parameter in OWN}
    for parameter in SHARED:
        share = rng.uniform(-_MISTRAL_OUTSIDE, 1.0 + _MISTRAL_OUTSIDE)
        ends = parameter.free(one[parameter.name]), parameter.free(other[parameter.name])
        parameters[parameter.name] = parameter.value(float(ends[0] + share * (ends[1] - ends[0])))
    generation_gpus, training_gpus = _MISTRAL_GPUS[mode]
    configuration = Configuration("Mistral-NeMo-12B", "H100", mode, generation_gpus, training_gpus, "M")
    return world_of(configuration, parameters)
