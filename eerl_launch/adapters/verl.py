"""verl 0.5 to 0.9: ``RayPPOTrainer`` and the three trainers of its v1 (sync, colocate_async, separate_async).

=====================================  ===========================================================================
their label (``_timer``)               our phase
=====================================  ===========================================================================
gen, gen_max                           generation (since v1: the wait for it); with separate pools nothing, since
                                       training waits there, and agent loops mark what they generate themselves
reward                                 reward
old_log_prob, ref                      logprob
values, update_critic                  critic
update_actor                           training
update_weights                         refit; with separate pools also pause and resume
testing, save_checkpoint               validation, checkpoint
adv, step, start_profile, …            nothing
=====================================  ===========================================================================

Until 0.7.0 weights change inside ``gen``, where nothing tells them apart. Counts: generated, from the masks that the
agent loops return, in v1 from the replay buffer's tags; valid, from the response mask that the metrics of an update
are computed from, after any rejection. verl's own asynchronous experiments (one_step_off, fully_async) have loops
that are not adapted, and say so.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any

from . import speaker
from .base import Adapter
from .ongoing import Ongoing
from .tokens import Counted, setting
from .verl_steps import Steps

PHASES = {
    "gen": "generation",
    "gen_max": "generation",
    "reward": "reward",
    "old_log_prob": "logprob",
    "ref": "logprob",
    "RefPolicy": "logprob",
    "values": "critic",
    "update_critic": "critic",
    "update_actor": "training",
    "update_weights": "refit",
    "testing": "validation",
    "save_checkpoint": "checkpoint",
}

Watch = Generator[None, Any, None]

adapter = Adapter("verl")
steps = Steps(PHASES)
loops = Ongoing(several=True)


def _drives() -> bool:
    return steps.driving and adapter.speaks()


@adapter.on("verl.utils.profiler.performance")
def _performance(module: ModuleType) -> None:
    adapter.hook(module, "_timer", _label, costs="all phases")


def _label(name: str, *_: Any, **__: Any) -> Watch:
    if name == "step" and steps.trainer is not None and not steps.driving and adapter.speaks():
        for reason in steps.begin(adapter.version):
            adapter.say(reason)
    if not _drives():
        return
    steps.start(name)
    try:
        yield
    finally:
        steps.stop(name)


@adapter.on("verl.trainer.ppo.ray_trainer")
def _ray_trainer(module: ModuleType) -> None:
    adapter.hook(module.RayPPOTrainer, "__init__", _made, costs="all phases")


@adapter.on("verl.trainer.ppo.v1.trainer_base")
def _v1_trainer(module: ModuleType) -> None:
    adapter.hook(module.PPOTrainer, "__init__", _made, costs="all phases")


def _made(trainer: Any, *_: Any, **__: Any) -> Watch:
    yield
    where = type(trainer).__module__
    if any(name in where for name in ("one_step_off", "fully_async", "separation")):
        adapter.say(f"the loop of {where} is not adapted; send markers from it, or have energy by time only")
    else:
        steps.belongs_to(trainer)
        if adapter.speaks():
            steps.tell(adapter.version)


@adapter.on("verl.utils.tracking")
def _tracking(module: ModuleType) -> None:
    adapter.hook(module.Tracking, "log", _log, costs="update numbers, counts and rewards")


def _log(tracking: Any, data: Any, *_: Any, **__: Any) -> Watch:
    yield
    if _drives():
        reason = steps.log(data)
        if reason is not None:
            adapter.say(reason)


@adapter.on("verl.trainer.ppo.metric_utils")
def _metric_utils(module: ModuleType) -> None:
    adapter.hook(module, "compute_data_metrics", _consumed, costs="valid training tokens")


def _consumed(batch: Any, *_: Any, **__: Any) -> Watch:
    if _drives():
        steps.consumed(batch.batch)
    yield


@adapter.on("verl.trainer.ppo.v1.replay_buffer")
def _replay_buffer(module: ModuleType) -> None:
    adapter.hook(module.ReplayBuffer, "_sync_metadata_from_transfer_queue", _polled, costs="generated tokens")


def _polled(replay_buffer: Any, *_: Any, **__: Any) -> Watch:
    yield
    if _drives():
        steps.arrived(dict(replay_buffer.partitions.get("train") or {}))


@adapter.on("verl.experimental.agent_loop.agent_loop")
def _agent_loop(module: ModuleType) -> None:
    adapter.hook(module.AgentLoopManager, "_performance_metrics", _generated, costs="generated tokens")
    worker = getattr(module, "AgentLoopWorker", None)
    if hasattr(worker, "_compute_score"):  # v1: a rollout's outputs pass here
        adapter.hook(worker, "_run_agent_loop", _loop, costs="generation of separate pools")
        adapter.hook(worker, "_compute_score", _scored, costs="generated tokens of separate pools")


def _generated(manager: Any, metrics: Any, output: Any, *_: Any, **__: Any) -> Watch:
    if _drives():
        steps.generated(output.batch["response_mask"])
    yield


_count: contextvars.ContextVar[Callable[[Counted | None], None] | None] = contextvars.ContextVar(
    "_count", default=None
)


def _loop(worker: Any, sampling_params: Any, trajectory: Any, *_: Any, **__: Any) -> Watch:
    """One response of an agent loop's process, which goes on while training runs elsewhere."""
    trainer = setting(worker.config, "trainer")
    separate = setting(trainer, "use_v1") and setting(trainer, "v1", "trainer_mode") == "separate_async"
    if not separate or trajectory["validate"] or not speaker.may_add():
        return
    with loops.one() as count:
        _count.set(count)
        yield


def _scored(worker: Any, outputs: Sequence[Any], *_: Any, **__: Any) -> Watch:
    count = _count.get()
    if count is not None and isinstance(outputs, list):
        count(Counted.of(sum(1 for kept in output.response_mask if kept) for output in outputs))
    yield


# -- pools: weights go from one to the other through a checkpoint engine, which only separate ones have ---------


@adapter.on("verl.workers.engine_workers")
def _trainers(module: ModuleType) -> None:
    adapter.hook(module.ActorRolloutRefWorker, "update_weights", _sent, costs="the training pool")


def _sent(worker: Any, global_steps: Any = None, mode: str = "auto", *_: Any, **__: Any) -> Watch:
    yield
    backend = setting(worker.config, "rollout", "checkpoint_engine", "backend") if mode == "auto" else mode
    if backend not in ("naive", None):
        adapter.tell_pool("training")


@adapter.on("verl.checkpoint_engine.base")
def _engines(module: ModuleType) -> None:
    adapter.hook(module.CheckpointEngineWorker, "update_weights", _received, costs="the generation pool")


def _received(*_: Any, **__: Any) -> Watch:
    yield
    adapter.tell_pool("generation")
