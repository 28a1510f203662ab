"""OpenRLHF 0.11: ``PPOTrainer`` and its asynchronous variants, by the methods of their undecorated bases.

==========================================  ======================================================================
their method                                our phase
==========================================  ======================================================================
``SamplesGenerator.generate_samples``       generation
``…generate_eval_samples``                  validation
``RemoteExperienceMaker``                   logprob: log-probs of actor and reference, values and the reward model's
``….make_experience_batch``                 scores run side by side in it
``BasePPOTrainer.ppo_train``                training, the critic's included
``….broadcast_to_vllm``                     refit; with partial rollouts also pause and resume
``….save_logs_and_checkpoints``,            checkpoint, when one is due
``….save_best_checkpoint``
==========================================  ======================================================================

There is no timer; the classes that run on Ray are decorated and travel by value, their bases do not. Counts:
generated, from what the engines return for each prompt, filtered ones included; valid, from the action masks of the
experiences that training gets. When asynchronous, an actor of its own generates and marks generation, and
``train.partial_rollout_enable`` decides between drained and in flight.
"""

from __future__ import annotations

from collections.abc import Generator
from types import ModuleType
from typing import Any

from .. import mark
from . import speaker
from .base import Adapter
from .ongoing import Ongoing
from .openrlhf_mode import IN_FLIGHT, mode
from .phases import Labels
from .tokens import Counted, masked

PHASES = {
    "generate_samples": "generation",
    "generate_eval_samples": "validation",
    "make_experience_batch": "logprob",
    "ppo_train": "training",
    "broadcast_to_vllm": "refit",
    "save": "checkpoint",
}

Watch = Generator[None, Any, None]

adapter = Adapter("openrlhf")
labels = Labels(PHASES)
elsewhere = Ongoing()


class Step:
    """Where the trainer is, and what its update generated and consumed."""

    def __init__(self) -> None:
        self.number = 1
        self.round: Counted | None = None
        self.generated: Counted | None = Counted()
        self.consumed: Counted | None = None

    def over(self) -> None:
        """The update is trained; the next one begins."""
        self.number += 1
        self.generated, self.consumed = Counted(), None


step = Step()


def _phase(label: str) -> Watch:
    if not adapter.speaks():
        return
    labels.begin(label, step.number)
    try:
        yield
    finally:
        labels.end(label)


@adapter.on("openrlhf.trainer.ppo_trainer")
def _trainer(module: ModuleType) -> None:
    base = module.BasePPOTrainer
    adapter.hook(base, "__init__", _made, costs="execution mode")
    adapter.hook(base, "init_checkpoint_states", _resumed, costs="the numbers of a resumed run's updates")
    adapter.hook(base, "train_step", _train_step, costs="updates and their counts")
    adapter.hook(base, "ppo_train", _ppo_train, costs="training")
    adapter.hook(base, "broadcast_to_vllm", _broadcast, costs="refit")
    adapter.hook(base, "save_logs_and_checkpoints", _save, costs="checkpoints")
    adapter.hook(base, "save_best_checkpoint", _save_best, costs="the best checkpoint")


def _made(trainer: Any, *_: Any, **__: Any) -> Watch:
    yield
    if not adapter.speaks():
        return
    mark.run(
        framework="openrlhf",
        mode=mode(trainer.args),
        total_updates=_updates(trainer),
        framework_version=adapter.version,
    )


def _updates(trainer: Any) -> int | None:
    """Updates of the whole run; None when filtering decides how many prompts one takes, or another actor knows."""
    prompts = getattr(trainer, "prompts_dataloader", None)
    if prompts is None or trainer.args.algo.dynamic_filtering_enable:
        return None
    return int(-(-len(prompts) // trainer.args.rollout.batch_size) * trainer.args.train.num_episodes)


def _resumed(trainer: Any, *_: Any, **__: Any) -> Watch:
    states = yield
    step.number = int(states["global_step"]) + 1


def _train_step(trainer: Any, rollout_samples: Any, global_step: int, *_: Any, **__: Any) -> Watch:
    if not adapter.speaks():
        return
    step.number = global_step + 1
    status, _after = yield
    fields: dict[str, Any] = {"reward": status.get("rollout/reward_mean")}
    if step.consumed is not None:
        fields["valid_tokens"] = step.consumed.tokens
        fields["longest_consumed_tokens"] = step.consumed.longest
        fields["responses"] = step.consumed.responses
        mark.response_lengths(step.consumed.all_lengths, step.number)
    if not trainer.args.train.async_enable and step.generated is not None:
        fields.update(step.generated.generated())
    mark.update(step.number, **fields)
    step.over()


def _ppo_train(*_: Any, **__: Any) -> Watch:
    yield from _phase("ppo_train")


def _broadcast(trainer: Any, *_: Any, **__: Any) -> Watch:
    if not adapter.speaks():
        return
    in_flight = mode(trainer.args) == IN_FLIGHT
    if in_flight:
        mark.pause(step.number)
    try:
        yield from _phase("broadcast_to_vllm")
    finally:
        if in_flight:
            mark.resume(step.number)


def _save(trainer: Any, global_step: int, *_: Any, **__: Any) -> Watch:
    if global_step % trainer.args.ckpt.save_steps == 0:
        yield from _phase("save")


def _save_best(trainer: Any, eval_metrics: Any, global_step: int, *_: Any, **__: Any) -> Watch:
    if eval_metrics and adapter.speaks():
        for name, value in list(eval_metrics.items())[:8]:
            if name.endswith("_pass1"):
                mark.metric(name, value, global_step)
    yield from _phase("save")


@adapter.on("openrlhf.trainer.ppo_utils.experience_maker")
def _experience_maker(module: ModuleType) -> None:
    adapter.hook(
        module.RemoteExperienceMaker, "make_experience_batch", _experience, costs="valid training tokens"
    )


def _experience(*_: Any, **__: Any) -> Watch:
    if not adapter.speaks():
        return
    labels.begin("make_experience_batch", step.number)
    try:
        experiences = yield
    finally:
        labels.end("make_experience_batch")
    step.consumed = sum((masked(one.action_mask) for one in experiences), Counted())


@adapter.on("openrlhf.trainer.ppo_utils.samples_generator")
def _samples_generator(module: ModuleType) -> None:
    generator = module.SamplesGenerator
    adapter.hook(generator, "generate_samples", _generate, costs="generation")
    adapter.hook(generator, "generate_eval_samples", _validate, costs="validation")
    adapter.hook(generator, "_process_response_into_experience", _response, costs="generated tokens")


def _generate(generator: Any, *_: Any, **__: Any) -> Watch:
    asynchronous = generator.args.train.async_enable  # then in an actor beside the trainer's, on any node
    if not (speaker.may_add() if asynchronous else adapter.speaks()):
        return
    step.round = Counted()
    if asynchronous:
        with elsewhere.one() as counts:
            yield
            counts(step.round)
            step.round = None
        return
    labels.begin("generate_samples", step.number)
    try:
        yield
    finally:
        labels.end("generate_samples", **step.round.generated())
        if step.generated is not None:
            step.generated = step.generated + step.round
        step.round = None


def _validate(generator: Any, *_: Any, **__: Any) -> Watch:
    if generator.args.train.async_enable:
        if speaker.may_add():
            with mark.phase("validation"):
                yield
        return
    yield from _phase("generate_eval_samples")


def _response(generator: Any, response: Any, *_: Any, **__: Any) -> Watch:
    if step.round is not None:
        length = sum(end - start for start, end in response["action_ranges"])
        step.round = step.round + Counted(length, length, 1)
    yield
