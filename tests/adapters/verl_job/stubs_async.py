"""Stand-ins for verl's separate asynchronous trainer: agent loops are processes of their own, and real ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import plan
import ray
import stubs
import transfer_queue as tq
from tensordict import TensorDict
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.utils import tensordict_utils as tu

LOOPS = 2


class StubLoop:
    """An agent loop whose engine takes a moment for a response."""

    def __init__(self, **parts: Any) -> None: ...

    async def run(
        self, sampling_params: dict[str, Any], step: int, row: int, **kwargs: Any
    ) -> AgentLoopOutput:
        length, foreign = plan.length(step, row), plan.spoken(step, row, 2)
        await asyncio.sleep(0.001 * length)
        return AgentLoopOutput(
            prompt_ids=[1] * stubs.PROMPT,
            response_ids=[2] * length,
            response_mask=[1] * (length - foreign - 1) + [0] * foreign + [1],
            response_logprobs=[-1.0] * length,
            reward_score=0.5,
            num_turns=4,
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": max(0, step - 1), "max_global_steps": max(0, step - 1)},
        )


class Loops(AgentLoopWorker):
    """verl's process of agent loops; what it would load for a model is left out."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.reward_loop_worker_handles = self.llm_client = self.tokenizer = self.processor = None
        self.hf_model_type = self.dataset_cls = None
        self.tools = []
        self.made: list[int] = []
        tq.init()
        agent_loop._agent_loop_registry["stub"] = {"_target_": f"{__name__}.{StubLoop.__name__}"}

    async def answer(self, uids: list[str], step: int, validates: bool) -> None:
        for number, uid in enumerate(uids):
            await asyncio.gather(*[self._one(uid, n, step, number, validates) for n in range(plan.EACH)])
            partition = "val" if validates else "train"
            await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": "finished"})

    async def _one(self, uid: str, session: int, step: int, number: int, validates: bool) -> None:
        trajectory = {"step": step, "sample_index": 0, "rollout_n": session, "validate": validates}
        row = number * plan.EACH + session
        await self._run_agent_loop(
            {}, trajectory, agent_name="stub", trace=False, step=step, row=row, uid=uid
        )

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        await self._compute_score([output], kwargs=kwargs)
        if not validate:
            self.made.append(sum(output.response_mask))
        field, tag = stubs.stored(output, kwargs["uid"], kwargs["step"])
        await tq.async_kv_batch_put(
            keys=[f"{kwargs['uid']}_{kwargs['row']}_0"],
            fields=stubs.list_of_dict_to_tensordict([field]),
            tags=[tag],
            partition_id="val" if validate else "train",
        )

    def total(self) -> int:
        return sum(self.made)


class Manager:
    """Hands prompts to the loops in turn, and does not wait."""

    def __init__(self, config: Any) -> None:
        self.loops = [ray.remote(num_cpus=0)(Loops).remote(config) for _ in range(LOOPS)]
        self._next = 0
        self._asked: list[Any] = []

    def generate_sequences(self, prompts: TensorDict) -> None:
        step = int(tu.get_non_tensor_data(prompts, "global_steps", 0))
        loop = self.loops[self._next % LOOPS]
        self._next += 1
        self._asked.append(loop.answer.remote(list(prompts["uid"]), step, "validate" in prompts))

    @property
    def made(self) -> int:
        """Tokens that all loops generated, once all are done."""
        ray.get(self._asked)
        return sum(ray.get([loop.total.remote() for loop in self.loops]))


class Trainer(stubs.Built, PPOTrainerSeparateAsync):
    """verl's separate asynchronous trainer with its own ``fit``, without replicas on training's GPUs."""

    prompts_at_once = 1

    def _setup(self) -> None:
        self.build()
        self.llm_server_manager = SimpleNamespace()
        self.standalone_checkpoint_manager = stubs.Weights(self.actor_rollout_wg)
        self.current_mode = HybridEngineMode.TRAINER
