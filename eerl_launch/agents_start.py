"""How agents are started and ended, and which GPUs Slurm says they may count: the commands around the session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from eerl_launch.adapter_folder import VARIABLE
from eerl_launch.nodes import Link
from eerl_launch.own_modules import OWN_PYTHON
from eerl_launch.slurm import Allocation, agent_argv, agent_environment, parse_gpu_indices

#: Simulated time runs faster than the wall; agents then sample more often, up to this.
_SHORTEST_PERIOD_S = 0.02
_PERIOD_S = 0.2
_SCONTROL_TIMEOUT_S = 20.0


def allocation(config: Mapping[str, Any]) -> Allocation | None:
    """The job, as the launcher read it."""
    fields = config.get("allocation")
    if fields is None:
        return None
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Allocation(**{**fields, **lists})


def commands(config: Mapping[str, Any]) -> list[tuple[list[str], Mapping[str, str]]]:
    """The processes that carry the agents: argv and environment of each."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EERL_")}
    job = allocation(config)
    if config["sim_folder"]:
        period_s = max(_SHORTEST_PERIOD_S, _PERIOD_S / config["time_scale"])
        return [
            (
                [
                    *(*OWN_PYTHON, "-m", "eerl_launch.agent"),
                    *("--node", name, "--sim-dir", config["sim_folder"], "--sim-node", str(index)),
                    *("--period-s", str(period_s)),
                ],
                environment,
            )
            for index, name in enumerate(config["nodes"])
        ]
    if job is None:
        argv = [*OWN_PYTHON, "-m", "eerl_launch.agent", "--node", config["nodes"][0]]
        return [(argv, environment)]
    arguments = ["--job-id", str(job.job_id), "--marker-folder", config["private_folder"]]
    if config.get("adapter_folder"):
        environment[VARIABLE] = config["adapter_folder"]
    if config["session_node"]:
        arguments += ["--session-node", config["session_node"]]
    return [(agent_argv(job, sys.executable, arguments), agent_environment(environment))]


def gpu_indices(config: Mapping[str, Any]) -> dict[str, list[int]] | None:
    """GPU positions by node as Slurm granted them; None outside Slurm or when it does not say.

    Only agents without a broker need them. Runs ``scontrol`` once.
    """
    job = allocation(config)
    if job is None or config["sim_folder"] or job.shared_gpus:
        return None
    try:
        answer = subprocess.run(
            ["scontrol", "show", "job", "-d", str(job.job_id)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SCONTROL_TIMEOUT_S,
            check=True,
            env=agent_environment(os.environ),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = parse_gpu_indices(answer.stdout.decode("utf-8", "replace"))
    return {name: list(found.get(name, ())) for name in job.nodes if name in found}


def reap(link: Link, *, patience_s: float) -> None:
    """Wait for a link's process to end, and end it when it does not."""
    deadline = time.monotonic() + patience_s
    while link.process.poll() is None and time.monotonic() < deadline:
        link.send()
        _drain(link)
        time.sleep(0.01)
    if link.process.poll() is None:
        link.process.kill()
        link.process.wait()


def _drain(link: Link) -> None:
    """An ending process must not block on output that nobody reads."""
    for fd in (link.output_fd, link.error_fd):
        try:
            while os.read(fd, 65536):
                pass
        except OSError:
            pass
