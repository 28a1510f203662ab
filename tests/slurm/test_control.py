"""The controller at work on a real cluster: calibration, search, confirmation, lock, in real time on stub GPUs."""

from __future__ import annotations

import pytest
from rig.cluster import Cluster
from slurm.scripts import eerl_run, leftovers, run_job

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

POLICY = "policy: eerl\nmax_throughput_loss: 2%\n"


def test_a_run_that_finds_its_clocks(cluster: Cluster) -> None:
    """Work that follows the achieved clock: the controller calibrates, tries lower clocks and saves energy."""
    work = "--updates 60 --generation 1.3 --training 1.1 --scale"

    run = run_job(
        cluster, eerl_run(cluster, work, policy=POLICY), "-w", "n1", "--gres=gpu:2", "--eerl", timeout_s=280
    )

    states = run.report["controller"]["updates_by_state"]
    assert run.job.exit_code == 0, run.job.errors
    assert states["calibration"] >= 10 and states.get("search", 0) > 0, states
    assert run.report["controller"]["clock_switches"] > 10
    assert run.report["controller"]["switch_failures"] == 0
    lowered = [plan for plan in run.events("plan") if plan["generation_mhz"] or plan["training_mhz"]]
    assert lowered and all((plan["generation_mhz"] or 1980) >= 345 for plan in lowered)
    assert run.report["result"]["estimate"] is True, run.text
    assert all(check["ok"] for check in run.report["checks"])
    assert leftovers(cluster) == []
