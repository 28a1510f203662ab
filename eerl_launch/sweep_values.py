"""Single values of a study file: what a YAML node says, or what would have been allowed there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import yaml

from eerl_launch.policy_values import MAX_CLOCK_MHZ, BadValueError

#: Generation and training clock in MHz; None is the governor.
Setting = tuple[int | None, int | None]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTION = re.compile(r"[a-z][a-z-]{1,40}")


def scalar(node: yaml.Node) -> str | None:
    """What a scalar says, None for a list or a mapping."""
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def name(node: yaml.Node) -> str:
    """A name that is good in a folder's name."""
    said = scalar(node) or ""
    if not _NAME.fullmatch(said):
        raise BadValueError("a name of letters, digits, dots, dashes and underscores")
    return said


def command(node: yaml.Node) -> tuple[str, ...]:
    """The words of a command."""
    allowed = "a command as one line, or as a list of words; no shell reads it (write bash -c '…' for one)"
    try:
        if isinstance(node, yaml.SequenceNode) and all(scalar(item) is not None for item in node.value):
            words = [scalar(item) or "" for item in node.value]
        else:
            words = shlex.split(scalar(node) or "")
    except ValueError as error:
        raise BadValueError(f"{allowed} ({error})") from error
    if not words:
        raise BadValueError(allowed)
    return tuple(words)


def workloads(node: yaml.Node) -> dict[str, tuple[str, ...]]:
    """Commands by the names of their workloads."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise BadValueError("a mapping from a workload's name to its command")
    found: dict[str, tuple[str, ...]] = {}
    for key, value in node.value:
        workload = name(key)
        if workload in found:
            raise BadValueError("each name once", key)
        found[workload] = command(value)
    return found


def pair(node: yaml.Node) -> Setting:
    """A clock pair, not that of the governor: it is in every allocation anyway."""
    allowed = "a pair such as 1800/1500, governor/1200 or 1650/governor, in whole MHz"
    words = (scalar(node) or "").split("/")
    if len(words) != 2 or words == ["governor", "governor"]:
        raise BadValueError(allowed, node)
    clocks: list[int | None] = []
    for word in words:
        if word == "governor":
            clocks.append(None)
        elif re.fullmatch(r"[1-9]\d{0,4}", word) and int(word) <= MAX_CLOCK_MHZ:
            clocks.append(int(word))
        else:
            raise BadValueError(allowed, node)
    return clocks[0], clocks[1]


def listed(item: Callable[[yaml.Node], Any], allowed: str) -> Callable[[yaml.Node], tuple[Any, ...]]:
    """A list of at least one item, each once."""

    def parse(node: yaml.Node) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise BadValueError(allowed)
        found = [item(entry) for entry in node.value]
        if len(set(found)) < len(found):
            raise BadValueError(f"{allowed}, each once")
        return tuple(found)

    return parse


def seed(node: yaml.Node) -> int:
    """A seed."""
    said = scalar(node) or ""
    if not re.fullmatch(r"0|[1-9]\d{0,9}", said):
        raise BadValueError("whole numbers of 0 or more", node)
    return int(said)


def updates(node: yaml.Node) -> tuple[int, int]:
    """First and last position that is measured."""
    allowed = (
        "a range such as 5-25, counted from 1, both ends measured; the first is 2 or more (1 is warm-up)"
    )
    match = re.fullmatch(r"(\d{1,6})-(\d{1,6})", scalar(node) or "")
    if match is None or not 2 <= int(match[1]) < int(match[2]):
        raise BadValueError(allowed)
    return int(match[1]), int(match[2])


def sbatch(node: yaml.Node) -> dict[str, str | None]:
    """Options of sbatch; one without a value is None."""
    allowed = "options of sbatch without dashes, such as nodes: 4, time: '04:00:00', eerl: true"
    if not isinstance(node, yaml.MappingNode):
        raise BadValueError(allowed)
    found: dict[str, str | None] = {}
    for key, value in node.value:
        option, said = scalar(key) or "", scalar(value)
        if not _OPTION.fullmatch(option) or said is None or not said.isprintable():
            raise BadValueError(allowed, key)
        if option in ("array", "output", "error", "wrap", "parsable"):
            raise BadValueError(f"{allowed}; {option} is the sweep's own", key)
        if value.tag.endswith(":bool") and said.lower() == "false":
            continue
        found[option] = None if value.tag.endswith(":bool") else said
    return found


def text(node: yaml.Node) -> str:
    """Any text."""
    said = scalar(node)
    if said is None:
        raise BadValueError("text")
    return said
