"""Command lines that the jobs of these tests run, and what every job must leave behind."""

from __future__ import annotations

import json
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rig.cluster import Cluster
from rig.jobs import Job

RIG = Path(__file__).resolve().parents[1] / "rig"
PYTHON = os.path.normpath(sys.executable)
CLIENT = f"{PYTHON} -I {RIG / 'broker_client.py'}"
JOB = f"{PYTHON} {RIG / 'job.py'}"

OURS = r"eerl-clockd|eerl_launch\.|bin/eerl-run"

#: Nothing may stay locked longer than this after the end of a job's last part.
HOME_WITHIN_S = 15.0


def leftovers(cluster: Cluster, *, killed: bool = False) -> list[str]:
    """What a job must not leave on any node; empty when clocks are home and everything is forgotten.

    What was ``killed`` with -9 cannot take its own folder out of /dev/shm along.
    """
    found = []
    for name, node in cluster.nodes.items():
        found += [
            f"{name}: GPU {gpu} not at default"
            for gpu in range(len(node.stub))
            if not node.stub.at_default(gpu)
        ]
        found += [f"{name}: /run/eerl/{path}" for path in node.run_eerl()]
        found += [f"{name}: {process.command}" for process in node.processes(OURS)]
        folders = (node.root / "dev/shm").glob(f"eerl-{cluster.user.pw_uid}-*")
        found += [f"{name}: {path.name}" for path in folders if not killed]
        found += [f"{name}: pid {pid} still holds NVML" for pid in node.stub.clients()]
    return found


def touched_gpus(cluster: Cluster, node: str) -> set[int]:
    """The GPUs of a node on which anything was set or reset, by the call log."""
    stub = cluster.node(node).stub
    uuids = {call.uuid for call in stub.setter_calls()}
    return {gpu for gpu in range(len(stub)) if stub.uuid(gpu) in uuids}


@dataclass(frozen=True, slots=True)
class Run:
    """What eerl-run has left of a job."""

    job: Job
    folder: Path
    report: dict[str, Any]
    text: str
    ledger: list[dict[str, Any]]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The ledger's lines of one kind."""
        return [line for line in self.ledger if line["ev"] == name]

    @property
    def ours(self) -> list[str]:
        """Our own lines on standard error: Slurm has things of its own to say there."""
        return [line for line in self.job.errors.splitlines() if line.startswith("eerl: ")]

    def node(self, name: str) -> dict[str, Any]:
        """A node of the report."""
        return next(node for node in self.report["nodes"] if node["node"] == name)


FIXED = "policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n"
GOVERNOR = "policy: governor\n"


def eerl_run(cluster: Cluster, job_arguments: str, *, policy: str = FIXED, options: str = "") -> str:
    """The command line of a run of the RL-shaped job under eerl-run, with this policy."""
    path = cluster.work / f"policy-{zlib.crc32(policy.encode()):08x}.yaml"
    path.write_text(policy)
    return f"eerl-run --policy {path} {options} -- {JOB} {job_arguments}"


def read_run(cluster: Cluster, job: Job, restart: int = 0) -> Run:
    """The run folder of a job's attempt; a missing report is an error of the test."""
    folder = cluster.work / (f"eerl-{job.job_id}.{restart}" if restart else f"eerl-{job.job_id}")
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text(), parse_constant=_no_constant)
    return Run(job, folder, report, (folder / "report.txt").read_text(), ledger)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def make_report(cluster: Cluster, job_id: int) -> str:
    """``eerl report`` on the ledger of a run that was killed, by its user on a node."""
    command = f"{Path(PYTHON).parent}/eerl"
    done = cluster.node().execute([command, "report", str(cluster.work / f"eerl-{job_id}")])
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_job(cluster: Cluster, script: str, *arguments: str, timeout_s: float = 120.0) -> Run:
    """Submit a script that calls eerl-run once, wait, and read what it left."""
    job = cluster.run(script, *arguments, timeout_s=timeout_s)
    try:
        return read_run(cluster, job)
    except FileNotFoundError as missing:
        raise AssertionError(
            f"{missing}; job: {job.state} {job.exit_code}\n{job.output}{job.errors}"
        ) from missing
