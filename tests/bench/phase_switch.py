"""From the marker to the last GPU locked: 4 nodes of 8 stub GPUs, beside one NVML call and one channel round trip."""

from __future__ import annotations

import json
import shlex

from bench.measured import Number, median, quantile
from bench.rig_jobs import HERE, PYTHON, Edge, completed, ledger, read_edges, trainer_command
from rig.cluster import Cluster

from eerl_launch.slurm import Allocation, agent_argv

DELAYS_MS = (0, 15)
UPDATES = 14
#: Longer than the second below which a phase keeps the clock it finds.
_PHASES = "generation:1.15,training:1.15"
_CLOCKS_MHZ = {"generation": 1500, "training": 1200}
_SETTER = "nvmlDeviceSetGpuLockedClocks"
_ROUNDS = 60


def measure(cluster: Cluster) -> list[Number]:
    """Median and p95 of the switch at each delay of the NVML call."""
    numbers = []
    for delay_ms in DELAYS_MS:
        numbers += _measure(cluster, delay_ms)
    return numbers


def _measure(cluster: Cluster, delay_ms: int) -> list[Number]:
    cluster.settle()
    if delay_ms:
        for node in cluster.nodes.values():
            node.stub.add_fault(_SETTER, delay_ms=delay_ms)
    setter = cluster.node().execute([PYTHON, str(HERE / "setter_call.py"), "40"], as_root=True, check=True)
    setter_ms = median(json.loads(setter.stdout)) * 1000
    for node in cluster.nodes.values():
        node.stub.clear_calls()

    nodes = len(cluster.nodes)
    edges_file = cluster.work / f"switch-{delay_ms}.edges"
    trips_file = cluster.work / f"switch-{delay_ms}.trips"
    echo = f"{PYTHON} {HERE / 'echo.py'} ask {_ROUNDS} 0.05 {nodes} -- {shlex.join(_far_end(cluster))}"
    train = trainer_command(cluster, edges_file, f"--updates {UPDATES} --phases {_PHASES}")
    gpus = len(cluster.node().stub)
    script = f"{echo} > {trips_file} && {train}"
    job = completed(cluster.run(script, f"-N{nodes}", f"--gres=gpu:{gpus}", "--eerl", timeout_s=180))
    trip_ms = median(json.loads(trips_file.read_text())) * 1000

    switches_ms, incomplete = _switches_ms(cluster, read_edges(edges_file), nodes * gpus)
    events = ledger(cluster, job)
    answered_ms = [e["latency_s"] * 1000 for e in events if e["ev"] == "clock" and e["mhz"] is not None]
    pings_ms = [e["clock_offset_error_s"] * 2000 for e in events if e["ev"] == "node" and e["clock_offset_s"]]
    note = (
        f"phase switch, NVML {delay_ms} ms: {len(switches_ms)} switches of {nodes} × {gpus} GPUs, {incomplete} "
        f"incomplete; one NVML call {setter_ms:.2f} ms, echo through srun {trip_ms:.2f} ms; order to last answer "
        f"{median(answered_ms):.1f} ms (median); fastest ping {max(pings_ms, default=float('nan')):.2f} ms"
    )
    reference = setter_ms + trip_ms
    what = "one NVML setter call + an echo through srun to all nodes, medians of the same run"
    name = f"phase switch, NVML {delay_ms} ms"
    return [
        Number(f"{name}: median", "ms", median(switches_ms), reference, what, 2.0, True, note),
        Number(f"{name}: p95", "ms", quantile(switches_ms, 0.95), reference, what, 2.0, True),
    ]


def _far_end(cluster: Cluster) -> list[str]:
    """The agents' own srun line with an echo in the agent's place."""
    allocation = Allocation(job_id=0, nodes=tuple(cluster.nodes))
    argv = agent_argv(allocation, PYTHON)
    return [*argv[: argv.index(PYTHON)], PYTHON, "-I", str(HERE / "echo.py"), "answer"]


def _switches_ms(cluster: Cluster, edges: list[Edge], gpus: int) -> tuple[list[float], int]:
    """Each marker's way to the end of the last setter call it caused, and how many switches lack calls."""
    calls = sorted(
        (call.t_ns, call.end_ns, call.args)
        for node in cluster.nodes.values()
        for call in node.calls(_SETTER)
        if call.result == 0
    )
    begins = [edge for edge in edges if edge.begins and edge.update > 2]
    taken_ms, incomplete = [], 0
    for edge, following in zip(begins, [*begins[1:], None], strict=True):
        until = following.t_ns if following else edge.t_ns + 1_000_000_000
        ends = [
            end_ns
            for t_ns, end_ns, arguments in calls
            if edge.t_ns <= t_ns < until and arguments.endswith(f"max={_CLOCKS_MHZ[edge.phase]}")
        ]
        if len(ends) == gpus:
            taken_ms.append((max(ends) - edge.t_ns) / 1e6)
        else:
            incomplete += 1
    return taken_ms, incomplete
