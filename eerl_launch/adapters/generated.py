"""Generation that never stops: its ends bring what was generated since the one before. For asynchronous loops."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from .. import mark

#: Ends of generation of a worker that puts samples one by one are this far apart, in seconds.
_FLUSH_S = 0.2


class Generated:
    """What was generated since the last end of generation; generation itself never stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = self._longest = 0
        self._told_at_s = 0.0
        self._running = False

    def begin(self) -> None:
        """The worker has begun."""
        with self._lock:
            if not self._running:
                self._running, self._told_at_s = True, time.monotonic()
                mark.begin("generation")

    def add(self, lengths: Sequence[int], *, at_once: bool) -> None:
        """Responses of these lengths, in tokens, are there for the trainer to take."""
        with self._lock:
            self._tokens += sum(lengths)
            self._longest = max(self._longest, *lengths, 0)
            due = at_once or time.monotonic() - self._told_at_s >= _FLUSH_S
        if due:
            self.tell()

    def tell(self, *, over: bool = False) -> None:
        """An end of generation with what there is, and a begin unless it is ``over``."""
        with self._lock:
            if self._running and (self._tokens or over):
                counts = {"generated_tokens": self._tokens, "longest_response_tokens": self._longest}
                mark.end("generation", **counts)
                self._tokens = self._longest = 0
                self._told_at_s = time.monotonic()
                self._running = not over
                if self._running:
                    mark.begin("generation")
