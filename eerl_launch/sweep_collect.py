"""From the runs of a study to its tables: Appendix A by workload and setting, and the best within the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from eerl_launch.errors import EerlError
from eerl_launch.evidence.comparable import configuration, differences
from eerl_launch.evidence.estimator import GOVERNOR, Cell, Comparison, best_setting, compare_settings
from eerl_launch.evidence.paired import LEAST_SHARE, totals
from eerl_launch.evidence.runs import RunData, load_run
from eerl_launch.sweep_plan import CellNote, Task, left, matched, notes_of, tasks
from eerl_launch.sweep_study import Study, setting_name
from eerl_launch.sweep_values import Setting

#: A lock is snapped to a supported clock; tables have steps of 15 MHz at most.
SNAP_MHZ = 15.0


@dataclass(slots=True)
class WorkloadResult:
    """What a study found for a workload; ``left_out`` says of each run that does not count why."""

    workload: str
    configuration: str = ""
    simulated: str | None = None
    rows: list[Comparison] = field(default_factory=list)
    best: Comparison | None = None
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def collect(study: Study, out: Path) -> list[WorkloadResult]:
    """The results of all workloads; a workload without a single pair has no rows, and says why."""
    every = tasks(study)
    return [
        _Workload(study, out, name).collect([task for task in every if task.workload == name])
        for name in study.workloads
    ]


class _Workload:
    """Gathers the cells of one workload; every run that cannot count is named with its reason."""

    def __init__(self, study: Study, out: Path, name: str) -> None:
        self._study, self._out = study, out
        self._result = WorkloadResult(name)
        self._first: RunData | None = None

    def collect(self, members: Sequence[Task]) -> WorkloadResult:
        cells: list[Cell] = []
        for task in members:
            pairs = matched(self._out, task)
            self._name_missing(task, pairs)
            by_governor: dict[Path, list[tuple[Setting, CellNote]]] = {}
            for setting, (note, governor) in pairs.items():
                by_governor.setdefault(governor.folder, []).append((setting, note))
            governors = {governor.folder: governor for _, governor in pairs.values()}
            for folder, found in by_governor.items():
                cells += self._block(task, governors[folder], found)
        result = self._result
        place = {pair: number for number, pair in enumerate(self._study.pairs)}
        result.rows = sorted(compare_settings(cells), key=lambda row: place[row.setting])
        result.best = best_setting(result.rows, self._study.max_throughput_loss)
        return result

    def _name_missing(self, task: Task, pairs: object) -> None:
        done = [note for note in notes_of(self._out, task) if note.done]
        governed = {note.allocation for note in done if note.setting == GOVERNOR}
        for setting in left(self._out, task):
            alone = any(note.setting == setting and note.allocation not in governed for note in done)
            why = "ran without a governor run in its allocation" if alone else "has not run"
            self._result.missing.append(f"{task.words}: {setting_name(setting)} {why}")

    def _block(
        self, task: Task, governor: CellNote, members: Sequence[tuple[Setting, CellNote]]
    ) -> list[Cell]:
        reference = self._load(task, GOVERNOR, governor)
        if reference is None:
            names = ", ".join(setting_name(setting) for setting, _ in members)
            self._result.left_out.append(f"{task.words}: {names}: its governor run cannot be used")
            return []
        runs = {GOVERNOR: reference}
        for setting, note in members:
            data = self._load(task, setting, note)
            if data is not None:
                runs[setting] = data
        common = self._window(reference).index
        for data in runs.values():
            window = self._window(data)
            common = common.intersection(window.index[window["usable"]])
        if len(common) < LEAST_SHARE * self._wanted:
            self._result.left_out.append(
                f"{task.words}: its runs have only {len(common)} of {self._wanted} measured updates in common"
            )
            return []
        block = f"{task.number}/{governor.allocation}"
        return [
            self._cell(task.seed, block, setting, data.frame.loc[common]) for setting, data in runs.items()
        ]

    @staticmethod
    def _cell(seed: int, block: str, setting: Setting, frame: pd.DataFrame) -> Cell:
        reward = frame["reward"].dropna()
        return Cell(seed, block, setting, totals(frame), float(reward.mean()) if len(reward) else None)

    @property
    def _wanted(self) -> int:
        return self._study.last_update - self._study.first_update + 1

    def _window(self, data: RunData) -> pd.DataFrame:
        return data.frame.loc[self._study.first_update : self._study.last_update]

    def _load(self, task: Task, setting: Setting, note: CellNote) -> RunData | None:
        """The run when it can count; else its reason is noted."""
        assert note.run is not None
        try:
            data = load_run(note.run)
            reason = self._fault(setting, data)
        except EerlError as error:
            reason = str(error)
        if reason is not None:
            self._result.left_out.append(f"{task.words}: {setting_name(setting)}: {reason}")
            return None
        return data

    def _fault(self, setting: Setting, data: RunData) -> str | None:
        window = self._window(data)
        if len(window) < self._wanted:
            return (
                f"it has {len(data.frame)} updates, {self._study.last_update} are measured "
                f"(delete {data.folder.parent} to run it again)"
            )
        usable = int(window["usable"].sum())
        if usable < LEAST_SHARE * self._wanted:
            why = window["reason"].value_counts()
            return f"only {usable} of {self._wanted} updates can be used: most are {why.index[0]}"
        clocks = _clocks_fault(setting, window)
        if clocks is not None:
            return clocks
        if self._first is None:
            self._first = data
            self._result.configuration = configuration(data).words
            self._result.simulated = data.run.simulated
        found = differences(self._first, data)
        return f"not like {self._first.folder}: {found[0]}" if found else None


def _clocks_fault(setting: Setting, window: pd.DataFrame) -> str | None:
    """Why the run is not of its setting: a clock that was never set would be a saving of nothing."""
    if setting == GOVERNOR:
        return None if bool((window["governor"] == 1.0).all()) else "clocks were lowered in a governor run"
    for column, mhz in zip(("generation_mhz", "training_mhz"), setting, strict=True):
        seen = window[column]
        wrong = seen.notna() if mhz is None else ~((seen - mhz).abs() <= SNAP_MHZ)
        if wrong.mean() > 1.0 - LEAST_SHARE:
            asked = "the governor" if mhz is None else f"{mhz} MHz"
            return f"{column.split('_')[0]} did not run at {asked} (could clocks be set? see `eerl doctor`)"
    if window["not_honoured"].mean() > 1.0 - LEAST_SHARE:
        return "its clocks were asked for and not honoured (see its report)"
    return None
