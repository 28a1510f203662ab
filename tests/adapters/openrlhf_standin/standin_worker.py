"""A rank of a model, or of an engine."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from standin_job import arguments

torch: Any = ModuleType("torch")
torch.cuda = SimpleNamespace(
    is_initialized=lambda: True,
    current_device=lambda: 0,
    get_device_properties=lambda device: SimpleNamespace(uuid="of-cuda"),
)
sys.modules["torch"] = torch


def main() -> None:
    args = arguments(sys.argv[2])
    if sys.argv[1] == "training":
        from openrlhf.trainer.ray.launcher import BaseModelActor

        for _ in range(2):
            BaseModelActor(args).execute_batch("forward", {}, 0, 0)
    else:
        from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

        WorkerWrap().init_process_group("localhost", 1, 0, 2, "openrlhf")


main()
