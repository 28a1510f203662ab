"""What the user hears and what the ledger keeps: one line of ours at a time, and run time."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

from eerl_launch.ledger import LedgerWriter

#: Different kinds of trouble told on stderr in one run; the rest is in the ledger and the report.
_MAX_TOLD = 20


def say(text: str) -> None:
    """One line of ours on stderr; a closed stderr is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"eerl: {text}\n".encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class RunClock:
    """Run time: seconds since the run began, monotonic; virtual seconds when the GPUs are simulated."""

    origin_s: float
    scale: float = 1.0

    def now_s(self) -> float:
        """Run time now."""
        return (time.monotonic() - self.origin_s) * self.scale


class Voice:
    """Writes events to the ledger, and tells the user each kind of trouble once."""

    def __init__(self, ledger: LedgerWriter, clock: RunClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._told: set[str] = set()

    def log(self, event: str, /, **fields: Any) -> None:
        """One line in the ledger, stamped with run time unless it brings its own.

        Positional, since a trainer's metric may have fields of any name.
        """
        self._ledger.append({"ev": event, "t_s": self._clock.now_s(), **fields})

    def say_once(self, key: str, text: str) -> None:
        """One message on stderr per kind of trouble, and in the ledger."""
        if key in self._told:
            return
        self._told.add(key)
        self.log("event", kind="warning", text=text, key=key)
        if len(self._told) <= _MAX_TOLD:
            say(text)
