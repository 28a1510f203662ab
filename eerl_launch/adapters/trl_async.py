"""TRL's ``AsyncGRPOTrainer`` (1.0 to 1.16): generation goes on in a vLLM server while the trainer trains.

==============================================  ===================================================
``AsyncGRPOTrainer.training_step``, first of    training, which ends with the optimizer step; the wait for
an optimizer step                               rollouts before it is none
``AsyncGRPOTrainer._sync_weight``               the pause: vLLM keeps what is in flight
``_score_group`` of TRL's rollout worker, or    an end of generation with what was generated, and the next begin
``put`` into another worker's queue
``_save_checkpoint``                            checkpoint
==============================================  ===================================================

What was generated is what was put where the trainer takes it from; what was consumed is what the loss took. A sample
carries the version of the weights it was begun under: policy age is how many versions later it was trained on.
"""

from __future__ import annotations

import queue
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import mark
from . import gpus, speaker
from .base import Adapter
from .trl_async_worker import generated, puts_if, trained_tokens, worker_starts, worker_stops
from .trl_trainer import Watching, about, listen

adapter = Adapter("trl")

#: Samples whose version is remembered until they are trained on; more than any queue of them holds.
_MAX_SAMPLES = 65536


@adapter.on("trl.experimental.async_grpo.async_grpo_trainer")
def trainer_module(module: ModuleType) -> None:
    """Set the hooks on ``AsyncGRPOTrainer`` and on what collates its batches."""
    trainer = module.AsyncGRPOTrainer
    adapter.hook(trainer, "__init__", made, costs="training and its counts")
    adapter.hook(trainer, "_inner_training_loop", training_loop, costs="the mode of the run")
    adapter.hook(trainer, "training_step", training_step, costs="training")
    adapter.hook(trainer, "compute_loss", loss, costs="valid tokens")
    adapter.hook(trainer, "_sync_weight", weight_sync, costs="pauses for new weights")
    adapter.hook(trainer, "_save_checkpoint", checkpoint, costs="checkpoints")
    adapter.hook(module.DataCollatorForRollout, "torch_call", collated, costs="lengths and policy age")


class Step:
    """One trainer: the optimizer step that runs and what it has consumed."""

    def __init__(self) -> None:
        self.training = False
        self.valid = 0
        self.longest = self.age = 0
        #: Of each micro-batch that was collated and not yet trained on: its samples' lengths and versions.
        self.batches: deque[list[tuple[int, int | None]]] = deque(maxlen=64)
        self.ages_known = True

    def end(self, trainer: Any) -> None:
        """The optimizer has stepped."""
        if not self.training:
            return
        number = trainer.state.global_step
        mark.end("training", number)
        counts: dict[str, Any] = {"valid_tokens": self.valid, "longest_consumed_tokens": self.longest or None}
        if self.ages_known:
            counts["policy_age"] = self.age
        rewards = [value for value in trainer._metrics["train"].get("reward", ()) if value == value]
        mark.update(number, **counts, reward=rewards[-1] if rewards else None)
        self.training, self.valid, self.longest, self.age, self.ages_known = False, 0, 0, 0, True


_steps: weakref.WeakKeyDictionary[Any, Step] = weakref.WeakKeyDictionary()
#: The trainer that trains, for its collator, which does not know it.
_current: list[weakref.ref[Any]] = []
#: Version of the weights by the identity of a sample's mask, which the trainer hands on as it is.
_versions: OrderedDict[int, tuple[Any, int]] = OrderedDict()


def _samples(examples: Any) -> Iterator[dict[str, Any]]:
    """Sample dictionaries in whatever the batcher of this version makes of them: lists, or rows with samples."""
    if isinstance(examples, dict):
        yield examples
    elif isinstance(examples, (list, tuple)):
        for part in examples:
            yield from _samples(part)
    else:
        yield from _samples(examples.samples)


def _trains(trainer: Any) -> bool:
    """Whether it is the trainer that speaks and trains."""
    return bool(_current) and trainer is not None and _current[0]() is trainer


def _step(trainer: Any) -> Step | None:
    """The trainer's state, or None when this process does not speak."""
    if not adapter.speaks(trainer.accelerator.process_index):
        return None
    return _steps.setdefault(trainer, Step())


# -- the trainer --------------------------------------------------------------------------------------------


def made(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """A trainer and its worker exist: listen to the one, and watch what passes through the other's queue."""
    yield
    if _step(trainer) is None:
        return
    listen(trainer, adapter.say, on_optimizer_step=lambda: optimizer_step_ends(trainer))
    worker, one = trainer.rollout_worker, weakref.ref(trainer)
    adapter.hook(worker.rollout_buffer, "get", taken, costs="policy age")
    if type(worker).__module__.startswith("trl."):
        return
    if not isinstance(worker.rollout_buffer, queue.Queue):
        adapter.say("a rollout worker of your own in another process; generated tokens are unknown")
        return
    adapter.hook(worker.rollout_buffer, "put", puts_if(lambda: _trains(one())), costs="generated tokens")
    adapter.hook(worker, "start", worker_starts, costs="generation")
    adapter.hook(worker, "stop", worker_stops, costs="the end of generation")


def training_loop(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Say what kind of run this is before its first weights go out, and on which GPUs it trains."""
    speaker.threads.begins()
    try:
        adapter.follow(trainer)
        gpus.tell("training")
        if _step(trainer) is not None:
            _current[:] = [weakref.ref(trainer)]
            steps, every = trainer.args.max_steps, trainer.args.weight_sync_steps
            updates = steps // every if steps > 0 else None
            mark.run("trl", "async_inflight", updates, **about(trainer, adapter.version))
        yield
    finally:
        speaker.threads.ends()


def training_step(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """A micro-step: the first of an optimizer step begins training, and each uses up one collated batch."""
    step = _step(trainer)
    if step is None:
        return
    if not step.training:
        step.training = True
        mark.begin("training", trainer.state.global_step)
    if step.batches:
        for length, version in step.batches.popleft():
            step.longest = max(step.longest, length)
            if version is None:
                step.ages_known = False
            else:
                step.age = max(step.age, trainer.model_version - version)
    yield


def optimizer_step_ends(trainer: Any) -> None:
    """Training on what was collated for it is over."""
    step = _step(trainer)
    if step is not None:
        step.end(trainer)


def loss(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Watching:
    """Its inputs say how many tokens all ranks' losses take; TRL has read that number by then."""
    step = _step(trainer)
    if step is None:
        return
    yield
    step.valid += int(inputs["global_n_tokens"][0])


def weight_sync(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """New weights for the server, which holds what is in flight meanwhile."""
    if _step(trainer) is None:
        return
    generated.tell()
    mark.pause()
    try:
        yield
    finally:
        mark.resume()


def checkpoint(trainer: Any, *args: Any, **kwargs: Any) -> Watching:
    """Model and optimizer to disk."""
    if _step(trainer) is not None:
        with mark.phase("checkpoint"):
            yield


def taken(*args: Any, **kwargs: Any) -> Watching:
    """The trainer takes a sample from the queue."""
    if not adapter.speaks():
        return
    sample = yield
    _versions[id(sample.completion_mask)] = (sample.completion_mask, int(sample.model_version))
    while len(_versions) > _MAX_SAMPLES:
        _versions.popitem(last=False)


def collated(collator: Any, examples: Any, *args: Any, **kwargs: Any) -> Watching:
    """A micro-batch is made; it is trained on later, in the same order."""
    trainer = _current[0]() if _current and adapter.speaks() else None
    step = _steps.get(trainer) if trainer is not None else None
    if step is None:
        return
    yield
    batch = []
    for sample in _samples(examples):
        mask, version = _versions.pop(id(sample["completion_mask"]), (None, None))
        known = version if mask is sample["completion_mask"] else None
        batch.append((trained_tokens(sample), known))
    step.batches.append(batch)
