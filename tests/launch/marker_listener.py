"""A marker socket for tests, whose lines can be read back."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG_S = 60.0  # only a hang fails these bounds


class Listener:
    """A marker socket whose lines can be read back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(path))
        self.server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            with self._starting:
                self._threads.append(thread)
                thread.start()

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            self.lines.extend(stream)

    def events(self, count: int) -> list[dict[str, Any]]:
        """The first ``count`` events, once they are here."""
        wait_until(lambda: len(self.lines) >= count)
        return [json.loads(line) for line in self.lines]

    def drain(self) -> None:
        """Return once every sender has gone and all it sent was read."""
        with self._starting:
            threads = list(self._threads)
        for thread in threads:
            thread.join(HANG_S)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.drain()
        self.path.unlink(missing_ok=True)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; a hang fails the test."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)
