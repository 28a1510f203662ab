"""A plain TRL script on a real Slurm cluster: two nodes, plugin, adapter, fixed clocks, report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from adapters.environments import trl_python
from rig.cluster import Cluster
from rig.jobs import Job
from slurm.scripts import PYTHON, leftovers, touched_gpus

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "slurm_examples" / "trl_grpo.sbatch"
UPDATES = 5
#: Phases of seconds, so that clocks are switched for them (below a second they are not).
SIZE = ("--hidden", "256", "--responses", "64", "--max-tokens", "160")

pytestmark = [pytest.mark.slurm, pytest.mark.trl, pytest.mark.slow, pytest.mark.timeout(1500)]


def train(cluster: Cluster, python: str, updates: int, *options: str) -> Job:
    """The shipped batch script with this interpreter, to its end."""
    policy = cluster.work / "fixed.yaml"
    policy.write_text("policy: fixed\nfixed: {generation_mhz: 1500, training_mhz: 1200}\n")
    env = {
        "EERL_BIN": str(Path(PYTHON).parent),
        "EERL_EXAMPLES": str(SCRIPT.parent),
        "EERL_POLICY": str(policy),
        "PYTHON": python,
        "OMP_NUM_THREADS": "1",
    }
    script = SCRIPT.read_text().replace('"$@"', " ".join(["--updates", str(updates), *options]))
    return cluster.run(script, timeout_s=600, env=env)


def check_updates(cluster: Cluster, job: Job, updates: int, responses: int) -> None:
    """Each update's tokens are those of TRL's own log, printed by TRL: mean length times the number of responses."""
    means = [float(mean) for mean in re.findall(r"'completions/mean_length': '?([\d.e+]+)", job.output)]
    assert len(means) == updates
    lines = (cluster.work / f"eerl-{job.job_id}" / "updates.csv").read_text().splitlines()
    columns = lines[0].split(",")
    rows = [dict(zip(columns, line.split(","), strict=True)) for line in lines[1:]]
    assert [int(row["update"]) for row in rows] == list(range(updates))
    for row, mean in zip(rows, means, strict=True):
        assert int(row["generated_tokens"]) == pytest.approx(responses * mean, rel=1e-3)
        assert row["valid_tokens"] == row["generated_tokens"]


def test_trl_job_on_two_nodes(cluster: Cluster) -> None:
    """The report has TRL's own token counts and both nodes' GPUs; clocks were set for both phases and are home."""
    job = train(cluster, str(trl_python()), UPDATES, *SIZE)

    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.errors
    assert f"{UPDATES} optimizer steps done" in job.output
    report = json.loads((cluster.work / f"eerl-{job.job_id}" / "report.json").read_text())
    assert (report["allocation"]["nodes_seen"], report["allocation"]["gpus_measured"]) == (2, 4)
    assert report["allocation"]["energy_j"] > 0
    assert all(check["ok"] for check in report["checks"])
    check_updates(cluster, job, UPDATES, responses=64)
    for name in ("n1", "n2"):
        set_to = {
            call.args
            for call in cluster.node(name).stub.setter_calls()
            if call.function == "nvmlDeviceSetGpuLockedClocks"
        }
        assert {"min=345 max=1500", "min=345 max=1200"} <= set_to
        assert touched_gpus(cluster, name) == {0, 1}
    assert leftovers(cluster) == []


def test_two_ranks(cluster: Cluster) -> None:
    """With torchrun before the script, which is the same, counts are the sums over both ranks."""
    torchrun = cluster.work / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {trl_python()} -m torch.distributed.run --nproc-per-node=2 "$@"\n')
    torchrun.chmod(0o755)

    job = train(cluster, str(torchrun), 3)

    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.errors
    check_updates(cluster, job, 3, responses=16)
    assert leftovers(cluster) == []
