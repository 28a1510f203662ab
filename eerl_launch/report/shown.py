"""How texts that are not our own (names, messages) are shown to people: as they stand, and obeyed by nothing."""

from __future__ import annotations

from html import escape
from typing import Any

_BLANKS = {ord("\t"): " ", ord("\r"): " "}


def printable(text: str) -> str:
    """The text without what a terminal would obey, or what would turn the letters around it."""
    text = text.translate(_BLANKS)
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def escaped(text: str) -> str:
    """The same for the text of a drawing."""
    return escape(printable(text))


def plain(value: Any) -> Any:
    """The same for any value of a page, which escapes by itself; markup of our own stays as it is."""
    return printable(value) if type(value) is str else value
