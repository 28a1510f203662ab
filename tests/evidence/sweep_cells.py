"""Runs of a study put in place as the sweep's tasks would have left them, from the twin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from evidence.twin_ledgers import write_run

from eerl_launch.sweep_plan import CELL_NOTE, GOVERNOR, Task, cell_folder
from eerl_launch.sweep_values import Setting
from eerl_twin import FixedPlan, Run, World, simulate


def put(
    out: Path,
    task: Task,
    allocation: str,
    setting: Setting,
    run: Run,
    *,
    exit_code: int = 0,
    **start: Any,
) -> Path:
    """One run with its note; returns its run folder."""
    folder = cell_folder(out, task, allocation, setting)
    made = write_run(folder / "eerl-1", run, "governor" if setting == GOVERNOR else "fixed", **start)
    note = {
        "generation_mhz": setting[0],
        "training_mhz": setting[1],
        "exit_code": exit_code,
        "run": made.name,
    }
    (folder / CELL_NOTE).write_text(json.dumps(note))
    return made


def put_all(
    out: Path,
    tasks: Iterable[Task],
    world: World,
    updates: int,
    keep: Callable[[Task, Setting], bool] = lambda task, setting: True,
) -> dict[tuple[int, Setting], Run]:
    """Every run of these tasks, each task an allocation of its own; runs by seed and setting."""
    runs: dict[tuple[int, Setting], Run] = {}
    for task in tasks:
        for setting in (GOVERNOR, *task.pairs):
            if keep(task, setting):
                run = simulate(world, FixedPlan(*setting), updates, task.seed)
                put(out, task, f"job{task.number}.0", setting, run)
                runs[task.seed, setting] = run
    return runs
