"""Lines between the session and its agents over srun's stdio: encode, checksum, parts. No I/O.

srun carries stdout in messages of at most 1024 bytes and merges tasks at message, not at line borders
(measured on Slurm 22.05 and 24.11), so a line stays below 900 bytes and carries a checksum; a longer message
travels in parts. What does not check is counted and passed over: the next line is whole again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 900
#: Characters of JSON text a part carries; escaping can at most double them, and that still fits a line.
_PART_CHARACTERS = 400
#: Half-received messages kept at most; more means that parts are being lost, and the oldest is given up.
_MAX_OPEN_MESSAGES = 256
#: A peer that never sends a line end may not fill our memory.
_MAX_PENDING_BYTES = 1 << 20

Message = dict[str, Any]


def _line(text: str) -> bytes:
    body = text.encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Encoder:
    """Turns messages into lines; one per sender, since parts are numbered."""

    def __init__(self, sender: str = "") -> None:
        self._sender = sender
        self._serial = 0

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """One or more lines, each with its line end."""
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        if len(text) + 10 <= MAX_LINE_BYTES:
            return _line(text)
        self._serial += 1
        name = f"{self._sender}#{self._serial}"
        chunks = [text[i : i + _PART_CHARACTERS] for i in range(0, len(text), _PART_CHARACTERS)]
        return b"".join(
            _line(json.dumps({"part": [name, i, len(chunks)], "d": chunk}, separators=(",", ":")))
            for i, chunk in enumerate(chunks)
        )


class Decoder:
    """Turns a byte stream back into messages; ``bad_lines`` counts what had to be passed over."""

    def __init__(self) -> None:
        self.bad_lines = 0
        self._pending = b""
        self._open: dict[str, dict[int, str]] = {}

    def feed(self, data: bytes) -> list[Message]:
        """The messages that became whole with ``data``, in the order in which they did."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MAX_PENDING_BYTES:
            self._pending = b""
            self.bad_lines += 1
        messages = []
        for line in lines:
            message = self._decode(line)
            if message is not None:
                messages.append(message)
        return messages

    def _decode(self, line: bytes) -> Message | None:
        checksum, _, body = line.partition(b" ")
        try:
            if int(checksum, 16) != zlib.crc32(body):
                raise ValueError("checksum")
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError("not an object")
            if "part" in message:
                return self._join(message)
        except (ValueError, TypeError, KeyError):
            self.bad_lines += bool(line)
            return None
        return message

    def _join(self, message: Message) -> Message | None:
        name, number, count = message["part"]
        parts = self._open.setdefault(str(name), {})
        parts[int(number)] = str(message["d"])
        if len(parts) < int(count):
            while len(self._open) > _MAX_OPEN_MESSAGES:
                self._open.pop(next(iter(self._open)))
                self.bad_lines += 1
            return None
        del self._open[str(name)]
        whole = json.loads("".join(parts[i] for i in range(int(count))))
        if not isinstance(whole, dict):
            raise ValueError("not an object")
        return whole
