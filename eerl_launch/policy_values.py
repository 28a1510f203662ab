"""Single values of a policy file: what a YAML node says, or what would have been allowed there.

Numbers are read from the text as written, not from what YAML 1.1 makes of it: ``on``, ``010``, ``1:30`` and
``1e-3`` would otherwise arrive as true, 8, 90 and a string.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml

POLICIES = ("eerl", "paper", "fixed", "governor")
MODES = ("auto", "colocated_sync", "disaggregated_sync", "async_drained", "async_inflight")
NULLS = ("null", "none", "~", "")

MAX_CLOCK_MHZ = 10_000
_CORE_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)
_NUMBER = re.compile(r"(0|[1-9]\d{0,17})?(\.\d{0,18})?([eE][-+]?\d{1,2})?")
_GPU = re.compile(
    r"(GPU|MIG)-[0-9A-Za-z-]{4,64}|[A-Za-z0-9][A-Za-z0-9._,\[\]-]*:(\*|\d+(-\d+)?(,\d+(-\d+)?)*)"
)

#: A YAML node in, a checked value out.
Parser = Callable[[yaml.Node], Any]


class BadValueError(Exception):
    """``allowed`` in words, and the node at fault when it is an element of the value."""

    def __init__(self, allowed: str, node: yaml.Node | None = None) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.node = node


def seen(node: yaml.Node) -> str:
    """What the file says there, short enough for a message, with the YAML trap named when it is one."""
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    text, plain = str(node.value), node.style is None
    if node.tag not in _CORE_TAGS:
        return f"a value tagged {node.tag.removeprefix('tag:yaml.org,2002:')[:40]!r}"
    note = ""
    if plain and node.tag.endswith(":bool") and text.lower() not in ("true", "false"):
        note = " (YAML reads this as true or false)"
    elif plain and re.fullmatch(r"0\d+", text):
        note = " (YAML reads a leading zero as octal)"
    elif not plain and _NUMBER.fullmatch(text):
        note = " (quoted, so text)"
    shown = (text if text.isprintable() else repr(text)) if plain else repr(text)
    return (shown if len(shown) <= 60 else shown[:57] + "…") + note if shown else "nothing"


def _text(node: yaml.Node) -> str | None:
    """The text of an untagged scalar, None for anything else."""
    if isinstance(node, yaml.ScalarNode) and node.tag in _CORE_TAGS:
        return str(node.value)
    return None


def _plain(node: yaml.Node) -> str | None:
    """The text of an unquoted scalar, None for anything else."""
    return _text(node) if isinstance(node, yaml.ScalarNode) and node.style is None else None


def _decimal(text: str | None) -> float | None:
    """A decimal number; ``1e-3`` is one, while ``010``, ``1_000``, ``1:30``, ``-1`` and ``.inf`` are not."""
    if text is None or not _NUMBER.fullmatch(text) or not any(char.isdigit() for char in text.split("e")[0]):
        return None
    try:
        return float(text)
    except ValueError:  # "E5", ".e5": no digit before the exponent
        return None


def choice(*allowed: str) -> Parser:
    """One of a few words."""

    def parse(node: yaml.Node) -> str:
        text = _text(node)
        if text is not None and text in allowed:
            return text
        near = difflib.get_close_matches(text or "", allowed, 1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise BadValueError(f"one of {', '.join(allowed)}{hint}", node)

    return parse


def whole(allowed: str, low: int, high: int, none_words: tuple[str, ...]) -> Parser:
    """An integer from ``low`` to ``high``, or one of the words that mean None."""

    def parse(node: yaml.Node) -> int | None:
        if _plain(node) in none_words:
            return None
        value = _decimal(_plain(node))
        if value is None or value != int(value) or not low <= value <= high:
            raise BadValueError(allowed)
        return int(value)

    return parse


def clock(*none_words: str) -> Parser:
    """A clock in whole MHz, or one of the words that mean None."""
    words = f", or {none_words[0]}" if none_words else ""
    return whole(f"a clock in whole MHz, such as 1200{words}", 1, MAX_CLOCK_MHZ, none_words)


def real(allowed: str, low: float, none_words: tuple[str, ...] = ()) -> Parser:
    """A finite number of at least ``low``, or one of the words that mean None."""

    def parse(node: yaml.Node) -> float | None:
        if _plain(node) in none_words:
            return None
        value = _decimal(_plain(node))
        if value is None or value < low:
            raise BadValueError(allowed)
        return value

    return parse


def loss(node: yaml.Node) -> float:
    """A loss of throughput as a fraction, written as a percentage or as a fraction."""
    allowed = "0% to below 100%, written as 2% or as the fraction 0.02"
    text = _text(node) or ""
    percent = text.endswith("%")
    value = _decimal(text[:-1].rstrip()) if percent else _decimal(_plain(node))
    if value is not None and not percent and value >= 1:
        raise BadValueError(f"{allowed} (did you mean {text}%?)")
    if value is None or value >= (100 if percent else 1):
        raise BadValueError(allowed)
    return value / 100 if percent else value


def currency(node: yaml.Node) -> str:
    """A short name or sign of money."""
    text = _text(node)
    trap = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":null", ":bool"))
    if text is None or trap or not 1 <= len(text) <= 8 or not text.isprintable():
        raise BadValueError("a currency name or sign of 1 to 8 characters, such as USD")
    return text


def gpus(node: yaml.Node) -> tuple[str, ...] | None:
    """GPUs of a pool, or None for auto."""
    allowed = (
        'auto, or a list of node:gpu ranges such as node01:0-3 (quote brackets: "node[01-04]:0-3") or UUIDs'
    )
    if _text(node) == "auto":
        return None
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise BadValueError(allowed)
    entries: list[str] = []
    for item in node.value:
        text = _text(item)
        if text is None or not _GPU.fullmatch(text) or text in entries:
            raise BadValueError(allowed + ", each once", item)
        entries.append(text)
    return tuple(entries)


def several(words: Sequence[str], *, least: int) -> Parser:
    """A list out of some words, in the order in which they are documented."""

    def parse(node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode) or len(node.value) < least:
            raise BadValueError(f"a list out of {', '.join(words)}")
        chosen = {choice(*words)(item) for item in node.value}
        return tuple(name for name in words if name in chosen)

    return parse


def folder(node: yaml.Node) -> str | None:
    """An absolute path, or null."""
    text = _text(node)
    if _plain(node) in NULLS:
        return None
    if text is None or not text.startswith("/") or not text.isprintable():
        raise BadValueError("the absolute path of a folder, such as /var/lib/node_exporter/textfile, or null")
    return text
