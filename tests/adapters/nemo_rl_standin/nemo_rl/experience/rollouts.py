"""Rollouts: a batch of message logs in, the same with what was generated out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPT = 7
HISTORY = 5  # tokens of an assistant's message that is part of the prompt


class Batch(dict[str, Any]):
    """A dict that can be referred to weakly, as theirs."""

    @property
    def size(self) -> int:
        return len(self["message_log"])


def prompts(count: int) -> Batch:
    log = [
        {"role": "user", "token_ids": np.zeros(PROMPT)},
        {"role": "assistant", "token_ids": np.zeros(HISTORY)},
        {"role": "user", "token_ids": np.zeros(PROMPT)},
    ]
    return Batch(message_log=[list(log) for _ in range(count)])


def _answered(batch: Batch, lengths: list[int]) -> Batch:
    """Each response in two turns with the environment's words between, where it is long enough."""
    for log, length in zip(batch["message_log"], lengths, strict=True):
        for part in (length // 2, length - length // 2):
            log.append(
                {"role": "assistant", "token_ids": np.ones(part), "generation_logprobs": np.zeros(part)}
            )
            log.append({"role": "environment", "token_ids": np.zeros(3)})
    return batch


def _metrics(lengths: list[int]) -> dict[str, float]:
    mean = float(np.asarray(lengths, dtype=np.float32).mean())
    return {"mean_gen_tokens_per_sample": mean, "max_gen_tokens_per_sample": float(max(lengths))}


def run_multi_turn_rollout(
    policy: Any, input_batch: Batch, lengths: list[int]
) -> tuple[Batch, dict[str, float]]:
    return _answered(input_batch, lengths), _metrics(lengths)


@dataclass
class GymResult:
    final_batch: Batch
    rollout_metrics: dict[str, float]


if os.environ.get("STANDIN_VERSION") == "main":

    async def _run_multi_turn_rollout_async(
        policy: Any, input_batch: Batch, lengths: list[int]
    ) -> tuple[Batch, list[int]]:
        return _answered(input_batch, lengths), lengths

    def run_async_multi_turn_rollout(
        policy: Any, input_batch: Batch, lengths: list[int]
    ) -> tuple[Batch, dict[str, float]]:
        import asyncio

        batch, _ = asyncio.run(_run_multi_turn_rollout_async(policy, input_batch, lengths))
        return batch, _metrics(lengths)

    def _postprocess_single_nemo_gym_group(batch: Batch, lengths: list[int]) -> GymResult:
        return GymResult(_answered(batch, lengths), _metrics(lengths))

    async def run_async_nemo_gym_rollout(policy: Any, groups: list[tuple[Batch, list[int]]]) -> Any:
        for batch, lengths in groups:
            yield _postprocess_single_nemo_gym_group(batch, lengths)

else:

    def run_async_multi_turn_rollout(
        policy: Any, input_batch: Batch, lengths: list[int]
    ) -> tuple[Batch, dict[str, float]]:
        return _answered(input_batch, lengths), _metrics(lengths)

    def run_async_nemo_gym_rollout(policy: Any, input_batch: Batch, lengths: list[int]) -> GymResult:
        return GymResult(_answered(input_batch, lengths), _metrics(lengths))
