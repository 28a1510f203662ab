"""A picture of coloured cells as a PNG file (W3C PNG, third edition): palette of up to 256 colours, no filter."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE_COLOUR = 3


def palette_png(rows: Sequence[bytes], palette: Sequence[tuple[int, int, int]]) -> bytes:
    """The file; each row is a byte per pixel, an index into ``palette`` (red, green and blue, 0 to 255)."""
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, _PALETTE_COLOUR, 0, 0, 0)
    lines = b"".join(b"\0" + row for row in rows)
    colours = bytes(part for colour in palette for part in colour)
    chunks = ((b"IHDR", head), (b"PLTE", colours), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return _SIGNATURE + b"".join(chunk(kind, content) for kind, content in chunks)


def chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk: length, kind, content and its checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_text(png: bytes, keyword: str, text: str) -> bytes:
    """The same picture with a textual chunk behind its header, by which its maker can be told."""
    header_end = len(_SIGNATURE) + 12 + 13
    written = chunk(b"tEXt", keyword.encode("latin-1") + b"\0" + text.encode("latin-1", "replace"))
    return png[:header_end] + written + png[header_end:]
