"""How much later the command starts, and ends, for being run by eerl-run: on a plain machine and inside a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":  # run inside a job
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measured import Number, median, quantile
from bench.rig_jobs import HERE, PYTHON, completed
from rig.cluster import Cluster

RUNS_OUTSIDE, RUNS_INSIDE = 15, 9
#: Prints the instant at which it runs; one small program, so that its own start hardly counts.
_NOW = ["date", "+%s%N"]


def measure_outside() -> list[Number]:
    """``eerl-run -- true`` and the start of its command outside Slurm, beside the same without eerl-run."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "EERL_"))}
    with tempfile.TemporaryDirectory() as folder:
        times = rounds(RUNS_OUTSIDE, Path(folder), outside)
    return _numbers("outside Slurm", times, added_s=0.5)


def measure_inside(cluster: Cluster) -> list[Number]:
    """The same in a job of all nodes, with agents joining meanwhile."""
    cluster.settle()
    result = cluster.work / "launch-time.json"
    nodes, gpus = len(cluster.nodes), len(cluster.node().stub)
    script = f"{PYTHON} {HERE / 'launch_time.py'} {RUNS_INSIDE} {cluster.work} > {result}"
    completed(cluster.run(script, f"-N{nodes}", f"--gres=gpu:{gpus}", "--eerl", timeout_s=200))
    return _numbers(f"in a job of {nodes} nodes", json.loads(result.read_text()), added_s=None)


def rounds(count: int, folder: Path, environment: dict[str, str]) -> dict[str, list[float]]:
    """Seconds of each way of running something, turn about."""
    eerl_run = [str(Path(sys.executable).parent / "eerl-run"), "--out", str(folder), "--"]
    alone = [*eerl_run[:-1], "--adapter", "none", "--"]
    times: dict[str, list[float]] = {
        name: [] for name in ("plain", "python", "eerl-run", "now", "eerl-run now", "alone now")
    }
    for _ in range(count):
        times["plain"].append(_whole_s(["true"], environment))
        times["python"].append(_whole_s([sys.executable, "-I", "-c", "pass"], environment))
        times["eerl-run"].append(_whole_s([*eerl_run, "true"], environment))
        times["now"].append(_until_command_s(_NOW, environment))
        times["eerl-run now"].append(_until_command_s([*eerl_run, *_NOW], environment))
        times["alone now"].append(_until_command_s([*alone, *_NOW], environment))
    return times


def _whole_s(command: list[str], environment: dict[str, str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def _until_command_s(command: list[str], environment: dict[str, str]) -> float:
    begin_ns = time.time_ns()
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return (int(done.stdout) - begin_ns) / 1e9


def _numbers(where: str, times: dict[str, list[float]], added_s: float | None) -> list[Number]:
    whole, plain, python = (median(times[name]) for name in ("eerl-run", "plain", "python"))
    start, alone, bare = (median(times[name]) for name in ("eerl-run now", "alone now", "now"))
    return [
        Number(
            f"eerl-run -- true, {where}: added",
            "s",
            whole - plain,
            python,
            "python -I -c pass",
            target=added_s,
        ),
        Number(
            f"start of the command, {where}, --adapter none: median",
            "s",
            alone,
            bare,
            "the command without eerl-run",
            0.5,
        ),
        Number("the same: worst", "s", quantile(times["alone now"], 1.0)),
        Number(
            f"start of the command, {where}, once all agents have laid the adapters: median",
            "s",
            start,
            alone,
            "with --adapter none",
            2.5,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(rounds(int(sys.argv[1]), Path(sys.argv[2]), dict(os.environ))))
