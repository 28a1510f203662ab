"""What generates for ``AsyncGRPOTrainer``: TRL's own rollout worker, or one of the user's; see ``trl_async.py``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .base import Adapter
from .generated import Generated
from .running import Hook
from .trl_trainer import Watching

adapter = Adapter("trl")

#: By this process; generation itself never stops.
generated = Generated()


@adapter.on("trl.experimental.async_grpo.async_rollout_worker")
def worker_module(module: ModuleType) -> None:
    """TRL's own worker: a thread of the trainer's to 1.8, then a process that it starts."""
    worker = getattr(module, "_AsyncRolloutLoop", None) or module.AsyncRolloutWorker
    adapter.hook(worker, "_run_loops", worker_runs, costs="generation")
    adapter.hook(worker, "_score_group", group_scored, costs="generated tokens")


def trained_tokens(sample: Any) -> int:
    """Response tokens of a sample: those the model wrote."""
    mask = sample["completion_mask"] if isinstance(sample, dict) else sample.completion_mask
    return int(sum(mask)) if isinstance(mask, list) else int(mask.sum())


def worker_runs(*args: Any, **kwargs: Any) -> Watching:
    """TRL's worker generates from here on, in whatever process it runs."""
    if not adapter.speaks_for_its_parent():
        return
    generated.begin()
    try:
        yield
    finally:
        generated.tell(over=True)


def group_scored(*args: Any, **kwargs: Any) -> Watching:
    """A prompt's responses are there and scored."""
    if not adapter.speaks_for_its_parent():
        return
    samples = yield
    generated.add([trained_tokens(sample) for sample in samples], at_once=True)


def worker_starts(*args: Any, **kwargs: Any) -> Watching:
    """A worker of the user's own begins."""
    if adapter.speaks():
        generated.begin()
        yield


def worker_stops(*args: Any, **kwargs: Any) -> Watching:
    """It ends."""
    yield
    if adapter.speaks():
        generated.tell(over=True)


def puts_if(speaks: Callable[[], bool]) -> Hook:
    """The hook on a worker of the user's own, which runs in threads of its own, that hands over samples."""

    def put(sample: Any, *args: Any, **kwargs: Any) -> Watching:
        yield
        if speaks():
            generated.add([trained_tokens(sample)], at_once=False)

    return put
