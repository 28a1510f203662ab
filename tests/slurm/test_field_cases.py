"""Field cases that only a real Slurm cluster shows: S08, S10, S16, S21, S23, W12, E03, E05, N13, N22, C07, C09."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest
import terminal_dialogue
from rig.cluster import Cluster, MakeCluster, wait_for
from slurm.scripts import (
    FIXED,
    GOVERNOR,
    JOB,
    PYTHON,
    RIG,
    eerl_run,
    leftovers,
    read_run,
    run_job,
    touched_gpus,
)

pytestmark = pytest.mark.slurm

SHORT = "--updates 3 --generation 1.2 --training 1.2"
ON_N1 = ("-w", "n1", "--gres=gpu:2", "--eerl")


@pytest.fixture(scope="module")
def cluster_wishes() -> dict[str, Any]:
    """Three nodes."""
    return {"nodes": 3}


def test_a_step_that_holds_the_whole_exclusive_job(cluster: Cluster) -> None:
    """S08b: from an exclusive step of an exclusive job agents join on both nodes in seconds, as their own step."""
    inner = f"sh -c \"{JOB} {SHORT}; squeue -s -h -j $SLURM_JOB_ID -o 'step %j %N'\""
    command = eerl_run(cluster, "").split(" -- ")[0] + f" -- {inner}"
    script = f"srun -N1 -n1 --exclusive --gres=gpu:4 {command}"

    run = run_job(cluster, script, "-N2", "--exclusive", "--gres=gpu:4", "--eerl")

    joined_s = {
        line["node"]: line["t_s"] for line in reversed(run.events("node")) if line["state"] == "joined"
    }
    assert run.job.exit_code == 0, run.job.errors
    assert len(joined_s) == 2 and max(joined_s.values()) < 10
    assert "temporarily disabled" not in run.job.errors
    assert re.search(r"step eerl-agent n\[1-2\]", run.job.output), run.job.output
    assert run.report["allocation"]["gpus_measured"] == 8
    assert leftovers(cluster) == []


def test_a_step_with_bound_gpus(cluster: Cluster) -> None:
    """S10: agents see all GPUs of the job however the RL step binds its own."""
    step = f"srun -N1 -n1 --gres=gpu:4 --gpu-bind=single:1 {JOB} {SHORT}"
    command = eerl_run(cluster, "").split(" -- ")[0] + f" -- {step}"

    run = run_job(cluster, command, "-w", "n1", "--gpus-per-node=4", "--eerl", "-n4")

    assert run.job.exit_code == 0, run.job.errors
    assert {gpu["uuid"] for gpu in run.report["gpus"]} == set(cluster.node("n1").stub.uuids())
    assert run.report["updates"]["updates"] == 3


def test_the_warning_before_the_time_limit(cluster: Cluster) -> None:
    """S16b: --signal=B:USR1@… to a batch script that execs eerl-run reaches the command once; both go on."""
    noted = cluster.work / "warned"
    command = eerl_run(
        cluster, f"--updates 40 --generation 1.2 --training 1.2 --touch-on SIGUSR1 {noted} --exit 0"
    )
    job_id = cluster.sbatch(f"exec {command}", *ON_N1, "-t3", "--signal=B:USR1@165")

    wait_for(noted.exists, "Slurm's warning", 90, 0.5)
    time.sleep(3)
    state = cluster.job(job_id).state
    sent = noted.read_text()
    cluster.scancel(str(job_id))
    cluster.wait_end(job_id)

    assert (sent, state) == ("10\n", "RUNNING")
    assert leftovers(cluster) == []


def test_markers_from_another_node_only(cluster: Cluster) -> None:
    """S21: the trainer runs on the second node alone: its phases are known to the whole run."""
    step = f"srun -N1 -n1 -w n2 --overlap --gres=none {JOB} {SHORT}"
    command = eerl_run(cluster, "").split(" -- ")[0] + f" -- {step}"

    run = run_job(cluster, command, "-w", "n1,n2", "-N2", "--gres=gpu:2", "--eerl")

    assert run.job.exit_code == 0, run.job.errors
    assert [line["label"] for line in run.events("update")] == [1, 2, 3], run.text
    for name in ("n1", "n2"):
        locks = {call.args for call in cluster.node(name).stub.setter_calls()}
        assert {"min=345 max=1500", "min=345 max=1200"} <= locks
    assert leftovers(cluster) == []


def test_a_step_that_exports_one_variable(cluster: Cluster) -> None:
    """S23: under srun --export=MYVAR=1 neither PATH nor HOME is there: agents are found, the command sees MYVAR."""
    launcher = (
        eerl_run(cluster, "").split(" -- ")[0].replace("eerl-run", f"{Path(PYTHON).parent}/eerl-run", 1)
    )
    show = "/bin/sh -c '/bin/echo var=$MYVAR path=$PATH; /bin/sleep 3; exit 5'"
    script = f"srun -N1 -n1 --gres=gpu:2 --export=MYVAR=1 {launcher} -- {show}"

    run = run_job(cluster, script, "-N2", "--gres=gpu:2", "--eerl")

    assert run.job.exit_code == 5, run.job.errors
    assert "var=1" in run.job.output
    assert run.report["allocation"]["nodes_seen"] == 2, run.job.errors


def test_a_launcher_in_every_task(cluster: Cluster) -> None:
    """E03, E05: four tasks start eerl-run: one report of the job's own joules, one message, one hand on clocks."""
    stub = cluster.node("n1").stub
    for other in (2, 3):
        stub.set_load(other, training=1.0)
    energy = (
        f'{PYTHON} -c \'import sys; sys.path.insert(0, "{RIG.parent}"); from nvml_stub.stub import Stub; s = Stub();'
        ' print("true_mj", s.true_energy_mj(0) + s.true_energy_mj(1))\''
    )
    script = f"{energy}\nsrun -N1 -n4 --gres=gpu:2 {eerl_run(cluster, SHORT)}\n{energy}"

    run = run_job(cluster, script, *ON_N1, "-n4")

    before, after = (float(mj) / 1000 for mj in re.findall(r"true_mj (\S+)", run.job.output))
    energy_j, covered = (run.report["allocation"][key] for key in ("energy_j", "coverage_fraction"))
    assert run.job.output.count("update 3\n") == 4
    assert [path.name for path in cluster.work.glob(f"eerl-{run.job.job_id}*")] == [f"eerl-{run.job.job_id}"]
    assert run.job.errors.count("task 0 measures the whole job") == 1, run.job.errors
    assert energy_j <= (after - before) * 1.02
    assert energy_j / covered == pytest.approx(after - before, rel=0.15)
    assert len({call.pid for call in stub.setter_calls()}) == 1
    assert leftovers(cluster) == []


@pytest.mark.parametrize("pause_s", [0, 4])
def test_a_launcher_in_two_steps_of_one_job(cluster: Cluster, pause_s: int) -> None:
    """E03: two steps on two nodes start eerl-run, at once or one later: each GPU counts once, which is said."""
    step = f"srun -N1 -n1 --overlap --gres=gpu:2 {eerl_run(cluster, SHORT, policy=GOVERNOR)}".replace
    script = f"{step('-N1', '-N1 -w n1')} & sleep {pause_s}\n{step('-N1', '-N1 -w n2')} & wait"

    job = cluster.run(script, "-w", "n1,n2", "-N2", "--gres=gpu:2", "--eerl")

    folders = sorted(cluster.work.glob(f"eerl-{job.job_id}*"))
    reports = [json.loads((folder / "report.json").read_text()) for folder in folders]
    counted = [gpu["uuid"] for report in reports for gpu in report["gpus"] if gpu["energy_j"] is not None]
    own = {uuid for name in ("n1", "n2") for uuid in cluster.node(name).stub.uuids()[:2]}
    assert job.output.count("update 3\n") == 2
    assert sorted(counted) == sorted(own), [path.name for path in folders]
    assert "another eerl-run of this job" in job.errors
    if pause_s:
        assert len(folders) == 1 and "counts none" in job.errors
    else:
        assert len(folders) == len(reports) <= 2
    assert leftovers(cluster) == []


def test_the_allocation_is_released(cluster: Cluster) -> None:
    """W12: the command fails in a three-node job of ten minutes: the job ends at once, nothing of ours stays."""
    noted = cluster.work / "ended"
    command = eerl_run(cluster, f"{SHORT} --exit 1")
    shell = f"sh -c '{command.split(' -- ')[1]}; code=$?; date +%s.%N > {noted}; exit $code'"
    job_id = cluster.sbatch(f"{command.split(' -- ')[0]} -- {shell}", "-N3", "--gres=gpu:1", "--eerl", "-t10")

    wait_for(noted.exists, "the command's end", 60, 0.05)
    job = cluster.wait_end(job_id)
    took_s = time.time() - float(noted.read_text())

    assert job.exit_code == 1
    assert took_s < 20
    assert leftovers(cluster) == []
    assert read_run(cluster, job).report["allocation"]["nodes_seen"] == 3


def test_a_node_that_cannot_set_clocks(cluster: Cluster) -> None:
    """C09: code 4 on one node of three: the others are back with the governor at once, and one message says so."""
    for function in ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetApplicationsClocks"):
        cluster.node("n2").stub.add_fault(function, code=4)

    run = run_job(
        cluster,
        eerl_run(cluster, "--updates 4 --generation 1.2 --training 1.2"),
        "-N3",
        "--gres=gpu:1",
        "--eerl",
    )

    told = [line for line in run.ours if "n2" in line]
    assert run.job.exit_code == 0
    assert len(told) == 1, run.job.errors
    for name in ("n1", "n3"):
        calls = cluster.node(name).stub.setter_calls()
        kinds = ["Reset" if "Reset" in call.function else "Set" for call in calls]
        assert kinds[-1:] != ["Set"] and kinds.count("Set") <= 1, kinds
        if kinds:
            assert (calls[-1].t_ns - calls[0].t_ns) / 1e9 < 2.4, "locked for longer than a step"
    (off,) = (event for event in run.events("event") if event["kind"] == "control_off")
    assert off["node"] == "n2" and "code 4" in run.text
    assert leftovers(cluster) == []


@pytest.mark.parametrize("others_mhz", [1980, 900])
def test_no_tug_of_war(cluster: Cluster, others_mhz: int) -> None:
    """C07: another writer sets clocks, higher or lower, all the time: ours are set once more, then left to it."""
    stub = cluster.node("n1").stub
    command = eerl_run(cluster, "--updates 2 --generation 8 --training 8", policy=FIXED)
    job_id = cluster.sbatch(command, *ON_N1)
    wait_for(lambda: stub.locked_mhz(0), "the lock")
    while not cluster.job(job_id).ended:
        stub.lock_from_outside(0, 345, others_mhz)
        time.sleep(0.3)
    run = read_run(cluster, cluster.wait_end(job_id))
    others_word = stub.locked_mhz(0)
    stub.lock_from_outside(0, 0, 0)

    kinds = [event["kind"] for event in run.events("event")]
    again = [event for event in run.events("clock") if event["phase"] == "again"]
    (gave_up,) = (event for event in run.events("event") if event["kind"] == "outside_writer")
    later = [event for event in run.events("clock") if event["t_s"] > gave_up["t_s"] + 0.5]
    assert run.job.exit_code == 0
    assert kinds.count("not_honoured") == 1 and [event["mhz"] is None for event in again] == [True, False]
    assert [call.args for call in stub.setter_calls(0)].count("min=345 max=1500") == 2, "set again in fact"
    assert all(event["mhz"] is None for event in later), later
    assert others_word == (345, others_mhz)
    assert "measuring only from here" in " ".join(run.text.split())
    assert leftovers(cluster) == []


def test_a_cap_that_an_admin_lowers_in_mid_job(make_cluster: MakeCluster) -> None:
    """N22b: a site limit that plugstack.conf gets during a job holds from the next job on, and after it."""
    cluster = make_cluster(nodes=1, gpus=2, plugstack="default=on")
    stub = cluster.node(0).stub
    job_id = cluster.sbatch(eerl_run(cluster, SHORT), "--gres=gpu:2")
    wait_for(lambda: stub.locked_mhz(0), "the lock")
    conf = cluster.base / "etc" / "plugstack.conf"
    conf.write_text(conf.read_text().rstrip() + " site_max_mhz=1305\n")
    first = cluster.wait_end(job_id)
    stub.clear_calls()

    run = run_job(cluster, eerl_run(cluster, SHORT), "--gres=gpu:2")

    asked = {int(call.args.rsplit("=", 1)[1]) for call in stub.setter_calls() if call.args.startswith("min=")}
    assert (first.exit_code, run.job.exit_code) == (0, 0)
    assert asked == {1200, 1305}, "1500 was wished for"
    assert [stub.locked_mhz(gpu) for gpu in (0, 1)] == [(345, 1305)] * 2
    assert "1500 MHz became 1305 MHz" in " ".join(run.text.split())


def test_nodes_of_different_scope(make_cluster: MakeCluster) -> None:
    """N13: one node's counters are of whole modules at 1800 W: both nodes are kept, the total is called mixed."""
    cluster = make_cluster(nodes=2, gpus=1, plugstack="default=on")
    module = cluster.node("n2").stub
    module._set_text(0, "name", "NVIDIA GH200 480GB")
    module.set(0, module_scope=1, module_extra_mw=1_700_000)

    run = run_job(cluster, eerl_run(cluster, SHORT), "-N2", "--gres=gpu:1")

    by_node = {gpu["node"]: gpu for gpu in run.report["gpus"]}
    kinds = [event["kind"] for event in run.events("event")]
    assert (by_node["n1"]["energy_scope"], by_node["n2"]["energy_scope"]) == ("gpu", "module")
    assert by_node["n2"]["energy_j"] > 1700 * 5
    assert {"counter_restart", "energy_estimated"}.isdisjoint(kinds)
    assert "Mixed scopes" in " ".join(run.text.split())


def test_clocks_that_are_not_supported(cluster: Cluster) -> None:
    """N02: no call to set clocks is supported: the job is measured only, the node stays, the reason is told."""
    functions = ("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetApplicationsClocks")
    for function in functions:
        cluster.node("n1").stub.add_fault(function, code=3)

    run = run_job(cluster, eerl_run(cluster, f"{SHORT} --exit 3"), *ON_N1)

    about = [line for line in run.ours if "n1" in line]
    assert run.job.exit_code == 3
    assert len(about) == 1 and "supported" in about[0], run.job.errors
    assert run.report["allocation"]["coverage_fraction"] > 0.5
    assert "supported" in run.text
    assert cluster.sinfo()["n1"] == "idle"
    assert leftovers(cluster) == []


def test_the_report_is_about_the_right_gpu(make_cluster: MakeCluster) -> None:
    """N17: where device numbers differ from NVML's, clocks and report concern the GPU that Slurm has given."""
    cluster = make_cluster(nodes=1, gpus=4, minors=(2, 3, 0, 1), plugstack="gpu_order=minor default=on")
    stub = cluster.node(0).stub

    run = run_job(cluster, eerl_run(cluster, SHORT), "--gres=gpu:1")

    assert [gpu["uuid"] for gpu in run.report["gpus"]] == [stub.uuid(2)]
    assert touched_gpus(cluster, "n1") == {2}
    assert run.report["allocation"]["energy_j"] > 0


def test_a_lock_that_hangs_in_the_driver(cluster: Cluster) -> None:
    """N23: a call that sets a clock hangs on one GPU: phases and end are as ever, and the others come home."""
    stub = cluster.node("n1").stub
    stub.add_fault("nvmlDeviceSetGpuLockedClocks", gpu=1, delay_ms=60_000, times=1)

    run = run_job(cluster, eerl_run(cluster, f"{SHORT} --exit 3"), *ON_N1)

    end = run.events("end")[0]
    assert run.job.exit_code == 3
    assert run.report["updates"]["updates"] == 3
    assert end["run_s"] < 30 and end["t_s"] - end["run_s"] < 15
    assert stub.at_default(0)
    assert stub.uuid(1) in run.job.errors and "10" in run.job.errors


def test_a_terminal_in_a_step(cluster: Cluster) -> None:
    """W04: under srun --pty the command reads the terminal, and one Ctrl-C interrupts it once."""
    program = terminal_dialogue.program(10)
    (cluster.work / "terminal.py").write_text(program)
    eerl = f"{Path(PYTHON).parent}/eerl-run"
    user = cluster.user
    drop = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    srun = ["srun", "--pty", "-w", "n1", "--gres=gpu:1", "--eerl", f"--chdir={cluster.work}"]
    argv = [*drop, *srun, eerl, "--", PYTHON, str(cluster.work / "terminal.py")]
    child = pexpect.spawn(argv[0], argv[1:], env=cluster.environment(), timeout=60, cwd=str(cluster.work))

    terminal_dialogue.hold(child)
    assert leftovers(cluster) == []
