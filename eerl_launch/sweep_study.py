"""What a headroom study is: one YAML file in, one frozen Study out, or one error with every fault and its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from eerl_launch import policy_values as values
from eerl_launch import sweep_values as read
from eerl_launch.errors import EerlError
from eerl_launch.policy_values import MODES, NULLS, BadValueError, seen
from eerl_launch.sweep_values import Setting
from eerl_launch.yaml_file import compose, read_text

_WHAT = "study file"

#: Words of a command that are replaced, in braces.
PLACEHOLDERS = ("seed", "updates", "repetition", "workload")


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


def study_text(study: Study) -> str:
    """The study as a file that :func:`read_study` reads back as the same."""
    plain = {
        "name": study.name,
        "workloads": {name: list(words) for name, words in study.workloads.items()},
        "pairs": [setting_name(pair) for pair in study.pairs],
        "seeds": list(study.seeds),
        "repetitions": study.repetitions,
        "updates": f"{study.first_update}-{study.last_update}",
        "mode": study.mode,
        "idle_mhz": study.idle_mhz,
        "max_throughput_loss": study.max_throughput_loss,
        "pairs_per_allocation": study.pairs_per_allocation or "all",
        "array_limit": study.array_limit or "all",
        "setup": study.setup,
        "sbatch": {name: True if value is None else value for name, value in study.sbatch.items()},
    }
    if study.simulate:
        plain |= {"simulate": study.simulate, "time_scale": study.time_scale}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def read_study(path: Path) -> Study:
    """The study in ``path``; :class:`StudyError` lists every fault, one a line."""
    node = compose(read_text(path, _WHAT, StudyError), str(path), _WHAT, StudyError)
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
    fallback = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).strip("._-")[:64] or "study"
    return Study(name=found.pop("name", None) or fallback, workloads=workloads, **found)


_SCHEMA: Mapping[str, Callable[[yaml.Node], Any]] = {
    "name": read.name,
    "command": read.command,
    "workloads": read.workloads,
    "pairs": read.listed(read.pair, "a list of clock pairs such as [1800/1500, governor/1200]"),
    "seeds": read.listed(read.seed, "a list of whole numbers such as [1, 2, 3, 4]"),
    "repetitions": values.whole("a whole number from 1 to 100", 1, 100, ()),
    "updates": read.updates,
    "mode": values.choice(*MODES),
    "idle_mhz": values.clock(*NULLS),
    "max_throughput_loss": values.loss,
    "pairs_per_allocation": values.whole("all, or a whole number from 1 to 1000", 1, 1000, ("all",)),
    "simulate": read.text,
    "time_scale": values.real("a number of 1 or more", 1.0),
    "array_limit": values.whole("a whole number of tasks at once", 1, 10_000, ("all",)),
    "setup": read.text,
    "sbatch": read.sbatch,
}
