"""A grant lets a job lock its own GPUs, and whatever ends the job brings them home."""

from __future__ import annotations

import time

import pytest
from rig.cluster import Cluster, wait_for
from slurm.scripts import CLIENT, leftovers, touched_gpus

pytestmark = pytest.mark.slurm


def test_lock_on_both_nodes_and_home_after_the_job(cluster: Cluster) -> None:
    """The job's GPUs on both nodes are locked while it runs; afterwards all is at default and forgotten."""
    job_id = cluster.sbatch(f"srun -N2 -n2 {CLIENT} --lock 1203 --hold 3", "-N2", "--gres=gpu:2", "--eerl")
    stubs = [node.stub for node in cluster.nodes.values()]

    locked = wait_for(
        lambda: [[stub.locked_mhz(gpu) for gpu in range(4)] for stub in stubs if stub.locked_mhz(1)][1:],
        "both nodes to be locked",
    )
    job = cluster.wait_end(job_id)

    assert locked == [[(345, 1200), (345, 1200), None, None]]
    assert job.exit_code == 0, job.output
    for node in cluster.nodes.values():
        assert f"gpus={node.stub.uuid(0)},{node.stub.uuid(1)}" in job.output
        assert touched_gpus(cluster, node.name) == {0, 1}
    assert leftovers(cluster) == []


def test_the_broker_tells_what_the_contract_says(cluster: Cluster) -> None:
    """The answer to hello names backend, clamp, clocks, driver and indices; sample reads every GPU."""
    job = cluster.run(f"{CLIENT} --sample", "--gres=gpu:2", "--eerl")

    hello = dict(word.split("=", 1) for word in job.output.splitlines()[0].split(": ok ")[1].split())
    clocks = [int(mhz) for mhz in hello["clocks"].split(",")]
    assert hello["backend"] == "locked-clocks" and hello["driver"] == "580.105.08"
    assert (hello["min_mhz"], hello["max_mhz"], clocks[0], clocks[-1], len(clocks)) == (
        "345",
        "1980",
        345,
        1980,
        110,
    )
    assert hello["idx"] == "0,1" and hello["names"] == "NVIDIA_H100_80GB_HBM3,NVIDIA_H100_80GB_HBM3"
    assert job.output.splitlines()[1].count("energy_mj=") == 2


def test_a_job_that_sets_nothing_resets_nothing(cluster: Cluster) -> None:
    """Reading alone leaves no setter call, not even a reset at the end."""
    job = cluster.run(f"{CLIENT} --sample --hold 1", "--gres=gpu:2", "--eerl")

    assert "energy_mj=" in job.output
    assert cluster.node("n1").stub.setter_calls() == []
    assert leftovers(cluster) == []


def test_without_the_option_there_is_no_broker(cluster: Cluster) -> None:
    """The plugin leaves a job that did not ask for it alone."""
    job = cluster.run(f"{CLIENT} --lock 1200", "--gres=gpu:2")

    assert job.exit_code == 3 and "no broker" in job.output
    assert cluster.node("n1").stub.setter_calls() == []


@pytest.mark.parametrize("gres", [[], ["--gres=gpu:0"]], ids=["none", "zero"])
def test_a_job_without_gpus_gets_no_gpus(cluster: Cluster, gres: list[str]) -> None:
    """On a GPU node a job that asked for none sets none."""
    job = cluster.run(f"{CLIENT} --lock 1200; exit 5", "--eerl", *gres)

    assert job.exit_code == 5
    assert "no broker" in job.output
    assert cluster.node("n1").stub.setter_calls() == []
    assert leftovers(cluster) == []


def test_the_writers_silence_ends_its_lock(make_cluster: object, cluster: Cluster) -> None:
    """A writer that says nothing for the lease loses its lock while the job goes on."""
    job_id = cluster.sbatch(f"{CLIENT} --lock 900 --silent 30", "--gres=gpu:1", "--eerl", "-w", "n1")
    stub = cluster.node("n1").stub

    wait_for(lambda: stub.locked_mhz(0), "the lock")
    wait_for(lambda: stub.at_default(), "the lease to end the lock", 20)

    assert cluster.job(job_id).state == "RUNNING"


def test_a_writer_that_dies_ends_its_lock(cluster: Cluster) -> None:
    """kill -9 of the client resets the clocks at once, while the job goes on."""
    job_id = cluster.sbatch(
        f"{CLIENT} --lock 900 --hold 300; sleep 300", "--gres=gpu:1", "--eerl", "-w", "n1"
    )
    node = cluster.node("n1")
    wait_for(lambda: node.stub.locked_mhz(0), "the lock")

    node.kill("broker_client")

    wait_for(lambda: node.stub.at_default(), "the reset", 5)
    assert cluster.job(job_id).state == "RUNNING"


def test_scancel_at_any_moment(cluster: Cluster) -> None:
    """However early or late a job is cancelled (20 moments up to 2 s), nothing stays behind."""
    script = f"srun -N2 -n2 {CLIENT} --lock 900 --hold 60"
    jobs: dict[int, float] = {}
    started = {}
    for number in range(20):
        job_id = cluster.sbatch(script, "-N2", "--gres=gpu:2", "--eerl", "--mem=100")
        jobs[job_id] = 0.1 * number
        if len(jobs) % 2 == 0:  # two at a time fit onto the nodes
            for waiting in list(jobs)[-2:]:
                started[waiting] = cluster.wait_running(waiting)
            for waiting in sorted(list(jobs)[-2:], key=lambda one: jobs[one]):
                time.sleep(jobs[waiting] / 2)
                cluster.scancel(str(waiting))
            for waiting in list(jobs)[-2:]:
                assert cluster.wait_end(waiting).state == "CANCELLED"
            assert leftovers(cluster) == [], f"after cancelling {list(jobs)[-2:]}"

    locks = [call for call in cluster.node("n1").stub.setter_calls() if "SetGpu" in call.function]
    assert locks, "no job lived long enough to lock: the moments are too early"


def test_time_limit(cluster: Cluster) -> None:
    """A job that ignores TERM is killed at its limit, and its clocks come home."""
    script = f"trap '' TERM; srun -N2 -n2 sh -c 'trap \"\" TERM; {CLIENT} --lock 900 --hold 600'"
    job_id = cluster.sbatch(script, "-N2", "--gres=gpu:2", "--eerl", "-t5")
    stub = cluster.node("n2").stub
    wait_for(lambda: stub.locked_mhz(0), "the lock")

    cluster.scontrol("update", f"jobid={job_id}", "EndTime=now+1")  # its limit; slurmctld looks every 30 s
    job = cluster.wait_end(job_id, 120)

    assert job.state == "TIMEOUT"
    assert leftovers(cluster) == []


def test_requeue(cluster: Cluster) -> None:
    """A job that requeues itself starts its second attempt on clean clocks, with a broker of its own."""
    script = f"""{CLIENT} --lock 900 --hold 1
if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi
exit 6"""
    job_id = cluster.sbatch(script, "--gres=gpu:1", "--eerl", "--requeue", "-w", "n1")

    job = cluster.wait_second_attempt(job_id)

    assert (job.state, job.exit_code) == ("FAILED", 6)
    kinds = [
        "Reset" if "Reset" in call.function else "Set" for call in cluster.node("n1").stub.setter_calls(0)
    ]
    assert [a for a, b in zip(kinds, [None, *kinds], strict=False) if a != b] == [
        "Set",
        "Reset",
        "Set",
        "Reset",
    ]
    assert leftovers(cluster) == []


def test_only_the_jobs_user_gets_in(cluster: Cluster) -> None:
    """Another user cannot use the job's socket, and finds nothing of it that may be written."""
    job_id = cluster.sbatch("sleep 60", "--gres=gpu:1", "--eerl", "-w", "n1")
    cluster.wait_running(job_id)
    node = cluster.node("n1")
    socket_path = f"/run/eerl/n1/{job_id}/clock"
    wait_for((node.run_dir(job_id) / "clock").exists, "the socket")
    attempt = f"import socket; socket.socket(socket.AF_UNIX).connect('{socket_path}')"

    other = node.execute(
        ["setpriv", "--reuid=4999", "--regid=4999", "--clear-groups", CLIENT.split()[0], "-c", attempt],
        as_root=True,
    )
    writable = node.execute(["find", "/run/eerl", "-writable"])

    assert other.returncode == 1 and "Permission denied" in other.stderr, other.stderr
    assert writable.stdout.split() == [socket_path]


def test_audit_lines(cluster: Cluster) -> None:
    """Syslog tells an admin of the grant, the first lock and the reset, each with job and user."""
    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl", "-w", "n1")

    lines = [
        line
        for line in cluster.node("n1").syslog().splitlines()
        if str(job.job_id) in line and "eerl" in line
    ]
    assert any("grant" in line for line in lines), lines
    assert any("lock" in line for line in lines), lines
    assert any("reset" in line for line in lines), lines
