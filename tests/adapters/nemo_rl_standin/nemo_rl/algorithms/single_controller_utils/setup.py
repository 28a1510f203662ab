"""The single controller's parts, made by the driver and handed to the controller's actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_rl.algorithms.grpo import State


@dataclass
class Arguments:
    save_state: State


def setup_single_controller(master_config: Any, tokenizer: Any = None) -> tuple[Arguments, dict[str, float]]:
    done = master_config["grpo"].get("done", 0)
    return Arguments(State(current_step=done, total_steps=0, consumed_samples=0)), {}
