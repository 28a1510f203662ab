"""The single controller's rollouts: one coroutine a prompt group."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from nemo_rl.experience.rollouts import _answered, prompts


@dataclass
class Completion:
    message_log: list[dict[str, Any]]


@dataclass
class PromptGroupRecord:
    completions: list[Completion]


class RolloutManager:
    async def run_rollout(self, lengths: list[int]) -> PromptGroupRecord:
        await asyncio.sleep(0.001 * min(lengths))
        batch = _answered(prompts(len(lengths)), lengths)
        return PromptGroupRecord([Completion(log) for log in batch["message_log"]])
