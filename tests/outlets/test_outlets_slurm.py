"""A job that sends its numbers on, on a real cluster, as an ordinary user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from rig.cluster import Cluster
from slurm.scripts import leftovers

TRAINER = Path(__file__).resolve().parents[2] / "slurm_examples" / "simulated_grpo.py"

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_the_jobs_comment_has_the_result_behind_the_users_words(cluster: Cluster) -> None:
    """The user's comment is kept; what an ordinary user may not set is told; the job ends with its own code."""
    file = cluster.work / "policy.yaml"
    file.write_text(
        "policy: governor\nreport: {formats: [txt], to: [openmetrics, slurm_comment, slurm_admin_comment]}\n"
    )
    command = f"python3 {TRAINER} --updates 3; exit 5"
    script = f"eerl-run --simulate h100:1x2 --time-scale 60 --policy {file} -- sh -c '{command}'"

    job = cluster.sbatch(script, "--comment=mine: keep, please")
    ended = cluster.wait_end(job, timeout_s=200)

    shown = cluster.scontrol("show", "job", str(job))
    comment = next(line.strip() for line in shown.splitlines() if line.strip().startswith("Comment="))
    assert re.fullmatch(
        r"Comment=mine: keep, please \| eerl: [\d.]+ kWh in \d+ s, incomplete, SIMULATED GPUs", comment
    )
    assert ended.exit_code == 5
    errors = ended.errors
    assert "slurm_admin_comment: " in errors and f"eerl report {cluster.work}/eerl-{job} --to" in errors
    text = (cluster.work / f"eerl-{job}" / "metrics.prom").read_text()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["eerl_job_energy_joules"] > 0
    assert leftovers(cluster) == []
