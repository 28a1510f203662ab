"""Jobs that share a node: nobody touches the other's GPUs (read from the stub's call log)."""

from __future__ import annotations

import pytest
from rig.cluster import Cluster, MakeCluster, wait_for
from slurm.scripts import CLIENT, leftovers, touched_gpus

pytestmark = pytest.mark.slurm


def test_two_jobs_on_one_node(cluster: Cluster) -> None:
    """The end of job A produces no call on B's GPUs, and B's clocks survive it."""
    node = cluster.node("n1")
    first = cluster.sbatch(f"{CLIENT} --lock 900 --hold 60", "--gres=gpu:2", "--eerl", "-w", "n1")
    wait_for(lambda: node.stub.locked_mhz(1), "A's lock")
    second = cluster.sbatch(f"{CLIENT} --lock 1200 --hold 60", "--gres=gpu:2", "--eerl", "-w", "n1")
    wait_for(lambda: node.stub.locked_mhz(3), "B's lock")
    calls_before = len(node.stub.setter_calls(2)) + len(node.stub.setter_calls(3))

    cluster.scancel(str(first))
    cluster.wait_end(first)

    assert node.stub.at_default(0) and node.stub.at_default(1)
    assert [node.stub.locked_mhz(gpu) for gpu in (2, 3)] == [(345, 1200)] * 2
    assert len(node.stub.setter_calls(2)) + len(node.stub.setter_calls(3)) == calls_before
    cluster.scancel(str(second))
    cluster.wait_end(second)
    assert leftovers(cluster) == []


def test_a_neighbour_without_eerl_is_left_alone(cluster: Cluster) -> None:
    """A site's own lock on GPUs of another job is neither raised nor reset."""
    node = cluster.node("n1")
    for gpu in (2, 3):
        node.stub.lock_from_outside(gpu, 345, 1410)

    cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:2", "--eerl", "-w", "n1")

    assert touched_gpus(cluster, "n1") == {0, 1}
    assert [node.stub.locked_mhz(gpu) for gpu in (2, 3)] == [(345, 1410)] * 2


def test_a_job_cannot_lock_another_jobs_gpu(cluster: Cluster) -> None:
    """Naming a foreign UUID is refused and sets nothing."""
    foreign = cluster.node("n1").stub.uuid(3)

    job = cluster.run(f"{CLIENT} --lock 900 --uuid {foreign}", "--gres=gpu:1", "--eerl", "-w", "n1")

    assert ": err " in job.output
    assert cluster.node("n1").stub.setter_calls() == []


def test_shards_of_one_gpu(make_cluster: MakeCluster) -> None:
    """When a second job gets a share of a job's GPU, the first loses its lock and neither gets another."""
    cluster = make_cluster(nodes=1, gpus=2, shards=4, plugstack="shared_gpus=yes")
    stub = cluster.node(0).stub
    first = cluster.sbatch(f"{CLIENT} --lock 900 --hold 600", "--gres=shard:1", "--eerl")
    wait_for(lambda: stub.locked_mhz(0), "the first job's lock")

    second = cluster.run(f"{CLIENT} --lock 1200", "--gres=shard:1", "--eerl")

    assert stub.at_default()
    assert f"job {first}'s as well" in second.output, second.output
    assert "max=1200" not in " ".join(call.args for call in stub.setter_calls())


def test_device_numbers_that_differ_from_nvmls(make_cluster: MakeCluster) -> None:
    """Slurm's GPU 0 is /dev/nvidia0, which NVML counts as 2: only that one is locked, or none when not proven."""
    cluster = make_cluster(nodes=1, gpus=4, minors=(2, 3, 0, 1), plugstack="gpu_order=minor")

    cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl")

    assert touched_gpus(cluster, "n1") == {2}
    assert leftovers(cluster) == []


def test_device_numbers_that_cannot_be_told_apart(make_cluster: MakeCluster) -> None:
    """Without the admin's word on the order a node whose numberings differ is not clocked, and says why."""
    cluster = make_cluster(nodes=1, gpus=4, minors=(2, 3, 0, 1))

    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl")

    assert cluster.node(0).stub.setter_calls() == []
    assert "gpu_order" in job.output, job.output
