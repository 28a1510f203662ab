"""The shipped job scripts run as they are on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rig.cluster import Cluster
from slurm.scripts import JOB, PYTHON, leftovers

EXAMPLES = Path(__file__).parents[2] / "slurm_examples"
ENVIRONMENT = {"EERL_BIN": str(Path(PYTHON).parent), "EERL_EXAMPLES": str(EXAMPLES)}

pytestmark = pytest.mark.slurm


def test_simulated_job(cluster: Cluster) -> None:
    """The simulated job needs no GPU and leaves a report that says the GPUs were simulated."""
    script = (EXAMPLES / "simulated.sbatch").read_text().replace('"$@"', "--updates 4")

    job = cluster.run(script, env=ENVIRONMENT)

    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.errors
    report = (cluster.work / f"eerl-{job.job_id}" / "report.txt").read_text()
    assert "SIMULATED" in report.splitlines()[0].upper() + report.splitlines()[1].upper()
    assert leftovers(cluster) == []


def test_colocated_job(cluster: Cluster) -> None:
    """Any command goes behind colocated.sbatch; its exit code is the job's and both nodes are measured."""
    command = f"{JOB} --updates 3 --generation 1.2 --training 1.2 --exit 6"
    script = (EXAMPLES / "colocated.sbatch").read_text().replace("set -eu", f"set -eu\nset -- {command}", 1)

    job = cluster.run(script, env=ENVIRONMENT)

    assert job.exit_code == 6, job.errors
    report = json.loads((cluster.work / f"eerl-{job.job_id}" / "report.json").read_text())
    assert (report["allocation"]["nodes_seen"], report["allocation"]["gpus_measured"]) == (2, 4)
    # The job works on its first node alone.
    assert [round(gpu["idle_fraction"]) for gpu in report["gpus"]] == [0, 0, 1, 1]
    assert [gpu["achieved_mhz"] is None for gpu in report["gpus"]] == [False, False, True, True]
    assert [gpu["slowed_fraction"] for gpu in report["gpus"]] == [0.0] * 4
    assert leftovers(cluster) == []


def test_colocated_job_without_a_command(cluster: Cluster) -> None:
    """Without a command the script says how it is used."""
    job = cluster.run((EXAMPLES / "colocated.sbatch").read_text(), env=ENVIRONMENT)

    assert job.exit_code == 2
    assert "usage: sbatch" in job.errors
