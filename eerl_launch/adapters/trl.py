"""TRL's ``GRPOTrainer`` (0.24 to 1.16): one update is one rollout and everything trained on it.

Methods of the trainer → our phases:

====================================  =============================================================
``_generate``                         generation (tools that a response calls included)
``_calculate_rewards``                reward
``_get_per_token_logps_and_…``        logprob before training; inside the loss it is training
end of ``_prepare_inputs`` to the     training (``training_step`` contains generation, so it is no
last optimizer step on the rollout    bracket)
``evaluate``, ``_save_checkpoint``    validation, checkpoint
``_move_model_to_vllm`` (to 0.26),    refit, inside generation, where TRL does it
``VLLMGeneration.sync_weights``
====================================  =============================================================

Rank 0 speaks. The job's totals come from the gathers that TRL makes of the responses' lengths itself: a collective of
ours could hang a trainer. Valid training tokens are counted once per rollout, however often it is trained on.
"""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from .. import mark
from . import gpus, speaker
from .base import Adapter
from .lengths import Gathers, Lengths
from .trl_trainer import Watching, about, listen, micro_steps, mode

adapter = Adapter("trl")


@adapter.on("trl.trainer.grpo_trainer")
def grpo(module: ModuleType) -> None:
    """Set the hooks on ``GRPOTrainer``, and so on what is made of it."""
    trainer = module.GRPOTrainer
    adapter.hook(trainer, "__init__", made, costs="the ends of updates")
    adapter.hook(trainer, "_inner_training_loop", training_loop, costs="one of two trainers in two threads")
    adapter.hook(trainer, "_generate", generation, costs="generation and generated tokens")
    adapter.hook(trainer, "_generate_and_score_completions", scoring, costs="valid tokens")
    adapter.hook(trainer, "_prepare_inputs", inputs_prepared, costs="training")
    adapter.hook(trainer, "_calculate_rewards", reward, costs="the reward phase")
    adapter.hook(trainer, "_get_per_token_logps_and_entropies", logprob, costs="the logprob phase")
    adapter.hook(trainer, "evaluate", validation, costs="validation")
    adapter.hook(trainer, "_save_checkpoint", checkpoint, costs="checkpoints")
    if hasattr(trainer, "_move_model_to_vllm"):
        adapter.hook(trainer, "_move_model_to_vllm", refit)


@adapter.on("trl.generation.vllm_generation")
def vllm(module: ModuleType) -> None:
    """New weights for vLLM, since 0.27 in a class of its own."""
    adapter.hook(module.VLLMGeneration, "sync_weights", refit, costs="refit")


class Cycle:
    """Where a trainer is: the update that runs, its counts, and which of its phases is open."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.counts: dict[str, int] = {}
        self.lengths: Lengths | None = None
        self.scoring = False
        self.training = False

    def start(self, trainer: Any) -> int:
        """A rollout begins: the next update's number; the first of a run goes on from where a checkpoint was."""
        self.end(trainer)
        if self.number is None:
            done = trainer.state.global_step * trainer.args.gradient_accumulation_steps
            self.number = done // micro_steps(trainer)
        else:
            self.number += 1
        self.counts, self.lengths = {}, None
        return self.number

    def end(self, trainer: Any) -> None:
        """Training on this rollout is over, if there was any."""
        if not self.training or self.number is None:
            return
        self.training = False
        mark.end("training", self.number)
        rewards = getattr(trainer, "_metrics", {}).get("train", {}).get("reward")
        mark.update(self.number, **self.counts, reward=rewards[-1] if rewards else None)


_cycles: weakref.WeakKeyDictionary[Any, Cycle] = weakref.WeakKeyDictionary()


def _cycle(trainer: Any) -> Cycle | None:
    """The trainer's state, or None when this process does not speak."""
    if not adapter.speaks(trainer.accelerator.process_index):
        return None
    return _cycles.setdefault(trainer, Cycle())


# -- hooks --------------------------------------------------------------------------------------------------


def made(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """A trainer exists: from now on it tells us of its optimizer steps."""
    yield
    listen(
        trainer,
        adapter.say,
        on_train_begin=lambda: train_begins(trainer),
        on_step_end=lambda: optimizer_step_ends(trainer),
        on_train_end=lambda: train_ends(trainer),
    )


def training_loop(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """A training in this thread, of which there may be several in others."""
    speaker.threads.begins()
    try:
        yield
    finally:
        speaker.threads.ends()


def train_begins(trainer: Any) -> None:
    """Say what kind of run this is, and on which GPUs."""
    adapter.follow(trainer)
    if mode(trainer) == "disaggregated_sync":
        gpus.tell("training")
    cycle = _cycle(trainer)
    if cycle is None:
        return
    cycle.number = None
    steps = trainer.state.max_steps * trainer.args.gradient_accumulation_steps
    mark.run("trl", mode(trainer), steps // micro_steps(trainer), **about(trainer, adapter.version))


def optimizer_step_ends(trainer: Any) -> None:
    """The last optimizer step on a rollout ends its update."""
    cycle = _cycle(trainer)
    if cycle is not None and trainer._step % micro_steps(trainer) == 0:
        cycle.end(trainer)


def train_ends(trainer: Any) -> None:
    """What was not trained to the end is over all the same."""
    cycle = _cycle(trainer)
    if cycle is not None:
        cycle.end(trainer)


def generation(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """One rollout; in a validation it is part of that."""
    cycle = _cycle(trainer) if trainer.model.training else None
    if cycle is None:
        return
    with mark.phase("generation", cycle.start(trainer)) as phase, Gathers(trainer.accelerator) as gathers:
        result = yield
        # Of responses with tool calls the model generated only what their mask says; tools wrote the rest.
        masks = result[2] if isinstance(result[2], list) else None
        own = [len(ids) for ids in result[1]] if masks is None else [sum(mask) for mask in masks]
        lengths = own
        if trainer.accelerator.num_processes > 1:
            gathered = gathers.of(own, "int")
            if gathered is None:
                adapter.say("response lengths are not gathered as they were; token counts are unknown")
                return
            lengths = gathered
            masked = getattr(trainer, "mask_truncated_completions", False)
            left_out = gathers.of(own, "bool") if masked else [False] * len(lengths)
            if left_out is not None and len(left_out) == len(lengths):
                cycle.lengths = Lengths(len(own), lengths, left_out)
        cycle.counts = {
            "generated_tokens": sum(lengths),
            "longest_response_tokens": max(lengths, default=0),
            "responses": len(lengths),
        }
        phase.set(**cycle.counts)
    mark.response_lengths(lengths, cycle.number)


def scoring(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Generation, rewards and log-probs of one rollout; its batch says which tokens the loss takes."""
    cycle = _cycle(trainer) if trainer.model.training else None
    if cycle is None:
        return
    cycle.scoring = True
    try:
        batch = yield
    finally:
        cycle.scoring = False
    mask = batch["completion_mask"]
    if batch.get("tool_mask") is not None:
        mask = mask * batch["tool_mask"]
    own = int(mask.sum())
    if trainer.accelerator.num_processes == 1:
        cycle.counts["valid_tokens"] = own
        return
    known = cycle.lengths
    if known is not None and own == known.valid(trainer.accelerator.process_index):
        cycle.counts["valid_tokens"] = known.valid()
        return
    adapter.say("the loss takes other tokens than were generated, on several ranks; valid tokens are unknown")


def inputs_prepared(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """With its inputs ready, the first micro-step of an update begins training."""
    cycle = _cycle(trainer) if trainer.model.training else None
    if cycle is None or cycle.training:
        return
    yield
    if cycle.number is not None:
        cycle.training = True
        mark.begin("training", cycle.number)


def _phase(trainer: Any, name: str) -> Watching:
    cycle = _cycle(trainer)
    if cycle is not None:
        with mark.phase(name, cycle.number):
            yield


def reward(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Rewards of a rollout."""
    if trainer.model.training:
        yield from _phase(trainer, "reward")


def logprob(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Old and reference log-probs; called again by the loss, which is training."""
    cycle = _cycles.get(trainer)
    if cycle is not None and cycle.scoring:
        yield from _phase(trainer, "logprob")


def validation(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """An evaluation."""
    yield from _phase(trainer, "validation")


def checkpoint(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Model and optimizer to disk."""
    yield from _phase(trainer, "checkpoint")


def refit(owner: Any, *args: Any, **kwargs: Any) -> Watching:
    """New weights for the inference engine, by a trainer or by TRL's vLLM client, which have an accelerator."""
    if adapter.speaks(owner.accelerator.process_index):
        with mark.phase("refit"):
            yield
