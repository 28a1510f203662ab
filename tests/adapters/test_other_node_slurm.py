"""A trainer on another node than eerl-run's, started by srun on a real Slurm cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig.cluster import Cluster
from slurm.scripts import PYTHON, leftovers, run_job

STANDIN = Path(__file__).with_name("standin")
TRAIN = "from trl.trainer.grpo_trainer import GRPOTrainer; GRPOTrainer(phase_s=0.3).train()"

pytestmark = pytest.mark.slurm


def test_a_trainer_on_the_second_node(cluster: Cluster) -> None:
    """Its markers reach the session through that node's agent, also when the step's environment has no SLURM_*."""
    strip = "env -u EERL_SOCKET -u SLURM_JOB_ID -u SLURM_JOB_NODELIST -u SLURM_PROCID"
    step = f"srun --nodes=1 --ntasks=1 --nodelist=n2 --overlap {strip} {PYTHON} -c '{TRAIN}'"
    script = f"export PYTHONPATH={STANDIN}\neerl-run -- {step}"

    run = run_job(cluster, script, "-N2", "--gres=gpu:2", "--eerl")

    assert run.job.exit_code == 0, run.job.errors
    updates = run.events("update")
    assert [event["label"] for event in updates] == [0, 1, 2]
    assert [event["record"]["valid_tokens"] for event in updates] == [15, 15, 15]
    assert all(event["record"]["phases"]["generation"]["elapsed_s"] > 0.25 for event in updates)
    assert "without framework adapters" not in run.job.errors
    assert leftovers(cluster) == []
