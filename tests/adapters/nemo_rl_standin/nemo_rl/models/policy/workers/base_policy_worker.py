"""A rank of the policy; only runs with separate pools join the group that weights go through."""

from __future__ import annotations


class AbstractPolicyWorker:
    def init_collective(self, ip: str, port: int, world_size: int, *, train_world_size: int = 1) -> None:
        self.group = (ip, port, world_size)

    def report_device_id(self) -> str:
        return "GPU-by-nvml-0"
