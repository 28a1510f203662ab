"""What a headroom study is: one YAML file in, one frozen Study out, or one error with every fault and its line."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from eerl_launch import policy_values as values
from eerl_launch.errors import EerlError
from eerl_launch.policy_values import MODES, NULLS, BadValueError, seen
from eerl_launch.yaml_file import compose_file

MAX_CLOCK_MHZ = values.MAX_CLOCK_MHZ
#: Words of a command that are replaced, in braces.
PLACEHOLDERS = ("seed", "updates", "repetition", "workload")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTION = re.compile(r"[a-z][a-z-]{1,40}")

Setting = tuple[int | None, int | None]


class StudyError(EerlError):
    """The study file cannot be used; nothing is started (exit 2)."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Study:
    """A study as resolved. Clock pairs are (generation, training) in MHz, None the governor.

    ``first_update`` and ``last_update`` are the measured positions, counted from 1, both included; ``sbatch`` has
    Slurm's options without dashes.
    """

    name: str
    workloads: Mapping[str, tuple[str, ...]]
    pairs: tuple[Setting, ...]
    seeds: tuple[int, ...]
    repetitions: int = 1
    first_update: int = 5
    last_update: int = 25
    mode: str = "auto"
    idle_mhz: int | None = 345
    max_throughput_loss: float = 0.02
    pairs_per_allocation: int | None = None
    simulate: str | None = None
    time_scale: float = 1.0
    array_limit: int | None = None
    setup: str = ""
    sbatch: Mapping[str, str | None] = field(default_factory=dict)

    def argv(self, workload: str, seed: int, repetition: int) -> list[str]:
        """The command of a cell, placeholders filled in."""
        # One more than is measured: an update ends where the next begins.
        known = {
            "seed": seed,
            "updates": self.last_update + 1,
            "repetition": repetition,
            "workload": workload,
        }
        words = []
        for word in self.workloads[workload]:
            for name in PLACEHOLDERS:
                word = word.replace(f"{{{name}}}", str(known[name]))
            words.append(word)
        return words


def setting_name(setting: Setting) -> str:
    """``1800/governor``: a clock pair as the study writes it."""
    return "/".join("governor" if mhz is None else str(mhz) for mhz in setting)


def read_study(path: Path) -> Study:
    """The study in ``path``; :class:`StudyError` lists every fault, one a line."""
    node = compose_file(path, "study file", StudyError)
    if not isinstance(node, yaml.MappingNode):
        found = "nothing" if node is None else seen(node)
        raise StudyError(f"{path}:1: saw {found}; allowed: `key: value` lines ({', '.join(_SCHEMA)})")
    faults: list[str] = []
    found_values: dict[str, Any] = {}
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found_values:
            faults.append(f"{path}:{line}: {key}: given twice; keep one")
        elif key not in _SCHEMA:
            near = difflib.get_close_matches(key, _SCHEMA, 1)
            hint = f"; nearest valid key: {near[0]}" if near else ""
            faults.append(f"{path}:{line}: {key}: unknown key{hint}; allowed: {', '.join(_SCHEMA)}")
        else:
            try:
                found_values[key] = _SCHEMA[key](value)
            except BadValueError as error:
                at = error.node or value
                found_values[key] = None
                faults.append(
                    f"{path}:{at.start_mark.line + 1}: {key}: saw {seen(at)}; allowed: {error.allowed}"
                )
    faults += [f"{path}: {text}" for text in _missing(found_values)]
    if faults:
        raise StudyError("\n".join(faults))
    return _study(path, found_values)


def _missing(found: Mapping[str, Any]) -> list[str]:
    faults = [f"{key}: missing; a study needs it" for key in ("pairs", "seeds") if key not in found]
    if ("command" in found) == ("workloads" in found):
        faults.append("give one of command (one workload) and workloads (several by name)")
    if found.get("time_scale", 1.0) not in (None, 1.0) and not found.get("simulate"):
        faults.append("time_scale: works with simulate only: real GPUs keep their own time")
    return faults


def _study(path: Path, found: dict[str, Any]) -> Study:
    command = found.pop("command", None)
    workloads = found.pop("workloads", None) or {"default": command}
    updates = found.pop("updates", None)
    if updates is not None:
        found["first_update"], found["last_update"] = updates
    fallback = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem) or "study"
    return Study(name=found.pop("name", None) or fallback, workloads=workloads, **found)


def _scalar(node: yaml.Node) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _name(node: yaml.Node) -> str:
    text = _scalar(node) or ""
    if not _NAME.fullmatch(text):
        raise BadValueError("a name of letters, digits, dots, dashes and underscores")
    return text


def _command(node: yaml.Node) -> tuple[str, ...]:
    allowed = "a command as one line, or as a list of words; no shell reads it (write bash -c '…' for one)"
    try:
        if isinstance(node, yaml.SequenceNode) and all(_scalar(item) is not None for item in node.value):
            words = [_scalar(item) or "" for item in node.value]
        else:
            words = shlex.split(_scalar(node) or "")
    except ValueError as error:
        raise BadValueError(f"{allowed} ({error})") from error
    if not words:
        raise BadValueError(allowed)
    return tuple(words)


def _workloads(node: yaml.Node) -> dict[str, tuple[str, ...]]:
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise BadValueError("a mapping from a workload's name to its command")
    found: dict[str, tuple[str, ...]] = {}
    for key, value in node.value:
        name = _name(key)
        if name in found:
            raise BadValueError("each name once", key)
        found[name] = _command(value)
    return found


def _pair(node: yaml.Node) -> Setting:
    allowed = "a pair such as 1800/1500, governor/1200 or 1650/governor, in whole MHz"
    words = (_scalar(node) or "").split("/")
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


def _listed(item: Callable[[yaml.Node], Any], allowed: str) -> Callable[[yaml.Node], tuple[Any, ...]]:
    def parse(node: yaml.Node) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise BadValueError(allowed)
        found = [item(entry) for entry in node.value]
        if len(set(found)) < len(found):
            raise BadValueError(f"{allowed}, each once")
        return tuple(found)

    return parse


def _seed(node: yaml.Node) -> int:
    text = _scalar(node) or ""
    if not re.fullmatch(r"0|[1-9]\d{0,9}", text):
        raise BadValueError("whole numbers of 0 or more", node)
    return int(text)


def _updates(node: yaml.Node) -> tuple[int, int]:
    allowed = (
        "a range such as 5-25, counted from 1, both ends measured; the first is 2 or more (1 is warm-up)"
    )
    match = re.fullmatch(r"(\d{1,6})-(\d{1,6})", _scalar(node) or "")
    if match is None or not 2 <= int(match[1]) < int(match[2]):
        raise BadValueError(allowed)
    return int(match[1]), int(match[2])


def _sbatch(node: yaml.Node) -> dict[str, str | None]:
    allowed = "options of sbatch without dashes, such as nodes: 4, time: '04:00:00', eerl: true"
    if not isinstance(node, yaml.MappingNode):
        raise BadValueError(allowed)
    found: dict[str, str | None] = {}
    for key, value in node.value:
        name, text = _scalar(key) or "", _scalar(value)
        if not _OPTION.fullmatch(name) or text is None or not text.isprintable():
            raise BadValueError(allowed, key)
        if name in ("array", "output", "error", "wrap", "parsable"):
            raise BadValueError(f"{allowed}; {name} is the sweep's own", key)
        if value.tag.endswith(":bool") and text.lower() == "false":
            continue
        found[name] = None if value.tag.endswith(":bool") else text
    return found


def _text(node: yaml.Node) -> str:
    text = _scalar(node)
    if text is None:
        raise BadValueError("shell lines for the job script, before the runs")
    return text


_SCHEMA: Mapping[str, Callable[[yaml.Node], Any]] = {
    "name": _name,
    "command": _command,
    "workloads": _workloads,
    "pairs": _listed(_pair, "a list of clock pairs such as [1800/1500, governor/1200]"),
    "seeds": _listed(_seed, "a list of whole numbers such as [1, 2, 3, 4]"),
    "repetitions": values.whole("a whole number from 1 to 100", 1, 100, ()),
    "updates": _updates,
    "mode": values.choice(*MODES),
    "idle_mhz": values.clock(*NULLS),
    "max_throughput_loss": values.loss,
    "pairs_per_allocation": values.whole("all, or a whole number from 1 to 1000", 1, 1000, ("all",)),
    "simulate": _text,
    "time_scale": values.real("a number of 1 or more", 1.0),
    "array_limit": values.whole("a whole number of tasks at once", 1, 10_000, ("all",)),
    "setup": _text,
    "sbatch": _sbatch,
}
