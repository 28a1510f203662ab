"""Which runs a study consists of, in which allocation and order, and what is left to do. No run is started here."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eerl_launch.ledger import FILE_NAME
from eerl_launch.sweep_study import Study, setting_name
from eerl_launch.sweep_values import Setting

GOVERNOR: Setting = (None, None)
CELL_NOTE = "cell.json"


@dataclass(frozen=True, slots=True)
class Task:
    """What one allocation does: the pairs of one workload, seed and repetition, and the governor with them."""

    number: int
    workload: str
    seed: int
    repetition: int
    chunk: int
    pairs: tuple[Setting, ...]

    @property
    def words(self) -> str:
        """The task in a few words."""
        return f"{self.workload}, seed {self.seed}, repetition {self.repetition}"


def tasks(study: Study) -> list[Task]:
    """The array's tasks in their order."""
    size = study.pairs_per_allocation or len(study.pairs)
    chunks = [study.pairs[first : first + size] for first in range(0, len(study.pairs), size)]
    found: list[Task] = []
    for workload in study.workloads:
        for seed in study.seeds:
            for repetition in range(1, study.repetitions + 1):
                for chunk, pairs in enumerate(chunks):
                    found.append(Task(len(found), workload, seed, repetition, chunk, tuple(pairs)))
    return found


def ordered(task: Task, settings: list[Setting]) -> list[Setting]:
    """The settings in the order in which the allocation runs them: drawn from the task, not from where it runs.

    A machine that warms up, or a file system that fills its cache, then meets every setting alike.
    """
    drawn = sorted(settings, key=setting_name)
    random.Random(f"{task.workload}/{task.seed}/{task.repetition}/{task.chunk}").shuffle(drawn)
    return drawn


def task_folder(out: Path, task: Task) -> Path:
    """Where the allocations of a task have their folders."""
    return out / "runs" / task.workload / f"seed{task.seed}-rep{task.repetition}-part{task.chunk}"


def cell_folder(out: Path, task: Task, allocation: str, setting: Setting) -> Path:
    """Where one run of a task has its policy, its note and its run folder."""
    return task_folder(out, task) / allocation / setting_name(setting).replace("/", "-")


def policy_text(study: Study, setting: Setting) -> str:
    """The policy file of a cell."""
    plain: dict[str, Any] = {"policy": "governor", "mode": study.mode}
    if setting != GOVERNOR:
        plain["policy"] = "fixed"
        plain["fixed"] = {
            key: "governor" if mhz is None else mhz
            for key, mhz in zip(("generation_mhz", "training_mhz"), setting, strict=True)
        }
        plain["clocks"] = {"idle_mhz": study.idle_mhz}
    plain["report"] = {"formats": ["json", "txt"]}
    return yaml.safe_dump(plain, sort_keys=False)


@dataclass(frozen=True, slots=True)
class CellNote:
    """What a task wrote down of a run that came to its end."""

    folder: Path
    setting: Setting
    allocation: str
    exit_code: int
    run: Path | None

    @property
    def done(self) -> bool:
        """Whether the run succeeded and left a ledger."""
        return self.exit_code == 0 and self.run is not None and (self.run / FILE_NAME).exists()


def read_note(folder: Path) -> CellNote | None:
    """The note in a cell's folder; None when there is none that can be read."""
    try:
        plain = json.loads((folder / CELL_NOTE).read_text())
        run = plain["run"]
        return CellNote(
            folder,
            (plain["generation_mhz"], plain["training_mhz"]),
            folder.parent.name,
            int(plain["exit_code"]),
            None if run is None else folder / str(run),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def notes_of(out: Path, task: Task) -> Iterator[CellNote]:
    """The notes of every run of a task, allocation by allocation."""
    base = task_folder(out, task)
    for allocation in sorted(base.iterdir()) if base.is_dir() else ():
        for folder in sorted(allocation.iterdir()) if allocation.is_dir() else ():
            note = read_note(folder)
            if note is not None:
                yield note


def matched(out: Path, task: Task) -> Mapping[Setting, tuple[CellNote, CellNote]]:
    """By pair the latest run that succeeded beside a governor run of the same allocation, and that run."""
    done = [note for note in notes_of(out, task) if note.done]
    governor = {note.allocation: note for note in done if note.setting == GOVERNOR}
    return {
        note.setting: (note, governor[note.allocation])
        for note in done
        if note.setting != GOVERNOR and note.allocation in governor
    }


def left(out: Path, task: Task) -> list[Setting]:
    """The pairs that still lack a run with its governor beside it."""
    have = matched(out, task)
    return [pair for pair in task.pairs if pair not in have]


def to_run(out: Path, task: Task, allocation: str) -> list[Setting]:
    """What this allocation has to run, in order: the pairs that are left, and the governor unless it ran here."""
    missing = left(out, task)
    if not missing:
        return []
    done = {note.setting for note in notes_of(out, task) if note.done and note.allocation == allocation}
    wanted = [pair for pair in missing if pair not in done]
    return ordered(task, wanted if GOVERNOR in done else [GOVERNOR, *wanted])
