"""Ranks of the models that are trained or scored with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class BaseModelActor:
    def __init__(self, args: SimpleNamespace) -> None:
        self.strategy = SimpleNamespace(args=args)

    def execute_batch(self, method_name: str, all_data: Any, start_idx: int, end_idx: int) -> list[Any]:
        return []
