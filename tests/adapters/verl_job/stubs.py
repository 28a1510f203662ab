"""Stand-ins for what verl's trainer commands: workers, engines and data. The trainer itself is verl's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import plan
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

PROMPT = 9


class Prompts:
    """A data loader of prompts that never ends within an epoch."""

    def __init__(self, size: int, batches: int) -> None:
        self._size, self._batches = size, batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._batches):
            rows = np.array([[{"role": "user", "content": "?"}]] * self._size, dtype=object)
            yield {"raw_prompt": rows, "index": np.arange(self._size)}


class Workers:
    """The actor's worker group: writes what verl reads back, and returns the metrics of an update."""

    world_size = 1
    _dispatch_info = {"actor": [0]}  # noqa: RUF012 - as in the class it stands for

    def compute_log_prob(self, batch: Any) -> Any:
        lengths = [tag["seq_len"] for tag in batch.tags]
        fields = {
            name: torch.nested.as_nested_tensor(
                [torch.full((n,), -1.0) for n in lengths], layout=torch.jagged
            )
            for name in ("log_probs", "entropy")
        }
        return tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(lengths)),
        )

    compute_ref_log_prob = compute_log_prob

    def save_model_to_cpu(self, number: int) -> None: ...
    def restore_model_from_cpu(self, number: int) -> None: ...
    def clear_cpu_model(self, number: int) -> None: ...

    def __init__(self) -> None:
        self.trained = 0
        #: Tokens that training had in each update.
        self.valid: dict[int, int] = {}

    def update_actor(self, batch: Any) -> dict[str, Any]:
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        masks = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        self.trained += int(masks["response_mask"].values().sum())
        time.sleep(0.01)
        return {"metrics": {"mfu": [0.1], "grad_norm": [1.0], "lr": [1e-6]}}


class Weights:
    """The checkpoint engine's manager, with nothing to send."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        if self._workers.trained:
            self._workers.valid[global_steps or 0] = self._workers.trained
            self._workers.trained = 0
        return {}

    def sleep_replicas(self) -> None: ...
    def abort_replicas(self, reject_request: bool = False) -> None: ...
    def resume_generation_replicas(self) -> None: ...


class Engines:
    """The agent loops: each prompt's responses arrive in the transfer queue a little later."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.made = 0

    def generate_sequences(self, prompts: TensorDict) -> None:
        validates = "validate" in prompts
        step = int(tu.get_non_tensor_data(prompts, "global_steps", 0))
        uids = list(prompts["uid"])
        self._answer(uids, step, validates)

    def _answer(self, uids: list[str], step: int, validates: bool) -> None:
        partition = "val" if validates else "train"
        for number, uid in enumerate(uids):
            for session in range(1 if validates else plan.EACH):
                self._put(uid, session, step, number * plan.EACH + session, partition)
            tq.kv_put(key=uid, partition_id=partition, tag={"status": "finished"})

    def _put(self, uid: str, session: int, step: int, row: int, partition: str) -> None:
        length = plan.length(step, row) if partition == "train" else 500
        foreign = plan.spoken(step, row, self.turns)
        own = length - foreign
        self.made += own if partition == "train" else 0
        output = AgentLoopOutput(
            prompt_ids=[1] * PROMPT,
            response_ids=[2] * length,
            response_mask=[1] * (own // 2) + [0] * foreign + [1] * (own - own // 2),
            response_logprobs=[-1.0] * length,
            reward_score=0.5,
            num_turns=2 * self.turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": step - 1, "max_global_steps": step - 1},
        )
        field, tag = stored(output, uid, step)
        tq.kv_batch_put(
            keys=[f"{uid}_{session}_0"],
            fields=list_of_dict_to_tensordict([field]),
            tags=[tag],
            partition_id=partition,
        )


def stored(output: AgentLoopOutput, uid: str, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A response as verl's agent loops put it into the transfer queue: its fields and its tag."""
    field = output.as_dict()
    field.update(uid=uid, global_steps=step, reward_model={}, data_source="stub")
    field["loss_mask"] = field["response_mask"]
    field["input_ids"] = torch.cat([field["prompts"], field["responses"]])
    field["position_ids"] = torch.arange(len(field["input_ids"]))
    field["multi_modal_inputs"] = {}
    length = len(field["responses"])
    tag = {
        "status": "success",
        "prompt_len": PROMPT,
        "response_len": length,
        "seq_len": PROMPT + length,
        "global_steps": step,
        **output.extra_fields,
    }
    return field, tag


class Built:
    """What a trainer would build on GPUs is put there."""

    prompts_at_once = plan.PROMPTS

    def build(self) -> None:
        """In place of the start of ``_setup``."""
        self.tokenizer = SimpleNamespace(
            eos_token_id=0, pad_token_id=0, decode=lambda ids, skip_special_tokens: "words"
        )
        self.processor = None
        self.train_dataloader = Prompts(self.prompts_at_once, 100)
        self.train_dataloader_it = None
        self.val_dataloader = Prompts(2, 1)
        self.steps_per_epoch = 100
        self.total_training_steps = self.config.trainer.total_training_steps
        self._init_dump_executor()
        self.ref_in_actor = False
        self.actor_rollout_wg = self.ref_policy_wg = Workers()
        self.checkpoint_manager = Weights(self.actor_rollout_wg)
        self.llm_server_manager = SimpleNamespace()
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=["a reward worker"])
        self.distillation_config = self.teacher_model_manager = None
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.replay_buffer.poll_interval = 0.02
        self._load_checkpoint()


class Trainer(Built, PPOTrainerSync):
    """verl's synchronous trainer with its own ``fit``."""

    def _setup(self) -> None:
        self.build()


class AheadTrainer(Built, PPOTrainerColocateAsync):
    """verl's colocated asynchronous trainer with its own ``fit``: a batch is asked for ahead."""

    prompts_at_once = 1

    def _setup(self) -> None:
        self.build()


TRAINERS = {"sync": Trainer, "colocate_async": AheadTrainer}


def counts(workers: Workers, engines: Engines, *, ahead: bool) -> list[dict[str, int]]:
    """What engine and workers know they did, for the test to compare with; an engine ahead knows the whole only."""
    if ahead:
        valid = [{"update": update, "valid": tokens} for update, tokens in workers.valid.items()]
        return [*valid, {"update": 0, "generated": engines.made}]
    lines = []
    for update, valid in workers.valid.items():
        rows = range(plan.PROMPTS * plan.EACH)
        own = [plan.length(update, row) - plan.spoken(update, row, engines.turns) for row in rows]
        lines.append({"update": update, "generated": sum(own), "longest": max(own), "valid": valid})
    return lines
