"""A rank of the engine."""

from __future__ import annotations


class VllmInternalWorkerExtension:
    def init_collective(self, rank_prefix: int, ip: str, port: int, world_size: int) -> None:
        self.group = (ip, port, world_size)

    def report_device_id(self) -> str:
        return "GPU-by-nvml-1"
