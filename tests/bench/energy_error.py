"""The report's joules beside the stub's own integral: a whole run of a minute, and every phase of it."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from itertools import pairwise
from typing import Any

from bench.measured import Number, median
from bench.rig_jobs import Edge, completed, ledger, read_edges, run_folder, trainer_command
from rig.cluster import Cluster
from rig.node import Node

UPDATES = 11
#: Lengths that are no multiple of the counter's period, and vary.
_PHASES = "generation:2.33,logprob:1.07,training:1.71,refit:0.47"
#: The counter is published this often; an edge cannot be known better.
COUNTER_PERIOD_S = 0.1


class _Truth:
    """The exact integral of all GPUs of a node, read every 10 ms, so that it is known at any instant."""

    def __init__(self, node: Node) -> None:
        self._stub = node.stub
        self._times_ns: list[int] = []
        self._joules: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.wait(0.01):
            joules = self._stub.true_energy_mj() / 1000
            self._times_ns.append(time.monotonic_ns())
            self._joules.append(joules)

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self._thread.join()

    def at_j(self, t_ns: float) -> float:
        """The integral at an instant of CLOCK_MONOTONIC, interpolated over 10 ms."""
        right = min(max(bisect_left(self._times_ns, t_ns), 1), len(self._times_ns) - 1)
        t0, t1 = self._times_ns[right - 1], self._times_ns[right]
        j0, j1 = self._joules[right - 1], self._joules[right]
        return j0 + (j1 - j0) * (t_ns - t0) / (t1 - t0)


def measure(cluster: Cluster) -> list[Number]:
    """Error of the job's energy in percent; of its phases in units of power × one counter period per edge."""
    cluster.settle()
    node = cluster.node()
    node.stub.log_all()
    gpus = len(node.stub)
    edges_file = cluster.work / "energy.edges"
    train = trainer_command(cluster, edges_file, f"--updates {UPDATES} --phases {_PHASES} --jitter 0.2")
    truth = _Truth(node)
    try:
        job = cluster.run(train, "-w", node.name, f"--gres=gpu:{gpus}", "--eerl", timeout_s=180)
    finally:
        truth.end()
    completed(job)
    edges, events = read_edges(edges_file), ledger(cluster, job)
    report = json.loads((run_folder(cluster, job) / "report.json").read_text())
    return [_job(node, truth, report), _updates(edges, events), *_phases(edges, events)]


def _job(node: Node, truth: _Truth, report: dict[str, Any]) -> Number:
    """The report's total beside the integral from the first to the last reading of each GPU's counter."""
    reads = node.calls("nvmlDeviceGetTotalEnergyConsumption")
    true_j = truth.at_j(max(r.end_ns for r in reads[-len(node.stub) :])) - truth.at_j(
        max(r.end_ns for r in reads[: len(node.stub)])
    )
    measured_j = report["allocation"]["energy_j"]
    percent = 100 * abs(measured_j / true_j - 1)
    span_s = (reads[-1].t_ns - reads[0].t_ns) / 1e9
    note = (
        f"job energy: the report says {measured_j:,.0f} J, the stub's integral between the first and the last "
        f"reading of the counters ({span_s:.1f} s) is {true_j:,.0f} J"
    )
    return Number("job energy, whole run: error", "percent", percent, target=0.5, note=note)


def _updates(edges: list[Edge], events: list[dict[str, Any]]) -> Number:
    """The updates of the ledger beside the integral that the trainer read at the first and the last edge."""
    begins = [edge for edge in edges if edge.begins and edge.phase == "generation"]
    lines = [event for event in events if event["ev"] == "update"][: len(begins) - 1]
    measured_j = sum(sum(line["gpu_energy_j"].values()) for line in lines)
    true_j = begins[-1].true_j - begins[0].true_j
    percent = 100 * abs(measured_j / true_j - 1)
    seconds = (begins[-1].t_ns - begins[0].t_ns) / 1e9
    note = f"energy of updates: {len(lines)} updates in {seconds:.1f} s, {measured_j:,.0f} J beside {true_j:,.0f} J"
    return Number("energy of all updates but the last: error", "percent", percent, target=0.5, note=note)


def _phases(edges: list[Edge], events: list[dict[str, Any]]) -> list[Number]:
    """Error of each phase beside the power at its edges × one counter period.

    An edge that is placed wrongly by some milliseconds moves joules at the power of whichever side draws more.
    """
    found = {(e["update"], e["phase"]): e["energy_j"] for e in events if e["ev"] == "phase"}
    spans = list(pairwise(edges))  # a phase, or the moment between two phases
    power_w = [(end.true_j - begin.true_j) / (end.t_ns - begin.t_ns) * 1e9 for begin, end in spans]
    phases = [place for place, (begin, _) in enumerate(spans) if begin.begins]
    shares, own_shares, percents = [], [], []
    for before, here, after in zip([phases[0], *phases], phases, [*phases[1:], phases[-1]], strict=False):
        begin, end = spans[here]
        true_j = end.true_j - begin.true_j
        error_j = abs(found[begin.update, begin.phase] - true_j)
        bound_j = sum(max(power_w[here], power_w[other]) * COUNTER_PERIOD_S for other in (before, after))
        shares.append(error_j / bound_j)
        own_shares.append(error_j / (2 * power_w[here] * COUNTER_PERIOD_S))
        percents.append(100 * error_j / true_j)
    note = (
        f"energy of a phase: {len(shares)} phases of 0.5 to 2.5 s; the bound is 0.1 s × the power at each of the two "
        f"edges, the higher of both sides; by the phase's own power alone the worst is {max(own_shares):.2f}; the "
        f"median phase is off by {median(percents):.2f} % of its joules"
    )
    return [
        Number("energy of a phase, error in bounds: median", "ratio", median(shares), target=1.0, note=note),
        Number("energy of a phase, error in bounds: worst", "ratio", max(shares), target=1.0),
    ]
