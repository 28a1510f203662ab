"""One allocation of a study at work: its runs one after the other, each noted when it has ended."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from eerl_launch.own_modules import OWN_PYTHON
from eerl_launch.sweep_plan import CELL_NOTE, Task, cell_folder, policy_text, to_run
from eerl_launch.sweep_study import Study, setting_name
from eerl_launch.sweep_values import Setting
from eerl_launch.telling import say
from eerl_launch.whole_file import write_whole

#: The launcher of this very eerl, whatever PATH the job has.
LAUNCHER = (*OWN_PYTHON, "-c", "from eerl_launch.cli import main; main()")
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def allocation_name(environment: Mapping[str, str]) -> str:
    """What the allocation is called in folder names: runs of one name ran on the same GPUs."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return "local-" + re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
    return f"job{job}.{environment.get('SLURM_RESTART_COUNT', '0')}"


def cell_arguments(study: Study, task: Task, setting: Setting, folder: Path) -> list[str]:
    """What eerl-run is given for a cell: its policy and folder, and the study's command."""
    options = ["--policy", str(folder / "policy.yaml"), "--out", str(folder)]
    if study.simulate:
        options += ["--simulate", study.simulate, "--time-scale", f"{study.time_scale:g}"]
    return [*options, "--", *study.argv(task.workload, task.seed, task.repetition)]


class Allocation:
    """Runs the cells of a task; a signal goes to the run in progress, and nothing is begun after it."""

    def __init__(self, study: Study, out: Path, task: Task) -> None:
        self._study, self._out, self._task = study, out, task
        self._child: subprocess.Popen[bytes] | None = None
        self._signalled: int | None = None

    def run(self, environment: Mapping[str, str] = os.environ) -> int:
        """0 when all cells of the task are there, 1 when one failed, 128+N when ended by signal N."""
        name = allocation_name(environment)
        settings = to_run(self._out, self._task, name)
        if not settings:
            say(f"sweep: {self._task.words}: nothing is left to run")
            return 0
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        failed = 0
        for place, setting in enumerate(settings, start=1):
            say(f"sweep: {self._task.words}: {setting_name(setting)} ({place} of {len(settings)})")
            failed += self._cell(name, setting, place) != 0
            if self._signalled is not None:
                return 128 + self._signalled
        if failed:
            say(f"sweep: {failed} of {len(settings)} runs failed; submit the sweep again to run them again")
        return 1 if failed else 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signalled = number if number == signal.SIGTERM else self._signalled
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _cell(self, allocation: str, setting: Setting, place: int) -> int:
        folder = cell_folder(self._out, self._task, allocation, setting)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CELL_NOTE).unlink(missing_ok=True)
        write_whole(folder / "policy.yaml", policy_text(self._study, setting))
        before = set(folder.glob("eerl-*"))
        argv = [*LAUNCHER, *cell_arguments(self._study, self._task, setting, folder)]
        begin = time.time()
        self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=self._environment())
        code = self._child.wait()
        code = 128 - code if code < 0 else code
        made = sorted(set(folder.glob("eerl-*")) - before)
        note = {
            "generation_mhz": setting[0],
            "training_mhz": setting[1],
            "workload": self._task.workload,
            "seed": self._task.seed,
            "repetition": self._task.repetition,
            "order": place,
            "begin_unix_s": begin,
            "end_unix_s": time.time(),
            "exit_code": code,
            "run": made[-1].name if made else None,
            "command": shlex.join(self._study.argv(self._task.workload, self._task.seed, 1)),
        }
        if self._signalled is None:  # a run that was cut short is no run that failed: it is run again
            write_whole(folder / CELL_NOTE, json.dumps(note, indent=1) + "\n")
        if code != 0:
            say(f"sweep: {setting_name(setting)} ended with exit code {code}; see {folder}")
        return code

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "EERL_SWEEP_SEED": str(self._task.seed)}


def run_tasks(study: Study, out: Path, chosen: Sequence[Task]) -> int:
    """Run tasks one after the other, on this machine or in this job; the worst exit code."""
    worst = 0
    for task in chosen:
        code = Allocation(study, out, task).run()
        if code >= 128:
            return code
        worst = max(worst, code)
    return worst
