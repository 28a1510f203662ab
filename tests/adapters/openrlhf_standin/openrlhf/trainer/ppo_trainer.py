"""The training side, by its undecorated base, and the synchronous trainer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator


class BasePPOTrainer:
    def __init__(self, args: SimpleNamespace) -> None:
        self.args = args
        self.experience_maker = RemoteExperienceMaker()

    def init_checkpoint_states(self) -> dict[str, Any]:
        return {"episode": 0, "global_step": self.args.done, "total_consumed_prompts": 0}

    def train_step(self, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        experiences = self.experience_maker.make_experience_batch(rollout_samples)
        status = self.ppo_train(global_step)
        self.broadcast_to_vllm()
        status["rollout/reward_mean"] = 0.25
        valid = sum(int(one.action_mask.sum()) for one in experiences)
        print(json.dumps({"update": global_step + 1, "valid": valid}), flush=True)
        return status, global_step + 1

    def ppo_train(self, global_steps: int) -> dict[str, Any]:
        return {}

    def broadcast_to_vllm(self) -> None:
        pass

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        pass

    def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
        pass


class PPOTrainer(BasePPOTrainer):
    def __init__(self, args: SimpleNamespace) -> None:
        self.prompts_dataloader = range(args.prompts)
        self.samples_generator = SamplesGenerator(args)
        super().__init__(args)

    def fit(self, last: int) -> None:
        global_step = self.init_checkpoint_states()["global_step"]
        if global_step:
            self.broadcast_to_vllm()
        while global_step < last:
            samples, _, _, _ = self.samples_generator.generate_samples(update=global_step + 1)
            status, global_step = self.train_step(samples, global_step)
            self.save_logs_and_checkpoints(global_step, status, {})
            if global_step % self.args.eval.steps == 0:
                self.samples_generator.generate_eval_samples()
                self.save_best_checkpoint({"eval_math_pass1": 0.5, "eval_num_samples": 1.0}, global_step)
            generated, self.samples_generator.generated = self.samples_generator.generated, []
            print(json.dumps({"update": global_step, "generated": generated}), flush=True)
