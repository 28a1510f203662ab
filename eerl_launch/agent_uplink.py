"""An agent's lines to the session, written by a thread of their own. Standard library only."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

from eerl_launch.channel import Encoder, Message

#: Lines waiting to be written; a launcher that does not read must not make us grow.
_MAX_QUEUED_LINES = 2000


class Uplink:
    """Lines to the session, written by a thread of its own so that a full pipe stops nothing else."""

    def __init__(self, node: str, fd: int) -> None:
        self._node = node
        self._fd = fd
        self._encoder = Encoder(node)
        self._lock = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MAX_QUEUED_LINES)
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue one message; dropped and counted when the session does not read."""
        with self._lock:
            data = self._encoder.encode({"n": self._node, **message})
            try:
                self._lines.put_nowait(data)
            except queue.Full:
                self.dropped += 1

    def _write(self) -> None:
        while (data := self._lines.get()) is not None:
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                return

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most ``timeout_s``."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)
