"""kill -9 of every part that could have brought the clocks home: another part does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rig.cluster import Cluster, wait_for
from rig.node import Node
from rig.processes import end
from slurm.scripts import CLIENT, HOME_WITHIN_S, leftovers

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster_wishes() -> dict[str, Any]:
    return {"plugstack": "lease_s=5"}


@pytest.fixture
def locked(cluster: Cluster) -> tuple[int, Node]:
    """A job on n1 whose GPU 0 is locked at 900 MHz by a client that keeps its lease."""
    job_id = cluster.sbatch(
        f"{CLIENT} --lock 900 --hold 600; sleep 600", "--gres=gpu:1", "--eerl", "-w", "n1"
    )
    node = cluster.node("n1")
    wait_for(lambda: node.stub.locked_mhz(0), "the lock")
    return job_id, node


def kill_worker(job_id: int, node: Node) -> None:
    end(node.brokers(job_id)[1:])


def kill_supervisor(job_id: int, node: Node) -> None:
    end(node.brokers(job_id)[:1])


def kill_both(job_id: int, node: Node) -> None:
    end(node.brokers(job_id))


def test_a_broker_is_a_supervisor_and_a_worker(locked: tuple[int, Node]) -> None:
    """Two processes of root serve a job; only one of them holds NVML."""
    job_id, node = locked

    supervisor, worker = node.brokers(job_id)

    assert worker.ppid == supervisor.pid
    assert (supervisor.uid, worker.uid) == (0, 0)
    assert node.stub.clients() == (worker.pid,)


def test_the_worker_dies(cluster: Cluster, locked: tuple[int, Node]) -> None:
    """The supervisor resets the clocks, and a new worker serves the job."""
    job_id, node = locked

    kill_worker(job_id, node)

    wait_for(lambda: node.stub.at_default(), "the supervisor's reset", HOME_WITHIN_S)
    ask = ("srun", f"--jobid={job_id}", "--overlap", "--gres=none", *CLIENT.split(), "--sample")
    wait_for(
        lambda: "energy_mj=" in cluster.command(*ask, check=False).stdout, "the new worker", HOME_WITHIN_S
    )
    cluster.scancel(str(job_id))
    assert cluster.wait_end(job_id).state == "CANCELLED"
    assert leftovers(cluster) == []


@pytest.mark.parametrize("murder", [kill_supervisor, kill_both], ids=["supervisor", "both"])
def test_broker_dies_and_the_job_ends(
    cluster: Cluster, locked: tuple[int, Node], murder: Callable[[int, Node], None]
) -> None:
    """Without a supervisor, or without any broker, the epilog brings the clocks home."""
    job_id, node = locked

    murder(job_id, node)
    cluster.scancel(str(job_id))

    assert cluster.wait_end(job_id).state == "CANCELLED"
    wait_for(lambda: leftovers(cluster) == [], "the clocks", HOME_WITHIN_S)


def test_slurmd_dies_and_the_job_ends_meanwhile(cluster: Cluster, locked: tuple[int, Node]) -> None:
    """With slurmd dead no epilog runs; the broker resets when its client goes, the epilog forgets later."""
    job_id, node = locked

    node.kill_slurmd()
    node.kill("broker_client")

    wait_for(lambda: node.stub.at_default(), "the broker's reset", HOME_WITHIN_S)
    cluster.scancel(str(job_id))
    node.restart_slurmd()
    cluster.wait_end(job_id)
    wait_for(lambda: leftovers(cluster) == [], "everything to be forgotten", HOME_WITHIN_S)


def test_slurmd_and_broker_die(cluster: Cluster, locked: tuple[int, Node]) -> None:
    """With slurmd and broker both dead, the clocks are home soon after slurmd has come back."""
    job_id, node = locked

    node.kill_slurmd()
    kill_both(job_id, node)
    node.kill("broker_client")
    still = node.stub.locked_mhz(0)
    cluster.scancel(str(job_id))
    node.restart_slurmd()

    wait_for(lambda: node.stub.at_default(), "the reset after slurmd's return", HOME_WITHIN_S)
    assert still == (345, 900)
    cluster.wait_end(job_id)
    assert leftovers(cluster) == []


def test_stepd_dies(cluster: Cluster, locked: tuple[int, Node]) -> None:
    """kill -9 of the job's slurmstepd leaves the client; when the job ends its clocks come home all the same."""
    job_id, node = locked

    node.kill_stepds()
    cluster.scancel(str(job_id))
    node.kill("broker_client")

    wait_for(lambda: node.stub.at_default(), "the reset", HOME_WITHIN_S)


def test_everything_of_the_node_dies(cluster: Cluster) -> None:
    """Job, brokers, stepds and slurmd die at once on one node; a job on another card sees a healed node."""
    job_id = cluster.sbatch(
        f"{CLIENT} --lock 900 --hold 600", "--gres=gpu:1", "--eerl", "-w", "n1", "--no-requeue"
    )
    node = cluster.node("n1")
    wait_for(lambda: node.stub.locked_mhz(0), "the lock")

    end(node.processes())
    before = node.stub.locked_mhz(0)
    cluster.scancel(str(job_id))
    node.restart_slurmd()
    wait_for(lambda: node.stub.at_default(), "the reset after slurmd's return", HOME_WITHIN_S)
    cluster.wait_end(job_id)
    holder = cluster.sbatch(
        "sleep 300", "--gres=gpu:1", "-w", "n1"
    )  # it gets the first card, the next job another
    cluster.wait_running(holder)
    job = cluster.run(f"{CLIENT} --lock 1200", "--gres=gpu:1", "--eerl", "-w", "n1")
    cluster.scancel(str(holder))
    cluster.wait_end(holder)

    assert before == (345, 900)
    assert "ok" in job.output
    assert node.stub.setter_calls(1), "the second job got the first card again"
    assert leftovers(cluster) == []
