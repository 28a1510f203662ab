"""Metrics of a step, under a prefix."""

from __future__ import annotations

from typing import Any


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, int, dict[str, Any]]] = []

    def log_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        self.lines.append((prefix or "", step, metrics))
