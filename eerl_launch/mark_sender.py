"""How markers leave the trainer: one connection per process that never makes a caller wait.

Standard library only; it is loaded into the training program.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque

#: What may wait for a stalled listener. A marker carries its own time, so one that arrives late is still right.
MAX_WAITING_LINES = 512
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0


class Sender:
    """One process's connection. Callers only append to a queue; whoever gets the lock first sends for all.

    So no caller ever waits for another thread, nor for itself when a signal handler sends a marker too.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.queue: deque[bytes] = deque()
        self.lost = 0
        self._lost_lock = threading.RLock()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._path = ""
        self._sent_of_first = 0
        self._retry_s = _FIRST_RETRY_S
        self._retry_at_s = 0.0

    def lose(self, count: int = 1) -> None:
        """Count markers that will never arrive; the next one that does will say so."""
        with self._lost_lock:
            self.lost += count

    def send(self, path: str, line: bytes) -> None:
        """Queue a line and send what can be sent now."""
        if len(self.queue) >= MAX_WAITING_LINES:
            self.flush(path)  # a listener that reads again must not cost this line too
        if len(self.queue) >= MAX_WAITING_LINES:
            self.lose()
            return
        self.queue.append(line)
        self.flush(path)

    def flush(self, path: str) -> None:
        """Send what can be sent now; returns at once when another call is sending, which then sends ours too."""
        while (self.queue or self.lost) and self._lock.acquire(blocking=False):
            try:
                more = self._drain(path)
            finally:
                self._lock.release()
            if not more:
                return

    def _drain(self, path: str) -> bool:
        """Whether the queue was emptied; False when the listener takes nothing now."""
        if self._socket is not None and path != self._path:
            self._disconnect()
        for _ in range(2):  # a second time when the listener was replaced since the last call
            if self._socket is None and not self._connect(path):
                return False
            try:
                self._write_all()
                return True
            except BlockingIOError:
                return False
            except OSError:
                self._disconnect()
        return False

    def _write_all(self) -> None:
        """Send the whole queue in order; a line leaves it once all of it is in the kernel."""
        connection = self._socket
        if connection is None:
            return
        if self.lost and not self._sent_of_first:
            count = self.lost
            line = b'{"v":1,"ev":"lost","count":%d}\n' % count
            sent = connection.send(line, socket.MSG_NOSIGNAL)  # before the count is taken back: it may raise
            self.lose(-count)
            if sent < len(line):
                self.queue.appendleft(line)
                self._sent_of_first = sent
        while self.queue:
            line = self.queue[0]
            # MSG_NOSIGNAL: a trainer may have given SIGPIPE back its deadly default.
            self._sent_of_first += connection.send(line[self._sent_of_first :], socket.MSG_NOSIGNAL)
            if self._sent_of_first >= len(line):
                self.queue.popleft()
                self._sent_of_first = 0

    def _connect(self, path: str) -> bool:
        """Whether there is a connection now; after a failure the next try waits, longer each time."""
        now_s = time.monotonic()
        if now_s < self._retry_at_s and path == self._path:
            return False
        self._path, self._sent_of_first = path, 0
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(path)
        except OSError:
            connection.close()
            self._retry_at_s = now_s + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            return False
        self._socket, self._retry_s, self._retry_at_s = connection, _FIRST_RETRY_S, 0.0
        return True

    def _disconnect(self) -> None:
        """Let go; a line that was sent in part is sent whole to the next listener."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._sent_of_first = None, 0

    def abandon(self) -> None:
        """In a forked child: close the parent's connection without touching what the parent will send."""
        if self._socket is not None:
            self._socket.close()
