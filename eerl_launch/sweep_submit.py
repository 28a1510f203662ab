"""The study as a Slurm job array: the script's text, and its submission."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from eerl_launch.errors import EerlError
from eerl_launch.own_modules import OWN_PYTHON
from eerl_launch.sweep_plan import Task
from eerl_launch.sweep_study import Study
from eerl_launch.whole_file import write_whole

SCRIPT = "array.sbatch"
STUDY = "study.yaml"
#: Holds the job id of the last array.
JOB = "array.job"


class SubmitError(EerlError):
    """The array could not be submitted; the text says what Slurm said."""


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,7``: ascending numbers as Slurm's array option takes them."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def script_text(study: Study, out: Path, unfinished: Sequence[Task]) -> str:
    """The job script: one task of the array is one allocation with its own governor run."""
    array = ranges([task.number for task in unfinished])
    if study.array_limit:
        array += f"%{study.array_limit}"
    options = [f"--job-name={study.name}", f"--array={array}", f"--output={out / 'logs' / '%A_%a.out'}"]
    options += [f"--{name}" if value is None else f"--{name}={value}" for name, value in study.sbatch.items()]
    command = [*OWN_PYTHON, "-c", "from eerl_launch.tools import main; main()"]
    command += ["sweep", str(out / STUDY), "--out", str(out)]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_quoted(option)}" for option in options),
        "set -u",
        *study.setup.splitlines(),
        # exec: signals of the job reach the sweep, which passes them on to the run in progress.
        f'exec {shlex.join(command)} --task "$SLURM_ARRAY_TASK_ID"',
    ]
    return "\n".join(lines) + "\n"


def _quoted(option: str) -> str:
    """An option as a #SBATCH line takes it: Slurm knows quotes there, and no other shell syntax."""
    return option if re.fullmatch(r"[^\s\"'\\#]+", option) else '"' + option.replace('"', "") + '"'


def submit(study: Study, out: Path, unfinished: Sequence[Task]) -> str:
    """Write the script, submit it, and give the array's job id back. Raises :class:`SubmitError`."""
    if shutil.which("sbatch") is None:
        raise SubmitError(
            "sbatch is not on the PATH: submit from a login node, or use --local to run it here"
        )
    (out / "logs").mkdir(parents=True, exist_ok=True)
    write_whole(out / SCRIPT, script_text(study, out, unfinished))
    done = subprocess.run(["sbatch", "--parsable", str(out / SCRIPT)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SubmitError(f"sbatch refused {out / SCRIPT}: {done.stderr.strip()}")
    job = done.stdout.strip().split(";")[0]
    write_whole(out / JOB, f"{job}\n")
    return job


def refuse_while_queued(out: Path) -> None:
    """Raise :class:`SubmitError` while an array of this study waits or runs: its runs would be made twice."""
    try:
        job = (out / JOB).read_text().strip()
    except OSError:
        return
    if shutil.which("squeue") is None:
        return
    found = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True)
    if found.returncode == 0 and found.stdout.strip():
        raise SubmitError(
            f"job array {job} of this study is still in the queue: wait for its end, or `scancel {job}`"
        )
