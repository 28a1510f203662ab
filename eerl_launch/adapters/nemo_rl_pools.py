"""NeMo RL's pools: only separate ones make the groups that weights go through, on every rank of either side."""

from __future__ import annotations

from collections.abc import Generator
from types import ModuleType
from typing import Any

from .base import Adapter

Watch = Generator[None, Any, None]

adapter = Adapter("nemo_rl", distribution="nemo-rl")


@adapter.on("nemo_rl.models.policy.workers.base_policy_worker")
def _trainer(module: ModuleType) -> None:
    for name in ("init_collective", "init_nccl_reshard_comm_group"):
        if hasattr(module.AbstractPolicyWorker, name):
            adapter.hook(module.AbstractPolicyWorker, name, _training_rank)


@adapter.on("nemo_rl.models.generation.vllm.vllm_backend")
def _engine(module: ModuleType) -> None:
    for name in ("init_collective", "init_nccl_reshard_comm_group"):
        if hasattr(module.VllmInternalWorkerExtension, name):
            adapter.hook(module.VllmInternalWorkerExtension, name, _engine_rank)


def _training_rank(worker: Any, *_: Any, **__: Any) -> Watch:
    yield
    adapter.tell_pool("training", worker.report_device_id)


def _engine_rank(worker: Any, *_: Any, **__: Any) -> Watch:
    yield
    adapter.tell_pool("generation", worker.report_device_id)
