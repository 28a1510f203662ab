"""What agent, broker and session cost a node of 8 GPUs at 5 samples a second, over a minute of a quiet run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.measured import Number
from bench.rig_jobs import completed, trainer_command
from rig.cluster import Cluster, wait_for
from rig.node import Node
from rig.processes import Process

WINDOW_S = 62.0
#: Joining, imports and the first update are over by then.
_SETTLE_S = 14.0
_STUB_NOTE = (
    "agent and broker: the stub answers an NVML call in microseconds; a driver needs up to milliseconds for one, and "
    "that time comes on top (in the broker, which makes the calls)"
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One process of ours, or several that act as one."""

    name: str
    find: Callable[[Node, int], list[Process]]
    cpu_percent: float | None = None
    memory_mb: float | None = None


_PARTS = (
    _Part("agent", lambda node, _: _python(node, "eerl_launch.agent"), 1.0, 60.0),
    _Part("broker (supervisor and worker)", lambda node, job: node.brokers(job), 0.5, 8.0),
    _Part("session", lambda node, _: _python(node, "eerl_launch.session")),
    _Part("eerl-run", lambda node, _: node.processes(r"^\S*python\S* \S*eerl-run ")),
    _Part("srun that carries the agents", lambda node, _: node.processes(r"^srun .*eerl_launch.agent")),
)


def _python(node: Node, module: str) -> list[Process]:
    return node.processes(rf"^\S*python\S* -I -m {module}\b")


def measure(cluster: Cluster) -> list[Number]:
    """CPU over the window, PSS and RSS at its end, of each part on the job's first node."""
    cluster.settle()
    node = cluster.node()
    gpus = len(node.stub)
    edges = cluster.work / "footprint.edges"
    updates = int((_SETTLE_S + WINDOW_S) / 20) + 1
    train = trainer_command(cluster, edges, f"--updates {updates} --phases generation:10,training:10")
    job_id = cluster.sbatch(train, "-w", node.name, f"--gres=gpu:{gpus}", "--eerl")
    cluster.wait_running(job_id)
    wait_for(lambda: _python(node, "eerl_launch.agent"), "the agent")
    time.sleep(_SETTLE_S)
    found = {part.name: part.find(node, job_id) for part in _PARTS}
    before = {name: _cpu_s(processes) for name, processes in found.items()}
    begin = time.monotonic()
    time.sleep(WINDOW_S)
    window_s = time.monotonic() - begin
    after = {name: _cpu_s(processes) for name, processes in found.items()}
    memory = {name: _memory_mb(processes) for name, processes in found.items()}
    completed(cluster.wait_end(job_id))
    numbers = []
    for part in _PARTS:
        if not found[part.name]:
            raise RuntimeError(f"{part.name}: no such process on {node.name}")
        percent = 100 * (after[part.name] - before[part.name]) / window_s
        pss_mb, rss_mb = memory[part.name]
        note = _STUB_NOTE if part.cpu_percent is not None else ""
        numbers += [
            Number(f"{part.name}: CPU", "percent_of_core", percent, target=part.cpu_percent, note=note),
            Number(f"{part.name}: memory, PSS", "mb", pss_mb, target=part.memory_mb),
            Number(f"{part.name}: memory, RSS", "mb", rss_mb, target=part.memory_mb),
        ]
    return numbers


def _cpu_s(processes: list[Process]) -> float:
    """User and system time of all threads since the processes began."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_mb(processes: list[Process]) -> tuple[float, float]:
    """Proportional and resident set size together, in MB of 10^6 bytes."""
    sizes = {"Pss": 0.0, "Rss": 0.0}
    for process in processes:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in sizes:
                sizes[name] += int(rest.split()[0]) * 1024 / 1e6
    return sizes["Pss"], sizes["Rss"]
