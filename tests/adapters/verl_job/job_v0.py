"""A run of verl's first trainer, 0.5 to 0.9, on a CPU in one process: its own ``fit``, with stubs for its workers.

``--rollout``: ``loops``, agent loops that hand back masks, or ``workers``, engines inside the actor's (to 0.7.0).
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import plan
import torch
import verl
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

STEPS, PROMPT, WIDTH = 4, 9, 80


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in verl.__version__.split(".")[:2])


VERSION = _version()


class Prompts:
    """A data loader of prompts, one epoch long enough."""

    sampler = None

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(100):
            ones = torch.ones(plan.PROMPTS, PROMPT, dtype=torch.int64)
            places = torch.arange(PROMPT).repeat(plan.PROMPTS, 1)
            tokens = {"input_ids": ones, "attention_mask": ones, "position_ids": places}
            yield {
                **(tokens if VERSION < (0, 7) else {"dummy_tensor": ones[:, :1]}),
                "raw_prompt_ids": np.array([[1] * PROMPT] * plan.PROMPTS, dtype=object),
                "raw_prompt": np.array([[{"role": "user"}]] * plan.PROMPTS, dtype=object),
                "data_source": np.array(["stub"] * plan.PROMPTS, dtype=object),
                "reward_model": np.array([{}] * plan.PROMPTS, dtype=object),
            }


def answers(step: int, rows: int, turns: int, *, masks: bool) -> DataProto:
    """What an engine hands back: padded responses, and by agent loops which tokens of them are its own."""
    attention = torch.zeros(rows, PROMPT + WIDTH, dtype=torch.int64)
    attention[:, :PROMPT] = 1
    own = torch.zeros(rows, WIDTH, dtype=torch.int64)
    for row in range(rows):
        length, foreign = plan.length(step, row), plan.spoken(step, row, turns)
        attention[row, PROMPT : PROMPT + length] = 1
        own[row, :length] = 1
        own[row, 1 : 1 + foreign] = 0
    tensors = {
        "prompts": torch.ones(rows, PROMPT, dtype=torch.int64),
        "responses": torch.ones(rows, WIDTH, dtype=torch.int64),
        "input_ids": torch.ones(rows, PROMPT + WIDTH, dtype=torch.int64),
        "attention_mask": attention,
        "position_ids": torch.arange(PROMPT + WIDTH).repeat(rows, 1),
        "rm_scores": torch.nn.functional.pad(torch.full((rows, 1), 0.5), (0, WIDTH - 1)),
    }
    if masks:
        tensors["response_mask"] = own
    turns_taken = np.full(rows, 2 * turns, dtype=np.int32)
    nothing = np.array([{}] * rows, dtype=object)
    return DataProto(
        batch=TensorDict(tensors, batch_size=rows),
        non_tensor_batch={"__num_turns__": turns_taken, "multi_modal_inputs": nothing},
        meta_info={"timing": {}},
    )


class Loops(AgentLoopManager):
    """Agent loops that are all here; how they sum up is their own."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        output = answers(prompts.meta_info["global_steps"], len(prompts), self._turns, masks=True)
        spent = {"generate_sequences": 0.1, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": 0}
        timing = self._performance_metrics([[spent] * len(output)], output)
        output.meta_info = {"timing": timing}
        return output

    def wake_up(self) -> None: ...
    def sleep(self) -> None: ...


class Workers:
    """The actor's worker group; in the older way it generates, too."""

    world_size = 1

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return answers(prompts.meta_info["global_steps"], len(prompts), 1, masks=False)

    def compute_log_prob(self, batch: DataProto) -> DataProto:
        shape = batch.batch["responses"].shape
        return DataProto.from_dict({"old_log_probs": torch.zeros(shape), "entropys": torch.zeros(shape)})

    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"ref_log_prob": torch.zeros(batch.batch["responses"].shape)})

    def update_actor(self, batch: DataProto) -> DataProto:
        metrics = {"actor/grad_norm": [1.0], "perf/mfu/actor": [0.1]}
        return DataProto.from_single_dict(data={}, meta_info={"metrics": metrics})


class Trainer(RayPPOTrainer):
    """verl's trainer with its own ``fit``; what it would ask of GPUs is answered here."""

    def _validate_config(self) -> None: ...

    def _create_dataloader(self, *args: Any, **kwargs: Any) -> None:
        self.train_dataset = SimpleNamespace()
        self.train_dataloader = Prompts()
        self.total_training_steps = STEPS

    def _load_checkpoint(self) -> int:
        return 0

    def _validate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        two = TensorDict({"responses": torch.zeros(2, 1)}, batch_size=2)
        prompts = DataProto(batch=two, meta_info={"global_steps": self.global_steps})
        self.async_rollout_manager.generate_sequences(prompts)
        return {"val-core/stub/reward/mean@1": 0.5}

    def _balance_batch(self, *args: Any, **kwargs: Any) -> None: ...

    def _compute_old_log_prob(self, batch: DataProto) -> Any:
        made = self.actor_rollout_wg.compute_log_prob(batch)
        return (made, 0.1) if VERSION >= (0, 7) else made

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return self.actor_rollout_wg.compute_ref_log_prob(batch)

    def _update_actor(self, batch: DataProto) -> DataProto:
        return self.actor_rollout_wg.update_actor(batch)


def rewards(batch: DataProto, *args: Any, **kwargs: Any) -> Any:
    """Rewards by rule, where the trainer asks a function for them."""
    scores = batch.batch["rm_scores"]
    return {"reward_tensor": scores, "reward_extra_info": {}} if kwargs.get("return_dict") else (scores, {})


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--turns", type=int, default=1)
    options.add_argument("--rollout", choices=("loops", "workers"), default="loops")
    chosen = options.parse_args()
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"data.train_batch_size={plan.PROMPTS}",
                f"actor_rollout_ref.rollout.n={plan.EACH}",
                "actor_rollout_ref.actor.use_kl_loss=true",
                "algorithm.adv_estimator=grpo",
                "trainer.test_freq=2",
                "trainer.save_freq=-1",
                "trainer.val_before_train=false",
                "trainer.logger=[]",
                "trainer.balance_batch=false",
                "trainer.total_epochs=1",
            ],
        )
    ray_trainer.compute_reward = rewards
    role = ray_trainer.Role
    known = inspect.signature(RayPPOTrainer.__init__).parameters
    arguments = {name: rewards for name in ("reward_fn", "val_reward_fn") if name in known}
    trainer = Trainer(
        config=config,
        tokenizer=SimpleNamespace(),
        role_worker_mapping={role.ActorRollout: object, role.RefPolicy: object},
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1),
        device_name="cpu",
        **arguments,
    )
    trainer.actor_rollout_wg = trainer.ref_policy_wg = Workers()
    trainer.async_rollout_mode = chosen.rollout == "loops"
    trainer.async_rollout_manager = Loops(chosen.turns)
    trainer.checkpoint_manager = SimpleNamespace(
        update_weights=lambda step: None, sleep_replicas=lambda: None, wake_up_replicas=lambda: None
    )
    trainer.llm_server_manager = SimpleNamespace()
    trainer.use_reward_loop = False
    trainer.fit()
    for step in range(1, STEPS + 1):
        rows = range(plan.PROMPTS * plan.EACH)
        own = [plan.length(step, row) - plan.spoken(step, row, chosen.turns) for row in rows]
        print(
            json.dumps({"update": step, "generated": sum(own), "longest": max(own), "valid": sum(own)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
