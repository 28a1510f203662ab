"""OpenRLHF's pools: models' ranks tell when they work, engines' when they join the group that weights come by."""

from __future__ import annotations

from collections.abc import Generator
from types import ModuleType
from typing import Any

from .base import Adapter
from .openrlhf_mode import mode

Watch = Generator[None, Any, None]

adapter = Adapter("openrlhf")


@adapter.on("openrlhf.trainer.ray.launcher")
def _launcher(module: ModuleType) -> None:
    adapter.hook(module.BaseModelActor, "execute_batch", _model_works, costs="the training pool")


def _model_works(actor: Any, *_: Any, **__: Any) -> Watch:
    yield
    if mode(actor.strategy.args) != "colocated_sync":
        adapter.tell_pool("training")


@adapter.on("openrlhf.trainer.ray.vllm_worker_wrap")
def _engines(module: ModuleType) -> None:
    adapter.hook(module.WorkerWrap, "init_process_group", _engine_joins, costs="the generation pool")


def _engine_joins(*_: Any, **__: Any) -> Watch:
    """Weights come by a process group only where engines have GPUs of their own."""
    yield
    adapter.tell_pool("generation")
