"""A trainer with the methods of TRL's GRPOTrainer, called in its order; it sleeps instead of working."""

import os
import time
from types import SimpleNamespace


class Numbers(list):
    """A mask of one number per response."""

    def sum(self):
        return sum(self)


class GRPOTrainer:
    def __init__(self, updates=3, phase_s=0.05, lengths=(3, 5, 7), rank=0, ranks=1):
        self.lengths = list(lengths)
        self.phase_s = phase_s
        self.accelerator = SimpleNamespace(
            process_index=rank, num_processes=ranks, gather=lambda value: value
        )
        self.args = SimpleNamespace(steps_per_generation=1, gradient_accumulation_steps=1, use_vllm=False)
        self.state = SimpleNamespace(global_step=0, max_steps=updates)
        self.model = SimpleNamespace(training=True)
        self.num_iterations, self.mask_truncated_completions = 1, False
        self._step, self._metrics, self._callbacks = 0, {"train": {"reward": []}}, []

    def add_callback(self, callback):
        self._callbacks.append(callback() if isinstance(callback, type) else callback)

    def _call(self, event):
        for callback in self._callbacks:
            getattr(callback, event)(self.args, self.state, None)

    def train(self):
        self._inner_training_loop()

    def _inner_training_loop(self):
        self._call("on_train_begin")
        while self.state.global_step < self.state.max_steps:
            self._prepare_inputs({})
            time.sleep(self.phase_s)
            self._step += 1
            self.state.global_step += 1
            self._call("on_step_end")
        self._call("on_train_end")

    def _prepare_inputs(self, batch):
        return self._generate_and_score_completions(["prompt"] * len(self.lengths))

    def _generate_and_score_completions(self, inputs):
        self._generate(inputs)
        self._calculate_rewards(inputs)
        self._get_per_token_logps_and_entropies()
        return {"completion_mask": Numbers(self.lengths)}

    def _generate(self, prompts):
        time.sleep(self.phase_s)
        return prompts, [[0] * length for length in self.lengths], None

    def _calculate_rewards(self, inputs):
        if self.state.global_step == int(os.environ.get("CRASH_IN_REWARD", "-1")):
            raise RuntimeError("the user's reward function")
        self._metrics["train"]["reward"].append(0.5)

    def _get_per_token_logps_and_entropies(self):
        pass

    def evaluate(self):
        pass

    def _save_checkpoint(self, model, trial):
        pass
