"""Runs of the bench's trainer on the rig's cluster, and what they left."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.cluster import Cluster
from rig.jobs import Job

HERE = Path(__file__).resolve().parent
PYTHON = os.path.normpath(sys.executable)
FIXED = "policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n"


@dataclass(frozen=True, slots=True)
class Edge:
    """One marker of the trainer: CLOCK_MONOTONIC just before it, and the GPUs' true energy until then."""

    update: int
    phase: str
    begins: bool
    t_ns: int
    true_j: float


def policy_file(cluster: Cluster, text: str = FIXED) -> Path:
    """A policy file that jobs can read."""
    path = cluster.work / "bench-policy.yaml"
    path.write_text(text)
    return path


def trainer_command(cluster: Cluster, edges: Path, arguments: str) -> str:
    """The trainer under eerl-run with fixed clocks."""
    return (
        f"eerl-run --policy {policy_file(cluster)} -- "
        f"{PYTHON} {HERE / 'trainer.py'} --edges {edges} {arguments}"
    )


def read_edges(path: Path) -> list[Edge]:
    """What the trainer noted."""
    edges = []
    for line in path.read_text().splitlines():
        update, phase, kind, t_ns, true_mj = line.split()
        edges.append(Edge(int(update), phase, kind == "begin", int(t_ns), float(true_mj) / 1000))
    return edges


def completed(job: Job) -> Job:
    """The job itself; RuntimeError with its output when it did not end well."""
    if (job.state, job.exit_code) != ("COMPLETED", 0):
        raise RuntimeError(f"the job ended {job.state}, exit {job.exit_code}:\n{job.output}{job.errors}")
    return job


def run_folder(cluster: Cluster, job: Job) -> Path:
    """Where eerl-run left ledger and report of this job."""
    return cluster.work / f"eerl-{job.job_id}"


def ledger(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    """The events of the job's ledger."""
    text = (run_folder(cluster, job) / "ledger.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
