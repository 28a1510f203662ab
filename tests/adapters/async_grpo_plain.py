"""A training with TRL's AsyncGRPOTrainer as anybody writes it: not a line of it knows of eerl, nor of a stand-in.

async_grpo_plain.py --model MODEL --vllm_server_base_url URL [options of AsyncGRPOConfig]
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import TrlParser
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer


@dataclass
class Wish:
    """What is trained."""

    model: str


def short(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Reward: the shorter the better; it writes down what it has seen."""
    with Path(os.environ["SCORED"]).open("a") as file:
        file.write(json.dumps([len(ids) for ids in completion_ids]) + "\n")
    return [-float(len(ids)) for ids in completion_ids]


def main() -> None:
    wish, config = TrlParser((Wish, AsyncGRPOConfig)).parse_args_and_config()
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": "1 2 3"}]}])
    trainer = AsyncGRPOTrainer(model=wish.model, reward_funcs=short, args=config, train_dataset=prompts)
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main()
