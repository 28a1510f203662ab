"""Lines between the session and its agents over srun's stdio: encode, checksum, parts. No I/O.

srun carries stdout in messages of at most 1024 bytes and merges tasks at message, not at line borders
(measured on Slurm 22.05 and 24.11), so a line stays below 900 bytes and carries a checksum; a longer message
travels in parts, and the whole has a checksum of its own. What does not check is counted and passed over: the
next line is whole again.

    3f2a91c0 ={"ev":"pong",…}                     a message
    77b0e2d4 +node01#12 a3c1f00d 0 3 {"ev":"s",…  part 0 of 3 of a message, with the checksum of all of it
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 900
#: Longest message; more comes from a bug, and would hold up everything behind it.
MAX_MESSAGE_BYTES = 1 << 20
#: Half-received messages kept at most, and their bytes; more means that parts are being lost: the oldest goes.
_MAX_OPEN_MESSAGES = 256
_MAX_OPEN_BYTES = 4 << 20
#: A peer that never sends a line end may not fill our memory.
_MAX_PENDING_BYTES = 1 << 16
_MAX_NAME = 64
#: Checksum, blank, kind and line end.
_FRAME_BYTES = 11

Message = dict[str, Any]


def _line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _name(sender: str) -> str:
    """The sender as one short ASCII word."""
    word = "".join(c if c.isascii() and c.isprintable() and c != " " else "_" for c in sender)
    if len(word) <= _MAX_NAME:
        return word
    return f"{word[: _MAX_NAME - 9]}-{zlib.crc32(sender.encode('utf-8', 'replace')):08x}"


class Encoder:
    """Turns messages into lines; one per sender, since parts are numbered."""

    def __init__(self, sender: str = "") -> None:
        self._sender = _name(sender)
        self._serial = 0

    def encode(self, message: Mapping[str, Any]) -> bytes:
        """One or more lines, each with its line end; raises ValueError for what JSON cannot carry."""
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
        if len(text) + _FRAME_BYTES <= MAX_LINE_BYTES:
            return _line(b"=" + text)
        if len(text) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(text)} bytes is longer than {MAX_MESSAGE_BYTES}")
        self._serial += 1
        name = f"{self._sender}#{self._serial} {zlib.crc32(text):08x}"
        room = MAX_LINE_BYTES - _FRAME_BYTES - len(name) - len(" 9999 9999 ")
        chunks = [text[i : i + room] for i in range(0, len(text), room)]
        return b"".join(
            _line(b"+%s %d %d %s" % (name.encode("ascii"), i, len(chunks), chunk))
            for i, chunk in enumerate(chunks)
        )


class Decoder:
    """Turns a byte stream back into messages; ``bad_lines`` counts what had to be passed over."""

    def __init__(self) -> None:
        self.bad_lines = 0
        self._pending = b""
        self._open: dict[bytes, dict[int, bytes]] = {}
        self._open_bytes = 0

    def feed(self, data: bytes) -> list[Message]:
        """The messages that became whole with ``data``, in the order in which they did."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MAX_PENDING_BYTES:
            self._pending = b""
            self.bad_lines += 1
        messages = []
        for line in lines:
            if not line:
                continue
            try:
                message = self._decode(line)
            except (ValueError, RecursionError):
                self.bad_lines += 1
                continue
            if message is not None:
                messages.append(message)
        return messages

    def _decode(self, line: bytes) -> Message | None:
        checksum, _, body = line.partition(b" ")
        if len(checksum) != 8 or int(checksum, 16) != zlib.crc32(body):
            raise ValueError("checksum")
        if body[:1] == b"=":
            return _parse(body[1:])
        if body[:1] == b"+":
            return self._join(body[1:])
        raise ValueError("neither a message nor a part")

    def _join(self, body: bytes) -> Message | None:
        name, checksum, number_text, count_text, chunk = body.split(b" ", 4)
        number, count = int(number_text), int(count_text)
        if not 0 <= number < count <= MAX_MESSAGE_BYTES:
            raise ValueError("part number")
        key = b"%s %s %d" % (name, checksum, count)
        parts = self._open.setdefault(key, {})
        self._open_bytes += len(chunk) - len(parts.get(number, b""))
        parts[number] = chunk
        if len(parts) < count:
            while len(self._open) > _MAX_OPEN_MESSAGES or self._open_bytes > _MAX_OPEN_BYTES:
                self._drop(next(iter(self._open)))
                self.bad_lines += 1
            return None
        self._drop(key)
        text = b"".join(parts[i] for i in range(count))
        if int(checksum, 16) != zlib.crc32(text):
            raise ValueError("checksum of the whole")
        return _parse(text)

    def _drop(self, key: bytes) -> None:
        self._open_bytes -= sum(len(chunk) for chunk in self._open.pop(key).values())


def _parse(text: bytes) -> Message:
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message
