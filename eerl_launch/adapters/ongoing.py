"""Generation that goes on in a process of its own, response by response, for several updates at once.

What one process marks of a phase is one phase, so while anything is being generated generation is open. Whatever is
finished ends it, with its counts, and it begins again at once if more is under way: the session counts what ended
in an update's time, so counts come as early as they can.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from .. import mark
from .tokens import Counted


class Ongoing:
    """Rollouts of one process; any thread may run some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[Counted | None], None]]:
        """A rollout from its start to its end; call what it gives with the counts, None when unknown."""
        with self._lock:
            self._active += 1
            if self._active == 1:
                mark.begin("generation")
        counted: list[Counted | None] = [None]
        try:
            yield lambda counts: counted.__setitem__(0, counts)
        finally:
            with self._lock:
                self._active -= 1
                self._end(counted[0])

    def finished(self, counts: Counted | None) -> None:
        """Some of what a rollout generates is finished, and it goes on."""
        with self._lock:
            if self._active:
                self._end(counts)

    def _end(self, counts: Counted | None) -> None:
        mark.end("generation", **({} if counts is None else counts.generated()))
        if self._active:
            mark.begin("generation")
