"""The marker socket: accepts trainer processes, cuts their bytes into lines, and outlives a clean-up of its folder.

Used by the session on its own node and by agents on the others. Never more than the limits below is kept of any
sender, and a sender that floods is read in turns with everything else. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from eerl_launch.markers import LineSplitter
from eerl_launch.sockets import listen, peer_is_us

#: Read from one sender before the others get their turn.
_READ_BYTES = 65536
#: Trainer processes connected at the same time: far more than a node has GPUs, and far below the usual limit
#: of 1024 descriptors a process.
_MAX_SENDERS = 512
#: Reads per sender when the end has come: 4 MiB of markers.
_DRAIN_READS = 64


class MarkerServer:
    """Calls ``on_line(sender, line)`` for each line and ``on_bad(count)`` for lines that were too long."""

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        on_line: Callable[[str, bytes], None],
        on_bad: Callable[[int], None],
        server: socket.socket | None = None,
    ) -> None:
        self.path = path
        self._selector = selector
        self._on_line = on_line
        self._on_bad = on_bad
        self._server = server
        self._senders = 0
        self._open: dict[socket.socket, tuple[str, LineSplitter]] = {}
        self._made: tuple[int, int] | None = None  # device and inode of our socket file
        if server is not None:
            self._listen_on(server)

    def _listen_on(self, server: socket.socket) -> None:
        self._server = server
        self._made = self._found()
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def _found(self) -> tuple[int, int] | None:
        """Device and inode of what is at our path now."""
        try:
            info = self.path.lstat()
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def ensure(self) -> str | None:
        """Listen, again if the socket file vanished; why it cannot be done, or None when all is well."""
        if self._server is not None and self._found() == self._made is not None:
            return None
        self._stop_listening()
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            info = folder.lstat()
            if info.st_uid != os.geteuid() or info.st_mode & 0o077:
                return f"{folder} is not a private folder of ours; markers of this node are lost"
            self._listen_on(listen(self.path))
        except OSError as error:
            return f"no marker socket at {self.path} ({error}); markers of this node are lost"
        return None

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None

    def _accept(self) -> bool:
        """Take in one waiting sender; False when none is waiting."""
        if self._server is None:
            return False
        try:
            connection, _ = self._server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._stop_listening()  # else the loop would turn without end; ensure() tries again
            return False
        if len(self._open) >= _MAX_SENDERS or not peer_is_us(connection):
            connection.close()
            return True
        connection.setblocking(False)
        self._senders += 1
        self._open[connection] = (str(self._senders), LineSplitter())
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection))
        return True

    def _read(self, connection: socket.socket) -> None:
        sender, splitter = self._open[connection]
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            del self._open[connection]
            for line in splitter.end():
                self._on_line(sender, line)
            return
        before = splitter.oversized
        for line in splitter.feed(data):
            self._on_line(sender, line)
        if splitter.oversized > before:
            self._on_bad(splitter.oversized - before)

    def drain(self) -> None:
        """Read what senders had written before they ended, those not yet taken in included."""
        for _ in range(_MAX_SENDERS):
            if not self._accept():
                break
        for connection in list(self._open):
            for _ in range(_DRAIN_READS):
                if connection not in self._open:
                    break
                try:
                    connection.recv(1, socket.MSG_PEEK)
                except OSError:
                    break  # nothing is waiting
                self._read(connection)

    def close(self) -> None:
        """Stop listening and take away our socket, and its folder when nothing else is in it."""
        for connection in list(self._open):
            self._selector.unregister(connection)
            connection.close()
        self._open.clear()
        ours = self._server is not None and self._found() == self._made is not None
        self._stop_listening()
        if ours:
            with contextlib.suppress(OSError):
                self.path.unlink()
                self.path.parent.rmdir()
