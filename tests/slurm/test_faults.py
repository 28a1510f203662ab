"""Faults while eerl-run works: the job's exit code is its own, clocks come home, the report says what happened."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from rig.cluster import Cluster, MakeCluster, wait_for
from rig.processes import end
from slurm.scripts import (
    FIXED,
    GOVERNOR,
    HOME_WITHIN_S,
    eerl_run,
    leftovers,
    make_report,
    read_run,
    run_job,
    touched_gpus,
)

pytestmark = pytest.mark.slurm

LONG = "--updates 6 --generation 1.2 --training 1.2"
ENDLESS = "--updates 1000 --generation 1.2 --training 1.2"
TWO_NODES = ("-N2", "--gres=gpu:2", "--eerl")
ONE_NODE = ("-w", "n1", "--gres=gpu:2", "--eerl")
SETTERS = (
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceSetApplicationsClocks",
)


def start_and_wait_for_a_lock(cluster: Cluster, arguments: str, *sbatch: str, node: str = "n1") -> int:
    """Submit a run with fixed clocks and return when they are set on the node."""
    job_id = cluster.sbatch(f"exec {eerl_run(cluster, arguments)}", *sbatch)
    wait_for(lambda: cluster.node(node).stub.locked_mhz(0), f"a lock on {node}")
    return job_id


def says(text: str, *words: str) -> bool:
    """All words stand in the text, line breaks aside."""
    flat = re.sub(r"\s+", " ", text)
    return all(word in flat for word in words)


# NVML.


def test_clocks_nobody_may_set(cluster: Cluster) -> None:
    """Code 4 on every setter: one message says so, energy is complete, the job is untouched."""
    for function in SETTERS:
        cluster.node("n1").stub.add_fault(function, code=4)

    run = run_job(cluster, eerl_run(cluster, f"{LONG} --exit 3"), *ONE_NODE)

    assert run.job.exit_code == 3
    assert len([line for line in run.ours if "code 4" in line or "Permission" in line]) == 1, run.job.errors
    assert run.report["allocation"]["coverage_fraction"] > 0.6


def test_nvml_fails_on_one_node(cluster: Cluster) -> None:
    """Init code 18 on n2: the total is n1's alone and says so."""
    for function in ("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit"):
        cluster.node("n2").stub.add_fault(function, code=18)

    run = run_job(cluster, eerl_run(cluster, "--updates 3 --generation 1.2 --training 1.2"), *TWO_NODES)

    assert run.job.exit_code == 0
    assert (run.report["allocation"]["nodes_seen"], run.report["allocation"]["nodes_expected"]) == (1, 2)
    assert says(run.job.errors, "n2", "18") and says(run.text, "n2", "18")
    assert {gpu["node"] for gpu in run.report["gpus"] if gpu["energy_j"]} == {"n1"}


def test_a_gpu_lost_midway(cluster: Cluster) -> None:
    """GPU 1 answers 15 from the middle on: it is partial, the other complete and home."""
    stub = cluster.node("n1").stub
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 1", *ONE_NODE)
    time.sleep(3)
    stub.add_fault("*", gpu=1, code=15)

    job = cluster.wait_end(job_id)
    run = read_run(cluster, job)

    whole, lost = (next(g for g in run.report["gpus"] if g["uuid"] == stub.uuid(i)) for i in (0, 1))
    assert job.exit_code == 1
    assert whole["coverage_fraction"] > 0.6
    assert 0 < lost["coverage_fraction"] < whole["coverage_fraction"] - 0.2
    assert 0 < lost["energy_j"] < whole["energy_j"]
    assert stub.at_default(0)
    assert says(run.text, "15") or says(run.text, "lost"), run.text


def test_a_query_that_hangs(cluster: Cluster) -> None:
    """An energy query that takes 90 s on one GPU delays neither the job's phases nor its end."""
    stub = cluster.node("n1").stub
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 6", *ONE_NODE)
    stub.add_fault("nvmlDeviceGetTotalEnergyConsumption", gpu=0, delay_ms=90_000)
    before = time.monotonic()

    job = cluster.wait_end(job_id)
    run = read_run(cluster, job)

    assert job.exit_code == 6
    assert time.monotonic() - before < 75  # the phases left take 15 s
    other = next(g for g in run.report["gpus"] if g["uuid"] == stub.uuid(1))
    assert other["coverage_fraction"] > 0.6
    assert stub.at_default(1)


def test_an_energy_counter_that_restarts(cluster: Cluster) -> None:
    """A counter that begins again makes no negative energy anywhere."""
    stub = cluster.node("n1").stub
    job_id = start_and_wait_for_a_lock(cluster, LONG, *ONE_NODE)
    time.sleep(5)
    stub.restart_energy_counter(0)

    run = read_run(cluster, cluster.wait_end(job_id))

    first, second = (next(g for g in run.report["gpus"] if g["uuid"] == stub.uuid(i)) for i in (0, 1))
    assert first["energy_j"] == pytest.approx(second["energy_j"], rel=0.15)
    assert all(phase["energy_j"] is None or phase["energy_j"] >= 0 for phase in run.report["phases"])


def test_another_process_sets_the_clocks(cluster: Cluster) -> None:
    """Someone lifts our lock: it is applied again, flagged, and told."""
    stub = cluster.node("n1").stub
    slow = "--updates 2 --generation 4 --training 4"  # clocks are judged 2 s after a switch
    job_id = start_and_wait_for_a_lock(cluster, slow, *ONE_NODE)
    end_s = time.monotonic() + 12
    while time.monotonic() < end_s:
        stub.lock_from_outside(0, 345, 1980)
        time.sleep(0.2)

    run = read_run(cluster, cluster.wait_end(job_id))

    assert run.job.exit_code == 0
    assert says(run.text, "honoured") or says(run.text, "above"), run.text
    assert stub.at_default(1)
    assert stub.locked_mhz(0) in (None, (345, 1980))  # the other writer's own last word is not ours to undo
    assert cluster.node("n1").run_eerl() == []


def test_clocks_left_by_someone_before(cluster: Cluster) -> None:
    """A lock that was there before the job is gone after a controlled job."""
    stub = cluster.node("n1").stub
    stub.lock_from_outside(0, 345, 600)

    run = run_job(cluster, eerl_run(cluster, "--updates 3 --generation 1.2 --training 1.2"), *ONE_NODE)

    assert run.job.exit_code == 0
    assert leftovers(cluster) == []


# Plugin and agents.


def test_without_plugin_and_without_nvml(make_cluster: MakeCluster) -> None:
    """On nodes that have neither, the job runs and one message says what is missing."""
    cluster = make_cluster(nodes=2, plugin=False, stub_missing_on=("n1", "n2"))

    run = run_job(
        cluster, eerl_run(cluster, "--updates 2 --generation 1 --training 1 --exit 7"), "-N2", "--gres=gpu:1"
    )

    assert run.job.exit_code == 7
    assert run.report["allocation"]["energy_j"] is None
    assert run.job.errors.count("measuring only") + run.job.errors.count("nothing can be measured") == 1, (
        run.job.errors
    )


def test_without_plugin_energy_is_measured(make_cluster: MakeCluster) -> None:
    """Without the plugin agents read NVML themselves, only the job's GPUs, and set nothing."""
    cluster = make_cluster(nodes=2, plugin=False)

    run = run_job(
        cluster, eerl_run(cluster, "--updates 2 --generation 1 --training 1"), "-N2", "--gres=gpu:2"
    )

    expected = {node.stub.uuid(gpu) for node in cluster.nodes.values() for gpu in (0, 1)}
    assert {gpu["uuid"] for gpu in run.report["gpus"]} == expected
    assert run.report["allocation"]["energy_j"] > 0
    assert [node.stub.setter_calls() for node in cluster.nodes.values()] == [[], []]


def test_plugin_gone_on_one_node(make_cluster: MakeCluster) -> None:
    """Where the plugin is missing, the message names the node; the job runs and both nodes are measured."""
    cluster = make_cluster(nodes=2, plugin_missing_on=("n2",), plugstack="default=on")

    run = run_job(
        cluster, eerl_run(cluster, "--updates 2 --generation 1 --training 1"), "-N2", "--gres=gpu:1"
    )

    assert run.job.exit_code == 0
    assert says(run.job.errors, "n2")
    assert run.report["allocation"]["gpus_measured"] == 2
    assert leftovers(cluster) == []


def test_agents_that_cannot_start(cluster: Cluster) -> None:
    """An srun that fails at once: the job runs untouched, the report is valid and says why it is empty."""
    broken = cluster.work / "bin"
    broken.mkdir(exist_ok=True)
    (broken / "srun").write_text("#!/bin/sh\necho 'srun: error: no steps today' >&2\nexit 1\n")
    (broken / "srun").chmod(0o755)
    command = eerl_run(cluster, "--updates 2 --generation 1 --training 1 --exit 8")

    run = run_job(cluster, f"export PATH={broken}:$PATH\n{command}", *ONE_NODE)

    assert run.job.exit_code == 8
    assert run.report["allocation"]["energy_j"] is None
    assert says(run.text, "no steps today"), run.text
    assert says(run.job.errors, "its agent ended", "no steps today"), run.job.errors


# Murder.


def test_kill_9_of_eerl_run(cluster: Cluster) -> None:
    """The clocks are home soon, and the ledger gives a report."""
    job_id = start_and_wait_for_a_lock(cluster, ENDLESS, *TWO_NODES)
    time.sleep(3)

    killed = cluster.node("n1").kill(r"eerl-run")

    job = cluster.wait_end(job_id)
    wait_for(lambda: leftovers(cluster) == [], "the clocks", HOME_WITHIN_S)
    assert killed and job.state == "FAILED"
    assert says(make_report(cluster, job_id), "job", str(job_id))


def test_kill_9_of_the_session(cluster: Cluster) -> None:
    """The loop dies: the job goes on to its own exit code, clocks are home while it runs."""
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 4", *TWO_NODES)

    killed = cluster.node("n1").kill(r"eerl_launch\.session")
    wait_for(lambda: all(n.stub.at_default() for n in cluster.nodes.values()), "the clocks", HOME_WITHIN_S)
    running = cluster.job(job_id).state
    job = cluster.wait_end(job_id)

    assert killed and running == "RUNNING"
    assert job.exit_code == 4
    assert job.output.splitlines()[-1] == "update 6"
    assert says(make_report(cluster, job_id), str(job_id))


def test_kill_9_of_an_agent(cluster: Cluster) -> None:
    """An agent dies on n2: its clocks are home, the job goes on, the report names the node."""
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 4", *TWO_NODES, node="n2")
    node = cluster.node("n2")

    killed = node.kill(r"eerl_launch\.agent")
    wait_for(lambda: node.stub.at_default(), "n2's clocks", HOME_WITHIN_S)
    job = cluster.wait_end(job_id)
    run = read_run(cluster, job)

    assert killed and job.exit_code == 4
    assert run.node("n2")["state"] == "lost", run.text
    assert run.node("n1")["coverage_fraction"] > 0.6
    assert leftovers(cluster, killed=True) == []


@pytest.mark.parametrize("victims", ["worker", "supervisor", "both"])
def test_kill_9_of_the_broker(cluster: Cluster, victims: str) -> None:
    """Whatever of the broker dies: exit code kept, clocks home at the end, the report tells."""
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 4", *ONE_NODE)
    brokers = cluster.node("n1").brokers(job_id)

    end({"worker": brokers[1:], "supervisor": brokers[:1], "both": brokers}[victims])
    job = cluster.wait_end(job_id)
    run = read_run(cluster, job)

    assert len(brokers) == 2
    assert job.exit_code == 4
    wait_for(lambda: leftovers(cluster) == [], "the clocks", HOME_WITHIN_S)
    assert says(run.text, "broker"), run.text


def test_kill_9_of_the_agents_stepd(cluster: Cluster) -> None:
    """slurmstepd of the agents' step on n2 dies: the job ends with its own code and does not wait for ever."""
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 4", *TWO_NODES, node="n2")

    cluster.node("n2").kill_stepds()
    job = cluster.wait_end(job_id, 180)

    run = read_run(cluster, job)
    assert job.exit_code == 4
    assert {node["node"]: node["state"] for node in run.report["nodes"]}["n2"] == "lost", run.text
    assert says(run.text, "n2", "lost"), run.text
    wait_for(lambda: all(n.stub.at_default() for n in cluster.nodes.values()), "the clocks", HOME_WITHIN_S)


# Ends.


def test_scancel(cluster: Cluster) -> None:
    """A cancelled run leaves its clocks at home and a report that says it is incomplete."""
    job_id = start_and_wait_for_a_lock(cluster, ENDLESS, *TWO_NODES)
    time.sleep(3)

    cluster.scancel(str(job_id))
    job = cluster.wait_end(job_id)

    assert job.state == "CANCELLED"
    assert leftovers(cluster) == []
    assert says(make_report(cluster, job_id), "ncomplete")


def test_time_limit(cluster: Cluster) -> None:
    """A command that ignores TERM is killed at the limit: clocks home, a report from the ledger, up to the kill."""
    job_id = start_and_wait_for_a_lock(cluster, f"{ENDLESS} --ignore-term", *TWO_NODES, "-t5")

    cluster.scontrol("update", f"jobid={job_id}", "EndTime=now+1")
    job = cluster.wait_end(job_id, 120)

    assert job.state == "TIMEOUT"
    assert leftovers(cluster, killed=True) == []
    text = make_report(cluster, job_id)
    last = int(re.findall(r"update (\d+)", job.output)[-1])
    run = read_run(cluster, job)
    assert says(text, "ncomplete")
    assert run.report["updates"]["last_update"] >= last - 4  # updates of 2.4 s: up to 10 s before the kill


def test_requeue(cluster: Cluster) -> None:
    """Both attempts have a run folder and a report of their own."""
    again = 'if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi; exit 6'
    script = f"{eerl_run(cluster, '--updates 2 --generation 1.2 --training 1.2')}\n{again}"
    job_id = cluster.sbatch(script, *ONE_NODE, "--requeue")

    job = cluster.wait_second_attempt(job_id)

    assert job.exit_code == 6
    for restart in (0, 1):
        run = read_run(cluster, job, restart)
        assert run.report["run"]["restart"] == restart
        assert run.report["updates"]["updates"] == 2
    assert leftovers(cluster) == []


def test_two_jobs_on_one_node(cluster: Cluster) -> None:
    """Each controls its own two GPUs; the end of the first does not touch the second's."""
    node = cluster.node("n1")
    second = cluster.sbatch(eerl_run(cluster, f"{LONG} --exit 2"), *ONE_NODE)
    first = cluster.sbatch(
        eerl_run(cluster, "--updates 2 --generation 1.2 --training 1.2 --exit 1"), *ONE_NODE
    )

    jobs = [cluster.wait_end(job_id) for job_id in (first, second)]

    runs = [read_run(cluster, job) for job in jobs]
    owned = [{gpu["uuid"] for gpu in run.report["gpus"]} for run in runs]
    assert [job.exit_code for job in jobs] == [1, 2]
    assert [len(uuids) for uuids in owned] == [2, 2] and owned[0].isdisjoint(owned[1])
    end_ns = max(call.end_ns for call in node.calls() if call.uuid in owned[0])
    strangers = {c.pid for c in node.calls() if c.uuid in owned[0]} & {
        c.pid for c in node.calls() if c.uuid in owned[1]
    }
    assert strangers == set(), "one process has set GPUs of both jobs"
    assert any(c.uuid in owned[1] and c.t_ns > end_ns for c in node.calls()), (
        "B was not controlled after A's end"
    )
    assert leftovers(cluster) == []
    assert touched_gpus(cluster, "n1") == {0, 1, 2, 3}


def test_a_governor_run_beside_a_fixed_one(cluster: Cluster) -> None:
    """A run that measures only sees its own clocks untouched by a neighbour's lock."""
    fixed = cluster.sbatch(eerl_run(cluster, LONG, policy=FIXED), *ONE_NODE)
    wait_for(lambda: cluster.node("n1").stub.locked_mhz(0), "the neighbour's lock")

    run = run_job(
        cluster, eerl_run(cluster, "--updates 3 --generation 1.2 --training 1.2", policy=GOVERNOR), *ONE_NODE
    )

    generation = next(phase for phase in run.report["phases"] if phase["phase"] == "generation")
    assert generation["achieved_mhz"] == pytest.approx(1980, abs=20)
    assert cluster.wait_end(fixed).exit_code == 0


def test_a_session_in_a_hostile_directory(cluster: Cluster) -> None:
    """A working directory full of modules named like ours, no HOME, LANG=C and a strict umask do no harm."""
    folder = cluster.work / "ünsafe"
    rivals = cluster.work / "rivals"
    for path in (folder, rivals):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    for name in ("socket", "json", "yaml", "selectors"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not ours')\n")
    (rivals / "pynvml.py").write_text("raise RuntimeError('a rival package')\n")
    command = eerl_run(cluster, "--updates 2 --generation 1 --training 1", options=f"--out {folder}")
    script = f"export HOME=/nonexistent LC_ALL=C LANG=C PYTHONPATH={rivals}\numask 077\ncd {folder}\n"

    job = cluster.run(script + command, *ONE_NODE)

    assert job.exit_code == 0, job.errors
    assert "Traceback" not in job.errors
    assert Path(folder / f"eerl-{job.job_id}" / "report.json").exists()


def test_a_node_goes_down_in_a_job_that_goes_on(cluster: Cluster) -> None:
    """With --no-kill a lost node costs its own numbers only: the run ends in time and names it."""
    job_id = start_and_wait_for_a_lock(cluster, f"{LONG} --exit 4", *TWO_NODES, "--no-kill", node="n2")
    time.sleep(2)

    cluster.scontrol("update", "nodename=n2", "state=down", "reason=test")
    job = cluster.wait_end(job_id)
    run = read_run(cluster, job)

    (end,) = run.events("end")
    assert job.exit_code == 4
    assert end["t_s"] - end["run_s"] < 15  # from the command's end to that of everything else
    assert run.node("n2")["state"] == "lost"
    assert run.node("n1")["coverage_fraction"] > 0.6
    wait_for(lambda: cluster.node("n2").stub.at_default(), "n2's clocks", HOME_WITHIN_S)


def test_a_slow_and_failing_site_epilog(make_cluster: MakeCluster) -> None:
    """A site's own epilog that takes 3 s and fails drains its node, as ever; the clocks are home all the same."""
    cluster = make_cluster(nodes=1, plugstack="default=on", epilog="#!/bin/sh\nsleep 3\nexit 1\n")
    job_id = start_and_wait_for_a_lock(cluster, ENDLESS, "--gres=gpu:2")

    cluster.scancel(str(job_id))
    time.sleep(1)
    cluster.scancel(str(job_id))
    job = cluster.wait_end(job_id)

    assert job.state == "CANCELLED"
    assert leftovers(cluster) == []
    assert "drain" in cluster.sinfo()["n1"]
