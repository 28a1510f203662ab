"""From the marker to the last GPU locked: 4 nodes of 8 stub GPUs, beside one NVML call and one channel round trip."""

from __future__ import annotations

import json
import shlex

from bench.measured import Number, median, quantile
from bench.rig_jobs import HERE, PYTHON, Edge, completed, ledger, read_edges, trainer_command
from rig.cluster import Cluster

from eerl_launch.slurm import Allocation, agent_argv

#: Delay of the setter and of each read, ms. On real drivers reads take a millisecond or more as well, and a switch
#: must not wait for the readings that an edge causes.
DELAYS_MS = ((0, 0), (15, 0), (15, 2))
UPDATES = 12
#: Longer than the second below which a phase keeps the clock it finds.
_PHASES = "generation:1.15,training:1.15"
_CLOCKS_MHZ = {"generation": 1500, "training": 1200}
_SETTER = "nvmlDeviceSetGpuLockedClocks"
_READS = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo")
_ROUNDS = 40


def measure(cluster: Cluster) -> list[Number]:
    """Median and p95 of the switch at each delay of the NVML calls."""
    numbers = []
    for setter_ms, read_ms in DELAYS_MS:
        numbers += _measure(cluster, setter_ms, read_ms)
    return numbers


def _measure(cluster: Cluster, delay_ms: int, read_ms: int) -> list[Number]:
    cluster.settle()
    delays = {_SETTER: delay_ms, **dict.fromkeys(_READS, read_ms)}
    for node in cluster.nodes.values():
        for function, wait_ms in delays.items():
            if wait_ms:
                node.stub.add_fault(function, delay_ms=wait_ms)
    setter = cluster.node().execute([PYTHON, str(HERE / "setter_call.py"), "40"], as_root=True, check=True)
    setter_s = json.loads(setter.stdout)
    for node in cluster.nodes.values():
        node.stub.clear_calls()

    nodes, gpus = len(cluster.nodes), len(cluster.node().stub)
    edges_file = cluster.work / f"switch-{delay_ms}-{read_ms}.edges"
    trips = {way: cluster.work / f"switch-{delay_ms}-{read_ms}.{way}" for way in ("bare", "agents")}
    script = [
        f"{PYTHON} {HERE / 'echo.py'} {way} {_ROUNDS} {nodes} -- {_far_end(cluster, way)} > {file}"
        for way, file in trips.items()
    ]
    script.append(trainer_command(cluster, edges_file, f"--no-load --updates {UPDATES} --phases {_PHASES}"))
    job = completed(
        cluster.run(
            "set -e\n" + "\n".join(script), f"-N{nodes}", f"--gres=gpu:{gpus}", "--eerl", timeout_s=180
        )
    )
    bare_s, trip_s = (json.loads(file.read_text()) for file in trips.values())

    switches_ms, incomplete = _switches_ms(cluster, read_edges(edges_file), nodes * gpus)
    orders = [e for e in ledger(cluster, job) if e["ev"] == "clock" and e["mhz"] is not None]
    order_ms = median([order["latency_s"] for order in orders]) * 1000
    name = f"phase switch, NVML {delay_ms} ms" + (f", reads {read_ms} ms" if read_ms else "")
    note = (
        f"{name}: {len(switches_ms)} switches of {nodes} × {gpus} GPUs, {incomplete} incomplete; medians: "
        f"one NVML call {median(setter_s) * 1000:.2f} ms, ping to the last of {nodes} agents' pong "
        f"{median(trip_s) * 1000:.2f} ms (srun alone, with a bare echo: {median(bare_s) * 1000:.2f} ms), "
        f"the session's order to the last answer {order_ms:.1f} ms; all {nodes} nodes share this machine's cores"
    )
    return [
        Number(
            f"{name}: {which}",
            "ms",
            quantile(switches_ms, share),
            (quantile(setter_s, share) + quantile(trip_s, share)) * 1000,
            f"{which} of one NVML setter call + {which} of the channel's round trip to all nodes, same job",
            target=2.0,
            target_of_ratio=True,
            note=note,
        )
        for which, share in (("median", 0.5), ("p95", 0.95))
    ]


def _far_end(cluster: Cluster, way: str) -> str:
    """The agents' own srun line, for agents or with an echo in their place."""
    argv = agent_argv(Allocation(job_id=0, nodes=tuple(cluster.nodes)), PYTHON)
    if way == "agents":
        return f"{shlex.join(argv)} --job-id $SLURM_JOB_ID"
    return shlex.join([*argv[: argv.index(PYTHON)], PYTHON, "-I", str(HERE / "echo.py"), "answer"])


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
