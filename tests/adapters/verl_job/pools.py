"""Weights go from a rank of training to a rank of an engine, by verl's own methods; CUDA is made up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import torch

torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid="of-cuda")


async def done(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


async def received(**_: Any) -> AsyncIterator[None]:
    yield None


def main(role: str, mode: str) -> None:
    if role == "training":
        from verl.workers.engine_workers import ActorRolloutRefWorker

        engine = SimpleNamespace(get_per_tensor_param=lambda **_: ([], None))
        backend = SimpleNamespace(backend="nccl")
        worker = SimpleNamespace(
            config=SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=backend)),
            actor=SimpleNamespace(engine=engine),
            checkpoint_engine=SimpleNamespace(send_weights=done),
        )
        for _ in range(2):
            asyncio.run(ActorRolloutRefWorker.update_weights(worker, global_steps=1, mode=mode))
    else:
        from verl.checkpoint_engine.base import CheckpointEngineWorker

        worker = SimpleNamespace(
            checkpoint_engine=SimpleNamespace(receive_weights=received),
            server_adapter=SimpleNamespace(update_weights=done),
        )
        asyncio.run(CheckpointEngineWorker.update_weights(worker, global_steps=1))


main(*sys.argv[1:])
