"""Generation that goes on in a process of its own, response by response, for several updates at once.

What one process marks of a phase is one phase, so while anything is being generated generation is open. What is
finished ends it, with its counts, and it begins again at once if more is under way: the session counts what ended
in an update's time. Counts go out as they come, but no more often than :data:`INTERVAL_S` allows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator

from .. import mark
from .tokens import Counted

#: A long update with many engines must stay within the phases that the session keeps of one (4096).
INTERVAL_S = 1.0
_LABELS_FROM = 1 << 40  # far from the number of any update


class Ongoing:
    """Rollouts of one process; any thread or task may run some.

    ``several``: other processes generate at the same time. Of several senders' counts for one run of a phase the
    session takes the largest, so each then marks its generation under a label of its own, and they add up.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._lock = threading.Lock()
        self._active = 0
        self._waiting: Counted | None = Counted()
        self._told_s = float("-inf")

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[Counted | None], None]]:
        """A rollout from its start to its end; call what it gives with the counts, None when unknown."""
        with self._lock:
            self._active += 1
            if self._active == 1:
                mark.begin("generation", self._label())
        counted: list[Counted | None] = [None]
        try:
            yield lambda counts: counted.__setitem__(0, counts)
        finally:
            with self._lock:
                self._active -= 1
                self._take(counted[0])

    def finished(self, counts: Counted | None) -> None:
        """Some of what a rollout generates is finished, and it goes on."""
        with self._lock:
            if self._active:
                self._take(counts)

    def _label(self) -> int | None:
        if not self._several:
            return None
        return _LABELS_FROM + (zlib.crc32(socket.gethostname().encode()) << 22) % (1 << 52) + os.getpid()

    def _take(self, counts: Counted | None) -> None:
        if counts is None or self._waiting is None:
            self._waiting = None  # what is unknown makes the whole unknown
        else:
            self._waiting = self._waiting + counts
        now_s = time.monotonic()
        if self._active and now_s - self._told_s < INTERVAL_S:
            return
        known = self._waiting
        mark.end("generation", self._label(), **({} if known is None else known.generated()))
        self._waiting, self._told_s = Counted(), now_s
        if self._active:
            mark.begin("generation", self._label())
