"""``eerl doctor``: what of eerl works here, what does not, and what would mend it.

Inside a job it looks at every node through the same srun line that starts the agents; elsewhere at this machine.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eerl_launch.doctor_node import Check, Place, check_markers, check_shared, examine
from eerl_launch.slurm import Allocation, agent_argv, agent_environment, read_allocation

_COMMAND_S = 60.0
#: Built into Slurm 22.05; the gpu plugin falls back on it only where a step asks for a frequency.
_SLURM_GPU_FREQ = "high,memory=high"

#: Runs a command and returns its exit code, stdout and stderr; None when it cannot be run or takes too long.
Runner = Callable[[Sequence[str], Mapping[str, str]], "tuple[int, str, str] | None"]


def run_command(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str] | None:
    """The real runner: bounded, without our stdin."""
    try:
        done = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _first_line(text: str) -> str:
    """What a Slurm command complained about, fit for one line."""
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "no message")


def check_job(allocation: Allocation | None) -> Iterator[Check]:
    """Whether this is a job, and whether all its nodes are known."""
    if allocation is None:
        yield Check(
            "Slurm job",
            "warn",
            "not inside a Slurm job: only this machine is looked at",
            "run `eerl doctor` in the job script, or under salloc",
        )
        return
    nodes = f"job {allocation.job_id} on {len(allocation.nodes)} nodes ({', '.join(allocation.nodes[:4])}"
    nodes += ", …)" if len(allocation.nodes) > 4 else ")"
    if allocation.nodes_problem:
        yield Check(
            "Slurm job", "fail", allocation.nodes_problem, "do not change SLURM_JOB_NODELIST in the job"
        )
    else:
        yield Check("Slurm job", "ok", nodes)
    if allocation.het_size > 1:
        yield Check(
            "Slurm job",
            "warn",
            f"heterogeneous: {len(allocation.other_nodes)} nodes of other components are not measured",
            "run trainer and inference in one component",
        )


def check_config(run: Runner, env: Mapping[str, str]) -> Iterator[Check]:
    """Settings of the cluster that stop the plugin or set clocks themselves."""
    answer = run(["scontrol", "show", "config"], env)
    if answer is None or answer[0] != 0:
        seen = "scontrol cannot be run here" if answer is None else _first_line(answer[2])
        yield Check(
            "Slurm settings", "warn", seen, "run eerl doctor where scontrol works (not in a container)"
        )
        return
    settings = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", answer[1], re.MULTILINE))
    flags = settings.get("PrologFlags", "")
    if re.search(r"\bRunInJob\b", flags):
        yield Check(
            "PrologFlags",
            "fail",
            f"{flags}: with RunInJob slurmd never calls the plugin's prolog and epilog",
            "the site removes RunInJob (Alloc or Contain are fine)",
        )
    elif not re.search(r"\b(Alloc|Contain)\b", flags):
        yield Check(
            "PrologFlags",
            "warn",
            f"{flags or '(null)'}: the prolog runs on a node only when the job's first step starts there",
            "the site sets PrologFlags=Alloc, so that brokers are up when the job begins",
        )
    else:
        yield Check("PrologFlags", "ok", flags)
    default = settings.get("GpuFreqDef", "")
    if default == _SLURM_GPU_FREQ:
        yield Check("GpuFreqDef", "ok", f"{default}: Slurm's own default, only for steps with --gpu-freq")
    elif default and default not in ("(null)", "none", "n/a"):
        yield Check(
            "GpuFreqDef",
            "warn",
            f"{default}: slurmstepd sets GPU clocks itself at the start of steps",
            "the site unsets GpuFreqDef, or jobs run their steps with --gpu-freq unset",
        )
    else:
        yield Check("GpuFreqDef", "ok", "not set")


def check_environment(env: Mapping[str, str]) -> Iterator[Check]:
    """Variables that make Slurm set GPU clocks for the job's steps."""
    if env.get("SLURM_GPU_FREQ"):
        yield Check(
            "SLURM_GPU_FREQ",
            "warn",
            f"{env['SLURM_GPU_FREQ']}: the job's steps set GPU clocks themselves",
            "submit without --gpu-freq",
        )


def check_option(run: Runner, env: Mapping[str, str]) -> Iterator[Check]:
    """The plugin is loaded by srun and sbatch on this machine."""
    answer = run(["srun", "--help"], env)
    if answer is None:
        yield Check("--eerl", "warn", "srun cannot be run here", "run eerl doctor where srun works")
    elif re.search(r"^\s*--eerl\b", answer[1] + answer[2], re.MULTILINE):
        yield Check("--eerl", "ok", "srun and sbatch know the option")
    else:
        yield Check(
            "--eerl",
            "fail",
            "srun does not know the option: the plugin is not loaded on this machine",
            "the site adds the eerl_spank.so line to plugstack.conf here and on the nodes",
        )


def check_nodes(run: Runner, allocation: Allocation, env: Mapping[str, str]) -> Iterator[Check]:
    """Every node's own findings, through the line that starts the agents; a node that says nothing is one too."""
    argv = agent_argv(allocation, sys.executable)
    argv[argv.index("eerl_launch.agent")] = "eerl_launch.doctor_node"
    answer = run(argv, env)
    heard = set()
    for line in (answer[1] if answer else "").splitlines():
        try:
            found = Check(**json.loads(line))
        except (ValueError, TypeError):
            continue
        heard.add(found.node)
        yield found
    complaint = _first_line(answer[2]) if answer and answer[2].strip() else "no answer within a minute"
    for node in allocation.nodes:
        if node not in heard:
            yield Check(
                "agent",
                "fail",
                f"nothing runs there through srun ({complaint})",
                f"{sys.executable} must exist on the node and srun --overlap must be allowed",
                node,
            )


def examine_all(env: Mapping[str, str], run: Runner = run_command) -> list[Check]:
    """All findings, in the order in which they are shown."""
    allocation = read_allocation(env)
    clean = agent_environment(env)
    found = list(check_job(allocation))
    settings = list(check_config(run, clean))
    if allocation is not None or len(settings) > 1:
        found += [*settings, *check_option(run, clean)]
    if allocation is not None:
        found += [*check_environment(env), *check_nodes(run, allocation, clean)]
        # Markers are the business of the machine where the trainer runs, which is here.
        here = Place(allocation.node_name or socket.gethostname(), str(allocation.job_id), env)
        found += [*check_shared(here), *check_markers(here)]
    else:
        found += examine(Place(socket.gethostname(), "", env))
    return found


def to_json(found: Sequence[Check]) -> dict[str, Any]:
    """The findings for scripts."""
    return {
        "schema_version": 1,
        "state": worst(found),
        "checks": [
            {"node": c.node or None, "name": c.name, "state": c.state, "seen": c.seen, "cure": c.cure or None}
            for c in found
        ],
    }


def worst(found: Sequence[Check]) -> str:
    """``fail``, ``warn`` or ``ok``."""
    states = {check.state for check in found}
    return next((state for state in ("fail", "warn") if state in states), "ok")


def to_text(found: Sequence[Check]) -> str:
    """The findings for people: what is the same on several nodes is shown once."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for check in found:
        groups.setdefault((check.name, check.state, check.seen, check.cure), []).append(check.node)
    width = max((len(name) for name, *_ in groups), default=0)
    lines = []
    for (name, state, seen, cure), nodes in groups.items():
        named = [node for node in nodes if node]
        where = (
            f"[{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}] "
            if named
            else ""
        )
        lines.append(f"{state:<4}  {name:<{width}}  {where}{seen}")
        if cure:
            lines.append(f"{'':<4}  {'':<{width}}  → {cure}")
    summary = {"ok": "all well", "warn": "works, with less", "fail": "does not work in full"}[worst(found)]
    return "\n".join([*lines, "", f"eerl on {os.uname().nodename}: {summary}"])
