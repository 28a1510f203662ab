"""``eerl sweep``: from a study file to runs, and from runs to tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from eerl_launch.errors import OptionError
from eerl_launch.sweep_plan import GOVERNOR, Task, cell_folder, left, ordered, policy_text, tasks
from eerl_launch.sweep_run import cell_arguments, run_tasks
from eerl_launch.sweep_study import Study, read_study, setting_name, study_text
from eerl_launch.sweep_submit import SCRIPT, STUDY, refuse_while_queued, script_text, submit
from eerl_launch.whole_file import write_whole

Say = Callable[[str], None]


class Sweep:
    """A study, the folder of its runs, and what may be done with the two."""

    def __init__(
        self, file: Path, out: Path | None, simulate: str | None = None, time_scale: float | None = None
    ) -> None:
        """``simulate`` and ``time_scale`` stand in for the study's own; they are options of a trial on one
        machine. Raises :class:`StudyError` for a file that is no study."""
        self.file = file
        self.study: Study = read_study(file)
        if simulate is not None:
            self.study = replace(self.study, simulate=simulate)
        if time_scale is not None:
            self.study = replace(self.study, time_scale=time_scale)
        if self.study.time_scale != 1.0 and not self.study.simulate:
            raise OptionError("--time-scale works with --simulate only: real GPUs keep their own time")
        if self.study.simulate:
            from eerl_launch.simulate import parse_spec

            parse_spec(self.study.simulate)
        self.out = (out or Path(f"sweep-{self.study.name}")).absolute()
        self.tasks = tasks(self.study)

    @property
    def unfinished(self) -> list[Task]:
        """The tasks that have something left to run."""
        return [task for task in self.tasks if left(self.out, task)]

    def describe(self, say: Say) -> None:
        """Print every run with its command and policy, and the job script; nothing is started or written."""
        study = self.study
        cells = sum(len(task.pairs) + 1 for task in self.tasks)
        say(f"study {study.name}: {len(self.tasks)} allocations, {cells} runs, into {self.out}")
        for task in self.tasks:
            missing = left(self.out, task)
            state = f"{len(task.pairs) - len(missing)} of {len(task.pairs)} pairs are there"
            say(f"\nallocation {task.number}: {task.words} ({state})")
            for setting in ordered(task, [GOVERNOR, *missing]) if missing else []:
                folder = cell_folder(self.out, task, "ALLOCATION", setting)
                arguments = cell_arguments(study, task, setting, folder)
                say(f"  {setting_name(setting)}: eerl-run {_joined(arguments)}")
        say(f"\npolicy of {setting_name(study.pairs[0])}:\n{policy_text(study, study.pairs[0])}")
        say(f"{SCRIPT}:\n{script_text(study, self.out, self.unfinished or self.tasks)}")

    def submit(self, say: Say) -> None:
        """Submit what is left as a job array."""
        unfinished = self.unfinished
        if not unfinished:
            say(f"nothing is left to run; tables: eerl sweep {self.file} --out {self.out} --collect")
            return
        refuse_while_queued(self.out)
        self._keep_study()
        job = submit(self.study, self.out, unfinished)
        say(f"submitted {len(unfinished)} of {len(self.tasks)} allocations as job array {job}")
        say(f"when it has ended: eerl sweep {self.file} --out {self.out} --collect")
        say("runs that failed, or that a time limit cut off, run again when the same command is given again")

    def run_here(self) -> int:
        """Run what is left on this machine, one after the other; the worst exit code."""
        self._keep_study()
        return run_tasks(self.study, self.out, self.unfinished)

    def run_task(self, number: int) -> int:
        """Run one allocation's share, inside its job."""
        chosen = [task for task in self.tasks if task.number == number]
        if not chosen:
            raise OptionError(f"--task {number}: the study has tasks 0 to {len(self.tasks) - 1}")
        return run_tasks(self.study, self.out, chosen)

    def collect(self, say: Say) -> int:
        """Make the tables of what is there; 1 when nothing can be compared."""
        from eerl_launch.sweep_collect import collect
        from eerl_launch.sweep_tables import render_text, write_tables

        if not self.out.is_dir():
            raise OptionError(f"--out {self.out}: no such folder; run the sweep first")
        results = collect(self.study, self.out)
        say(render_text(self.study, results))
        for path in write_tables(self.study, results, self.out):
            say(str(path))
        return 0 if any(result.rows for result in results) else 1

    def _keep_study(self) -> None:
        """The study beside its runs, as resolved: tasks read it there, whatever becomes of the file.

        A study may grow, by seeds, pairs or workloads. What changes the runs that are there needs another folder.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        kept = self.out / STUDY
        if kept.exists():
            changed = _changed(read_study(kept), self.study)
            if changed:
                raise OptionError(
                    f"{self.out} holds runs of a study with another {' and '.join(changed)} ({kept}); choose "
                    f"another --out, or delete it"
                )
        write_whole(kept, study_text(self.study))


def _changed(kept: Study, new: Study) -> list[str]:
    """What differs between two studies that their runs depend on."""
    found = [
        f"command of {name}"
        for name in kept.workloads
        if name in new.workloads and kept.workloads[name] != new.workloads[name]
    ]
    keys = ("mode", "idle_mhz", "simulate", "last_update")
    return found + [
        "end of updates" if key == "last_update" else key
        for key in keys
        if getattr(kept, key) != getattr(new, key)
    ]


def _joined(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)
