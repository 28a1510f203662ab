"""Ranks of the engines."""

from __future__ import annotations


class WorkerWrap:
    def init_process_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, group_name: str
    ) -> None:
        pass
