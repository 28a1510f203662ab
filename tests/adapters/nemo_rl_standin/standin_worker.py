"""A rank of one of two pools: joins the group that weights go through, then works."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

torch: Any = ModuleType("torch")
properties = SimpleNamespace(uuid="of-cuda") if os.environ["STANDIN_TORCH"] == "told" else SimpleNamespace()
torch.cuda = SimpleNamespace(
    is_initialized=lambda: True,
    current_device=lambda: 0,
    get_device_properties=lambda device: properties,
)
sys.modules["torch"] = torch


def main() -> None:
    from nemo_rl.models.generation.vllm.vllm_backend import VllmInternalWorkerExtension
    from nemo_rl.models.policy.workers.base_policy_worker import AbstractPolicyWorker
    from nemo_rl.utils.timer import Timer

    if sys.argv[1] == "training":
        for _ in range(2):  # once more after a restart of the group
            AbstractPolicyWorker().init_collective("localhost", 1, 2, train_world_size=1)
    else:
        VllmInternalWorkerExtension().init_collective(0, "localhost", 1, 2)
    with Timer().time("policy_training"):
        pass


main()
