"""Command lines that the jobs of these tests run, and what every job must leave behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rig.cluster import Cluster

RIG = Path(__file__).resolve().parents[1] / "rig"
PYTHON = os.path.normpath(sys.executable)
CLIENT = f"{PYTHON} -I {RIG / 'broker_client.py'}"
JOB = f"{PYTHON} {RIG / 'job.py'}"

#: Nothing may stay locked longer than this after the end of a job's last part.
HOME_WITHIN_S = 15.0


def leftovers(cluster: Cluster) -> list[str]:
    """What a job must not leave on any node; empty when clocks are home and everything is forgotten."""
    found = []
    for name, node in cluster.nodes.items():
        found += [
            f"{name}: GPU {gpu} not at default"
            for gpu in range(len(node.stub))
            if not node.stub.at_default(gpu)
        ]
        found += [f"{name}: /run/eerl/{path}" for path in node.run_eerl()]
        found += [f"{name}: {process.command}" for process in node.brokers()]
        found += [f"{name}: pid {pid} still holds NVML" for pid in node.stub.clients()]
    return found


def touched_gpus(cluster: Cluster, node: str) -> set[int]:
    """The GPUs of a node on which anything was set or reset, by the call log."""
    stub = cluster.node(node).stub
    uuids = {call.uuid for call in stub.setter_calls()}
    return {gpu for gpu in range(len(stub)) if stub.uuid(gpu) in uuids}
