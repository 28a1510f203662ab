"""The plugin's own trouble stays its own: jobs run, nodes stay in service, an admin finds one line."""

from __future__ import annotations

import pytest
from rig.cluster import REPO, Cluster, MakeCluster, wait_for
from slurm.scripts import CLIENT, leftovers

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("code", [18, 999])
def test_nvml_that_cannot_be_initialised(make_cluster: MakeCluster, code: int) -> None:
    """Even as "required" the plugin lets five jobs in a row complete on a node whose NVML fails, without a drain."""
    cluster = make_cluster(nodes=1, required=True)
    for function in ("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit"):
        cluster.node(0).stub.add_fault(function, code=code)

    jobs = [cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl") for _ in range(5)]

    assert [job.state for job in jobs] == ["COMPLETED"] * 5
    assert cluster.sinfo() == {"n1": "idle"}
    assert f"{code}" in jobs[0].output and "backend=none" in jobs[0].output, jobs[0].output
    assert leftovers(cluster) == []


def test_clocks_nobody_may_set(cluster: Cluster) -> None:
    """Code 4 on every setter: the lock is answered with the code, the job and the node go on."""
    stub = cluster.node("n1").stub
    for function in (
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetApplicationsClocks",
    ):
        stub.add_fault(function, code=4)

    job = cluster.run(f"{CLIENT} --lock 900 --sample", "--gres=gpu:1", "--eerl", "-w", "n1")

    assert job.state == "COMPLETED"
    assert "energy_mj=" in job.output
    assert "err 4" in job.output or "backend=none" in job.output
    assert cluster.sinfo()["n1"] == "idle"


def test_mig_is_never_clocked(cluster: Cluster) -> None:
    """With MIG on, nothing is set and the job hears why."""
    cluster.node("n1").stub.set(0, mig=1)

    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl", "-w", "n1")

    assert "MIG" in job.output, job.output
    assert cluster.node("n1").stub.setter_calls() == []


def test_fewer_gpus_than_slurm_believes(make_cluster: MakeCluster) -> None:
    """A GPU that Slurm counts and NVML does not is refused, not mistaken for another."""
    from nvml_stub.stub import Stub

    cluster = make_cluster(nodes=1, gpus=4)
    node = cluster.node(0)
    Stub.create(node.stub.directory, gpus=2, seed="n1").close()

    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:4", "--eerl")

    assert job.state == "COMPLETED"
    assert Stub(node.stub.directory).setter_calls() == []
    assert "backend=none" in job.output or "no broker" in job.output, job.output


def test_a_reset_that_fails_keeps_the_node_and_is_tried_again(cluster: Cluster) -> None:
    """By default the node stays in service, the failure is in syslog, and the next prolog heals the GPU."""
    node = cluster.node("n1")
    rule = node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, code=999)
    cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:2", "--eerl", "-w", "n1")
    stuck = [node.stub.locked_mhz(gpu) for gpu in (0, 1)]
    state = cluster.sinfo()["n1"]
    told = [line for line in node.syslog().splitlines() if node.stub.uuid(1) in line and "999" in line]
    node.stub.clear_faults(rule)

    cluster.run("true", "--gres=gpu:2", "--eerl", "-w", "n1")

    assert stuck == [None, (345, 900)]
    assert state == "idle"
    assert told, node.syslog()
    assert node.stub.at_default()


def test_a_reset_that_fails_drains_where_the_admin_wants_it(make_cluster: MakeCluster) -> None:
    """With on_reset_failure=drain and the shipped Epilog snippet the node is drained."""
    snippet = (REPO / "spank" / "epilog-eerl.sh").read_text()
    cluster = make_cluster(nodes=1, gpus=2, plugstack="on_reset_failure=drain", epilog=snippet)
    node = cluster.node(0)
    node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, code=999)

    cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:2", "--eerl")

    wait_for(lambda: "drain" in cluster.sinfo()["n1"], "the drain", 20)
    assert f"clocks not reset: {node.stub.uuid(1)}" in cluster.scontrol("show", "node", "n1")
    assert f"n1/unreset-{node.stub.uuid(1)}" in node.run_eerl()


def test_a_gpu_lost_midway(cluster: Cluster) -> None:
    """GPU 1 answers 15 from some moment on: the others are reset, the node stays."""
    node = cluster.node("n1")
    job_id = cluster.sbatch(f"{CLIENT} --lock 900 --hold 60", "--gres=gpu:4", "--eerl", "-w", "n1")
    wait_for(lambda: node.stub.locked_mhz(3), "the lock")
    node.stub.add_fault("*", gpu=1, code=15)

    cluster.scancel(str(job_id))
    cluster.wait_end(job_id)

    assert [node.stub.at_default(gpu) for gpu in range(4)] == [True, False, True, True]
    assert cluster.sinfo()["n1"] == "idle"


def test_a_reset_that_hangs_on_one_gpu(cluster: Cluster) -> None:
    """A call that does not return costs its own GPU: the others are home, the job's end is bounded."""
    node = cluster.node("n1")
    job_id = cluster.sbatch(f"{CLIENT} --lock 900 --hold 60", "--gres=gpu:2", "--eerl", "-w", "n1")
    wait_for(lambda: node.stub.locked_mhz(1), "the lock")
    node.stub.add_fault("nvmlDeviceResetGpuLockedClocks", gpu=1, delay_ms=90_000)

    cluster.scancel(str(job_id))
    job = cluster.wait_end(job_id, 75)

    assert job.state == "CANCELLED"
    assert node.stub.at_default(0)
    assert cluster.sinfo()["n1"] == "idle"


def test_a_file_gone_on_one_node(make_cluster: MakeCluster) -> None:
    """A node whose plugin file is missing runs jobs all the same; the other is served."""
    cluster = make_cluster(nodes=2, plugin_missing_on=("n2",))

    job = cluster.run(f"srun -N2 -n2 {CLIENT} --lock 900; exit 0", "-N2", "--gres=gpu:1", "--eerl")

    assert job.state == "COMPLETED"
    assert "n1 lock * 900: ok" in job.output and "n2 no broker" in job.output
    assert cluster.sinfo() == {"n1": "idle", "n2": "idle"}
    assert leftovers(cluster) == []


def test_an_unknown_key_keeps_the_plugin_inert(make_cluster: MakeCluster) -> None:
    """A typing error in plugstack.conf is named in the log; jobs run as if there were no plugin."""
    cluster = make_cluster(nodes=1, plugstack="default=on max_mhzz=1200")

    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1")

    assert "no broker" in job.output
    assert "max_mhzz" in cluster.node(0).log()
    assert cluster.node(0).stub.setter_calls() == []


def test_an_nvml_that_anyone_could_replace_is_not_loaded(make_cluster: MakeCluster) -> None:
    """A library that is not root's alone is never loaded by root."""
    cluster = make_cluster(nodes=1)
    (cluster.base / "lib" / "libnvidia-ml.so.1").chmod(0o777)

    job = cluster.run(f"{CLIENT} --lock 900", "--gres=gpu:1", "--eerl")

    assert "can be written by others" in job.output
    assert cluster.sinfo() == {"n1": "idle"}
    assert cluster.node(0).stub.setter_calls() == []


def test_the_admins_clamp_and_standing_limit(make_cluster: MakeCluster) -> None:
    """A wish outside the clamp is refused, and the site's own limit is back after a job that locked inside it."""
    cluster = make_cluster(
        nodes=1, gpus=1, plugstack="min_mhz=1000 max_mhz=1500 site_max_mhz=1700 default=on"
    )
    stub = cluster.node(0).stub
    outside = cluster.run(f"{CLIENT} --lock 600; {CLIENT} --lock 1800", "--gres=gpu:1")
    untouched = stub.setter_calls()

    job_id = cluster.sbatch(f"{CLIENT} --lock 1200 --hold 60", "--gres=gpu:1")
    during = wait_for(lambda: stub.locked_mhz(0), "the lock")
    cluster.scancel(str(job_id))
    cluster.wait_end(job_id)

    assert outside.output.count(": err ") == 2 and untouched == [], outside.output
    assert during == (345, 1200)
    assert stub.locked_mhz(0) == (345, 1695)  # 1700 is not a supported clock, and the limit is never exceeded


def test_a_slow_site_prolog_that_resets_the_gpus(make_cluster: MakeCluster) -> None:
    """NVML is not held during the prolog, so a site's own Prolog may still reset GPUs or switch MIG."""
    cluster = make_cluster(nodes=1, prolog="#!/bin/sh\nsleep 1\nexit 0\n")
    job_id = cluster.sbatch("sleep 1", "--gres=gpu:1", "--eerl")
    stub = cluster.node(0).stub

    seen = set()
    while not cluster.job(job_id).ended:
        seen |= set(stub.clients())

    assert seen == set()
    assert leftovers(cluster) == []
