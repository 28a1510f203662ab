"""The controller at work on a real cluster: calibration, search, confirmation, lock, in real time on stub GPUs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from nvml_stub.stub import Stub
from rig.cluster import Cluster
from slurm.scripts import eerl_run, leftovers, run_job

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

POLICY = "policy: {}\nmax_throughput_loss: 2%\n"
GENERATION_S, TRAINING_S = 1.3, 1.1


def true_update(stub: Stub, generation_mhz: int, training_mhz: int) -> tuple[float, float]:
    """Energy (J) and time (s) of an update on a GPU at these clocks, from the stub's own model; 0 is the governor."""
    energy_j = elapsed_s = 0.0
    for phase, work_s, mhz in (
        ("generation", GENERATION_S, generation_mhz),
        ("training", TRAINING_S, training_mhz),
    ):
        generating = phase == "generation"
        stub.set_load(0, generation=float(generating), training=float(not generating))
        stub.lock_from_outside(0, 345 if mhz else 0, mhz)
        speed = stub.generation_speed(0) if generating else stub.training_speed(0)
        energy_j += stub.power_w(0) * work_s / speed
        elapsed_s += work_s / speed
    return energy_j, elapsed_s


@pytest.mark.parametrize(("policy", "calibration"), [("paper", 10), ("eerl", 6)])
def test_a_run_that_finds_its_clocks(cluster: Cluster, tmp_path: Path, policy: str, calibration: int) -> None:
    """Work that follows the achieved clock: the controller tries lower clocks, and its saving is the true one."""
    truth = Stub.create(tmp_path, gpus=1)
    work = f"--updates 60 --generation {GENERATION_S} --training {TRAINING_S} --scale"

    run = run_job(
        cluster,
        eerl_run(cluster, work, policy=POLICY.format(policy)),
        "-w",
        "n1",
        "--gres=gpu:2",
        "--eerl",
        timeout_s=280,
    )

    states = run.report["controller"]["updates_by_state"]
    assert run.job.exit_code == 0, run.job.errors
    assert states["calibration"] >= calibration and states.get("search", 0) > 0, states
    assert run.report["controller"]["switch_failures"] == 0
    assert all(check["ok"] for check in run.report["checks"])
    assert leftovers(cluster) == []

    with (run.folder / "updates.csv").open() as file:
        updates = list(csv.DictReader(file))[1:]  # the first is the run's beginning
    clocks = [
        tuple(int(float(row[f"{phase}_requested_mhz"] or 0)) for phase in ("generation", "training"))
        for row in updates
    ]
    seen = [true_update(truth, *pair) for pair in clocks]
    governor = true_update(truth, 0, 0)
    true_saving = 100 * (1 - sum(energy for energy, _ in seen) / (governor[0] * len(seen)))
    true_change = 100 * (governor[1] * len(seen) / sum(elapsed for _, elapsed in seen) - 1)
    whole = run.report["result"]["whole"]
    assert len(set(clocks)) > 3, "the controller tried nothing"
    assert whole["saving_percent"] == pytest.approx(true_saving, abs=2.5)
    assert whole["throughput_change_percent"] == pytest.approx(true_change, abs=2.5)
