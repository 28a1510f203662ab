"""Labels with a start and a stop; since main with a context and a flag."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

#: Every start and stop of this process, in order.
LOG: list[str] = []


class _Timer:
    def __init__(self, context: dict[str, object] | None = None) -> None:
        self.started: dict[str, float] = {}

    def start(self, label: str) -> None:
        if label in self.started:
            raise ValueError(f"Timer '{label}' is already running")
        self.started[label] = time.perf_counter()
        LOG.append(f"+{label}")

    def stop(self, label: str) -> float:
        LOG.append(f"-{label}")
        return time.perf_counter() - self.started.pop(label)

    @contextlib.contextmanager
    def time(self, label: str) -> Iterator[None]:
        self.start(label)
        try:
            yield
        finally:
            self.stop(label)

    def reset(self) -> None:
        self.started.clear()


class _MainTimer(_Timer):
    def start(self, label: str, should_log: bool = True) -> None:
        super().start(label)

    def stop(self, label: str, should_log: bool = True) -> float:
        return super().stop(label)

    @contextlib.contextmanager
    def time(self, label: str, should_log: bool = True) -> Iterator[None]:
        self.start(label, should_log)
        try:
            yield
        finally:
            self.stop(label, should_log)


Timer: Any = _MainTimer if os.environ.get("STANDIN_VERSION") == "main" else _Timer
if os.environ.get("STANDIN_MOVED") == "timer":
    Timer = type("Timer", (_Timer,), {})
    del _Timer.stop
    Timer.halt = lambda self, label: self.started.pop(label)
    Timer.time = contextlib.contextmanager(lambda self, label: iter([None]))
