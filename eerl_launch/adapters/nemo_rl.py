"""NeMo RL 0.5 to 0.7 and its main branch of August 2026: GRPO and PPO loops, synchronous and asynchronous.

======================================  ==========================================================================
their label (``Timer.start``, ``stop``)  our phase
======================================  ==========================================================================
generation                              generation; an environment's reward is computed inside it
prepare_for_generation/total            refit, weights to the colocated engine, first thing of a step
weight_sync                             refit of separate pools; in flight also pause and resume
refit_policy_generation (function)      refit before validation, which has no label
reward_calculation                      reward (baselines and dynamic sampling, on the CPU)
*_logprobs, logprob_inference_prep      logprob
policy_training, training_prep          training
value_inference, value_training         critic
total_validation_time                   validation
checkpointing                           checkpoint
exposed_generation, idle/*              nothing: the training pool waits; on one pool it is generation
======================================  ==========================================================================

An update is what lies between two ends of ``policy_training``: with dynamic sampling several ``total_step_time``
make up one. Counts: generated, from the message logs that rollouts return; valid, from the masks that
``Policy.train`` is given, however many optimizer steps it makes of them. Responses of the asynchronous collector
are counted when they are finished, in its own process, so they are told apart from what training consumes.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from types import ModuleType
from typing import Any

from .. import mark
from . import speaker
from .base import Adapter
from .nemo_rl_run import Run, describe
from .nemo_rl_steps import Steps
from .ongoing import Ongoing
from .tokens import Counted

PHASES = {
    "generation": "generation",
    "prepare_for_generation/total": "refit",
    "weight_sync": "refit",
    "reward_calculation": "reward",
    "logprob_inference_prep": "logprob",
    "policy_and_reference_logprobs": "logprob",
    "training_prep": "training",
    "policy_training": "training",
    "value_inference": "critic",
    "value_training_prep": "critic",
    "value_training": "critic",
    "total_validation_time": "validation",
    "checkpointing": "checkpoint",
}
PREPARES = frozenset({"logprob_inference_prep", "training_prep", "value_training_prep"})
REFIT_FUNCTION = "refit_policy_generation"
#: Tells the trajectory collector's process, which NeMo RL gives the driver's environment, that it generates.
COLLECTS = "EERL_NEMO_RL_COLLECTS"

Watch = Generator[None, Any, None]

adapter = Adapter("nemo_rl", distribution="nemo-rl")
steps = Steps({**PHASES, REFIT_FUNCTION: "refit"}, PREPARES)
collected = Ongoing()


def _drives() -> bool:
    return steps.driving and adapter.speaks()


@adapter.on("nemo_rl.utils.timer")
def _timer(module: ModuleType) -> None:
    adapter.hook(module.Timer, "start", _start, costs="all phases")
    adapter.hook(module.Timer, "stop", _stop, costs="all phases")


def _start(timer: Any, label: str, *_: Any, **__: Any) -> Watch:
    yield
    if label == "total_step_time":
        steps.driving = True
    if _drives():
        steps.start(label)


def _stop(timer: Any, label: str, *_: Any, **__: Any) -> Watch:
    yield
    if _drives():
        steps.stop(label)


@adapter.on("nemo_rl.utils.logger")
def _logger(module: ModuleType) -> None:
    adapter.hook(module.Logger, "log_metrics", _log_metrics, costs="update numbers and rewards")


def _log_metrics(logger: Any, metrics: Any, step: int, prefix: str | None = "", *_: Any, **__: Any) -> Watch:
    yield
    if _drives():
        reason = steps.log(dict(metrics), step, prefix or "")
        if reason is not None:
            adapter.say(reason)


@adapter.on("nemo_rl.algorithms.grpo")
def _grpo(module: ModuleType) -> None:
    adapter.hook(module, "setup", _setup, costs="execution mode, length of the run")
    adapter.hook(module, REFIT_FUNCTION, _refit, costs="the refit before validation")


@adapter.on("nemo_rl.algorithms.ppo")
def _ppo(module: ModuleType) -> None:
    adapter.hook(module, "setup", _setup, costs="execution mode, length of the run")


def _setup(master_config: Any, *_: Any, **__: Any) -> Watch:
    result = yield
    steps.driving = True
    run = describe(master_config, result)
    steps.begin(run)
    if adapter.speaks():
        _tell(run, framework_version=adapter.version)
        if run.asynchronous:
            os.environ[COLLECTS] = "1"


def _tell(run: Run, **more: str) -> None:
    mark.run(framework="nemo_rl", mode=run.mode, total_updates=run.updates_left, **more)
    for reason in run.reasons:
        adapter.say(reason)


def _refit(*_: Any, **__: Any) -> Watch:
    if not _drives():
        return
    steps.start(REFIT_FUNCTION)
    try:
        yield
    finally:
        steps.stop(REFIT_FUNCTION)


@adapter.on("nemo_rl.models.policy.lm_policy")
def _policy(module: ModuleType) -> None:
    adapter.hook(module.Policy, "train", _train, costs="valid training tokens")


def _train(policy: Any, data: Any, loss_fn: Any, eval_mode: bool = False, *_: Any, **__: Any) -> Watch:
    if _drives() and not eval_mode:
        steps.trains(data)
    yield


@adapter.on("nemo_rl.experience.rollouts")
def _rollouts(module: ModuleType) -> None:
    costs = "generated tokens"
    adapter.hook(module, "run_multi_turn_rollout", _rollout, costs=costs)
    if hasattr(module, "_run_multi_turn_rollout_async"):  # main: below both callers
        adapter.hook(module, "_run_multi_turn_rollout_async", _rollout, costs=costs)
        adapter.hook(module, "_postprocess_single_nemo_gym_group", _gym_group, costs=costs)
        adapter.hook(module, "run_async_nemo_gym_rollout", _gym_stream, costs=costs)
    else:
        adapter.hook(module, "run_async_multi_turn_rollout", _rollout, costs=costs)
        if hasattr(module, "run_async_nemo_gym_rollout"):
            adapter.hook(module, "run_async_nemo_gym_rollout", _rollout, costs=costs)


def _collects() -> bool:
    """Whether rollouts in this process are the asynchronous collector's own."""
    return not steps.driving and COLLECTS in os.environ and speaker.may_add()


def _rollout(*_: Any, **__: Any) -> Watch:
    """A rollout that returns its batch, alone or with metrics."""
    if _collects():
        with collected.one() as counts:
            counts(_responses(_batch((yield))))
    elif _drives():
        steps.generated(_responses(_batch((yield))))


def _gym_group(*_: Any, **__: Any) -> Watch:
    result = yield
    if _collects():
        collected.finished(_responses(result.final_batch))
    elif _drives():
        steps.generated(_responses(result.final_batch))


def _gym_stream(*_: Any, **__: Any) -> Watch:
    if not _collects():
        return
    with collected.one() as counts:
        yield
        counts(Counted())


def _batch(result: Any) -> Any:
    if isinstance(result, tuple):
        return result[0]
    return getattr(result, "final_batch", result)


def _responses(batch: Any) -> Counted | None:
    """Tokens that the engine generated: an assistant's message of the prompt has no log-probabilities."""
    return of_logs(batch["message_log"])


def of_logs(logs: Any) -> Counted | None:
    """Counts of message logs, one for each response; None where nothing tells generated tokens from given ones."""
    lengths, told = [], False
    for log in logs:
        own = [turn for turn in log if turn.get("role") == "assistant" and "generation_logprobs" in turn]
        told = told or bool(own)
        lengths.append(sum(len(turn["token_ids"]) for turn in own))
    return Counted.of(lengths) if told or not lengths else None


# -- the single controller (main branch): its own actor drives, and holds the rollouts -------------------------


@adapter.on("nemo_rl.algorithms.single_controller_utils.setup")
def _single_setup(module: ModuleType) -> None:
    adapter.hook(module, "setup_single_controller", _single, costs="execution mode, length of the run")


def _single(master_config: Any, *_: Any, **__: Any) -> Watch:
    result = yield
    _tell(
        describe(master_config, result, single_controller=True)
    )  # the controller's actor will speak, not we


@adapter.on("nemo_rl.experience.rollout_manager")
def _manager(module: ModuleType) -> None:
    adapter.hook(module.RolloutManager, "run_rollout", _managed, costs="generated tokens")


def _managed(*_: Any, **__: Any) -> Watch:
    if not adapter.speaks():
        return
    steps.in_flight = True
    with collected.one() as counts:
        record = yield
        counts(of_logs([completion.message_log for completion in record.completions]))
