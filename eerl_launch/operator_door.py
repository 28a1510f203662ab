"""The door for operators of a running job: ``eerl status | hold | resume DIR``, one JSON line each way."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eerl_launch.sockets import CONTROL_NAME, listen, peer_is_us
from eerl_launch.whole_file import write_whole

_MAX_REQUEST_BYTES = 4096


class OperatorDoor:
    """Answers requests on a socket of our private folder; ``control.json`` in the run folder tells where it is."""

    def __init__(
        self,
        private_folder: Path,
        run_folder: Path,
        node: str,
        selector: selectors.BaseSelector,
        answer: Callable[[str], dict[str, Any]],
    ) -> None:
        self._path = private_folder / CONTROL_NAME
        self._note = run_folder / "control.json"
        self._selector = selector
        self._answer = answer
        self._server = listen(self._path)
        self._made = self._path.lstat().st_ino
        selector.register(self._server, selectors.EVENT_READ, self._accept)
        place = {"socket": str(self._path), "node": node, "pid": os.getpid()}
        write_whole(self._note, json.dumps(place) + "\n")

    def ensure(self) -> None:
        """Open the door again when a cleaner has taken it away; its folder is looked after by the marker socket."""
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._made:
                return
        with contextlib.suppress(OSError):
            server = listen(self._path)
            self._selector.unregister(self._server)
            self._server.close()
            self._server = server
            self._made = self._path.lstat().st_ino
            self._selector.register(server, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        if not peer_is_us(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(connection))

    def _serve(self, connection: socket.socket) -> None:
        """One request, one reply, and the connection closes; a client that is slow to send is not waited for."""
        reply: dict[str, Any] = {"error": 'send one line such as {"op":"status"}'}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            request = json.loads(connection.recv(_MAX_REQUEST_BYTES))
            reply = self._answer(str(request.get("op")))
        with contextlib.suppress(OSError):
            connection.send(json.dumps(reply).encode() + b"\n")
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close the door and take its sign down."""
        self._selector.unregister(self._server)
        self._server.close()
        for path in (self._path, self._note):
            with contextlib.suppress(OSError):
                path.unlink()
