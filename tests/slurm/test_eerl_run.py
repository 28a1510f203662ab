"""eerl-run on a real cluster: two nodes, plugin, broker, agents, markers, clocks, report."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest
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
TWO_NODES = ("-N2", "--gres=gpu:2", "--eerl")
ONE_NODE = ("-w", "n1", "--gres=gpu:2", "--eerl")
ENERGY = (
    f'{PYTHON} -c \'import sys; sys.path.insert(0, "{RIG.parent}"); from nvml_stub.stub import Stub; s = Stub();'
    ' print("true_mj", s.true_energy_mj(0) + s.true_energy_mj(1))\''
)


def locks(cluster: Cluster, node: str) -> set[str]:
    """The ceilings that were set on a node, as the call log words them."""
    return {
        c.args for c in cluster.node(node).stub.setter_calls() if c.function == "nvmlDeviceSetGpuLockedClocks"
    }


def test_two_nodes_with_fixed_clocks(cluster: Cluster) -> None:
    """Both phases' clocks are set on the job's GPUs of both nodes, and home afterwards; the exit code is CMD's."""
    run = run_job(cluster, eerl_run(cluster, f"{SHORT} --exit 4"), *TWO_NODES)

    assert run.job.exit_code == 4
    assert run.job.output == "update 1\nupdate 2\nupdate 3\n"
    assert (run.report["allocation"]["nodes_seen"], run.report["allocation"]["gpus_measured"]) == (2, 4)
    for name in ("n1", "n2"):
        assert {"min=345 max=1500", "min=345 max=1200"} <= locks(cluster, name)
        assert touched_gpus(cluster, name) == {0, 1}
        assert run.node(name)["clock_backend"] == "locked-clocks"
    assert {node["state"] for node in run.report["clocks_at_end"]} == {"ok"}
    assert run.report["updates"]["valid_tokens"] == 3 * 8000 + 60
    assert leftovers(cluster) == []


def test_energy_equals_the_gpus_own_integral(cluster: Cluster) -> None:
    """The report's total is the stub's exact integral over the same time, seen from the job's script."""
    command = eerl_run(cluster, "--updates 6 --generation 1.2 --training 1.2", policy=GOVERNOR)
    script = f"{ENERGY}\n{command}\n{ENERGY}"

    run = run_job(cluster, script, *ONE_NODE)

    before, after = (float(mj) / 1000 for mj in re.findall(r"true_mj (\S+)", run.job.output))
    energy_j, covered = (run.report["allocation"][key] for key in ("energy_j", "coverage_fraction"))
    assert energy_j <= (after - before) * 1.005
    assert energy_j / covered == pytest.approx(
        after - before, rel=0.06
    )  # agents join a moment after the start
    assert all(check["ok"] for check in run.report["checks"])


def test_measuring_only_sets_nothing(cluster: Cluster) -> None:
    """Under the policy "governor" not one setter is called, at the end neither."""
    run = run_job(cluster, eerl_run(cluster, SHORT, policy=GOVERNOR), *TWO_NODES)

    assert run.job.exit_code == 0
    assert [node.stub.setter_calls() for node in cluster.nodes.values()] == [[], []]
    assert run.report["controller"]["clock_switches"] == 0


def test_a_job_without_gpus(cluster: Cluster) -> None:
    """Without a GPU request nothing is set or measured; the report is valid and the exit code CMD's."""
    run = run_job(cluster, eerl_run(cluster, f"{SHORT} --exit 5"), "-w", "n1", "--eerl")

    assert run.job.exit_code == 5
    assert run.report["allocation"]["gpus_seen"] == 0
    assert run.report["allocation"]["energy_j"] is None
    assert cluster.node("n1").stub.setter_calls() == []


def test_a_command_killed_by_a_signal(cluster: Cluster) -> None:
    """CMD's death by SIGSEGV is 139, and told in the report."""
    run = run_job(
        cluster, eerl_run(cluster, "--updates 1 --generation 1 --training 0 --kill-self SIGSEGV"), *ONE_NODE
    )

    assert run.job.exit_code == 139
    assert run.report["run"]["signal"] == 11
    assert leftovers(cluster) == []


def test_a_broken_policy_stops_before_the_command(cluster: Cluster) -> None:
    """A policy with a typing error ends with 2 and one message; CMD never starts."""
    script = eerl_run(cluster, f"{SHORT} --started {cluster.work}/never", policy="policy: fixd\n")

    job = cluster.run(script, *ONE_NODE)

    assert job.exit_code == 2
    assert "fixd" in job.errors and "Traceback" not in job.errors
    assert not (cluster.work / "never").exists()


def test_inside_a_step_that_owns_everything(cluster: Cluster) -> None:
    """Agents start beside an exclusive step that holds all of the job's GPUs."""
    script = f"srun -N1 -n1 --exclusive --gres=gpu:2 {eerl_run(cluster, SHORT)}"

    run = run_job(cluster, script, *TWO_NODES)

    assert run.job.exit_code == 0
    assert "temporarily disabled" not in run.job.errors
    assert run.report["allocation"]["nodes_seen"] == 2


def test_with_an_empty_environment(cluster: Cluster) -> None:
    """--export=NONE takes PATH away: agents are found all the same."""
    command = eerl_run(cluster, SHORT).replace("eerl-run", f"{Path(PYTHON).parent}/eerl-run", 1)

    run = run_job(cluster, command, *TWO_NODES, "--export=NONE")

    assert run.job.exit_code == 0, run.job.errors
    assert run.report["allocation"]["nodes_seen"] == 2


def test_inherited_wishes_of_other_steps(cluster: Cluster) -> None:
    """Contradicting SLURM_ variables do not stop the agents, and CMD sees them unchanged."""
    script = """export SLURM_CPU_BIND=mask_cpu:0xff SLURM_MEM_PER_NODE=100 SLURM_GPU_BIND=single:1
eerl-run -- sh -c 'sleep 3; echo $SLURM_CPU_BIND $SLURM_MEM_PER_NODE $SLURM_GPU_BIND'"""

    run = run_job(cluster, script, *TWO_NODES, "--mem-per-cpu=50")

    assert run.job.output == "mask_cpu:0xff 100 single:1\n"
    assert run.report["allocation"]["gpus_measured"] == 4


def test_two_launchers_in_one_job_and_node(cluster: Cluster) -> None:
    """The second eerl-run of a node runs its command and leaves measuring and clocks to the first."""
    job = cluster.run(f"srun -N1 -n2 --gres=gpu:2 {eerl_run(cluster, SHORT)}", *ONE_NODE, "-n2")

    folders = sorted(path.name for path in cluster.work.glob(f"eerl-{job.job_id}*"))
    assert job.exit_code == 0, job.errors
    assert job.output.count("update 3") == 2
    assert folders == [f"eerl-{job.job_id}"]
    assert leftovers(cluster) == []


def test_signals_reach_the_command(cluster: Cluster) -> None:
    """USR1 to a batch script that has become eerl-run reaches CMD once; both go on."""
    noted = cluster.work / "usr1"
    command = eerl_run(cluster, f"{SHORT} --touch-on SIGUSR1 {noted} --started {noted}.started")
    job_id = cluster.sbatch(f"exec {command}", *ONE_NODE)
    wait_for(Path(f"{noted}.started").exists, "the first update")

    cluster.scancel("--batch", "--signal=USR1", str(job_id))
    job = cluster.wait_end(job_id)

    assert noted.read_text() == "10\n"
    assert (job.state, job.exit_code) == ("COMPLETED", 0)


def test_garbage_on_the_marker_socket(cluster: Cluster) -> None:
    """Noise, giant lines and a vanished sender beside the trainer change neither its markers nor its exit code."""
    noise = (
        "import os, socket\n"
        "giant, flood = b'x' * 3000000 + b'\\n', b'{\"v\":1,\"ev\":\"begin\"}\\n' * 2000\n"
        "for junk in (os.urandom(5000), giant, flood, b'{\"v\":1,'):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(os.environ['EERL_SOCKET'])\n"
        "    try: s.sendall(junk)\n"
        "    except OSError: pass\n"
        "    s.close()\n"
    )
    (cluster.work / "noise.py").write_text(noise)
    inner = f"{PYTHON} {cluster.work}/noise.py; {JOB} {SHORT} --exit 9"
    script = eerl_run(cluster, "").split(" -- ")[0] + f" -- sh -c '{inner}'"

    run = run_job(cluster, script, *ONE_NODE)

    assert run.job.exit_code == 9
    assert run.report["updates"]["updates"] == 3
    assert run.report["updates"]["valid_tokens"] == 3 * 8000 + 60


def test_names_with_dots_and_sixty_letters(make_cluster: MakeCluster) -> None:
    """Two jobs at once on nodes with awkward names: both reports complete, nothing clashes."""
    names = ("n1.example.internal", "n" * 60)
    cluster = make_cluster(nodes=names, gpus=2, plugstack="default=on")
    jobs = [cluster.sbatch(eerl_run(cluster, SHORT), "-N2", "--gres=gpu:1") for _ in range(2)]

    runs = [read_run(cluster, cluster.wait_end(job_id)) for job_id in jobs]

    for run in runs:
        assert run.job.exit_code == 0, run.job.errors
        assert {node["node"] for node in run.report["nodes"]} == set(names)
        assert {node["clock_backend"] for node in run.report["nodes"]} == {"locked-clocks"}
    assert {gpu["uuid"] for gpu in runs[0].report["gpus"]}.isdisjoint(
        gpu["uuid"] for gpu in runs[1].report["gpus"]
    )
    assert leftovers(cluster) == []


def test_a_heterogeneous_job_is_told_what_is_covered(cluster: Cluster) -> None:
    """Components other than the first are named as not measured."""
    script = (
        "#!/bin/bash\n#SBATCH -w n1 --gres=gpu:1 --eerl\n#SBATCH hetjob\n#SBATCH -w n2 --gres=gpu:1 --eerl\n"
    )

    run = run_job(cluster, script + eerl_run(cluster, SHORT, policy=FIXED))

    assert run.job.exit_code == 0
    assert "not measured: n2" in " ".join(run.text.split()), run.text
    assert "n2" in run.job.errors


def test_an_array_has_a_folder_per_task(cluster: Cluster) -> None:
    """Tasks of a job array run side by side and keep their reports apart."""
    array = cluster.sbatch(
        eerl_run(cluster, SHORT), *ONE_NODE, "--array=0-1", f"--output={cluster.work}/%A_%a.out"
    )

    wait_for(lambda: not cluster.squeue(), "the array to end", 120, 0.2)

    for task in (0, 1):
        report = cluster.work / f"eerl-{array}_{task}" / "report.json"
        assert report.exists(), sorted(path.name for path in cluster.work.iterdir())
        assert json.loads(report.read_text())["updates"]["updates"] == 3
    assert touched_gpus(cluster, "n1") == {0, 1, 2, 3}
    assert leftovers(cluster) == []


def test_a_container_with_mounts_of_its_own(cluster: Cluster) -> None:
    """A command in a user and mount namespace with other /mnt and /run still reaches the marker socket."""
    inner = eerl_run(cluster, "").split(" -- ")[0]
    script = f"{inner} -- unshare -rm sh -c 'mount -t tmpfs none /mnt && mount -t tmpfs none /run && {JOB} {SHORT}'"

    run = run_job(cluster, script, *ONE_NODE)

    assert run.job.exit_code == 0, run.job.errors
    assert run.report["updates"]["updates"] == 3


def test_a_cleaner_in_dev_shm(cluster: Cluster) -> None:
    """When everything of the user is wiped from /dev/shm in mid-run, markers are heard again and the job goes on."""
    noted = cluster.work / "cleaner"
    job_id = cluster.sbatch(
        eerl_run(cluster, f"--updates 10 --generation 1.2 --training 1.2 --started {noted} --exit 3"),
        *ONE_NODE,
    )
    wait_for(noted.exists, "the first update")
    time.sleep(2)

    wiped = list((cluster.node("n1").root / "dev/shm").glob(f"eerl-{cluster.user.pw_uid}-*"))
    for path in wiped:
        shutil.rmtree(path)
    run = read_run(cluster, cluster.wait_end(job_id))

    assert wiped and run.job.exit_code == 3
    assert run.report["updates"]["last_update"] == 10, run.text
    assert leftovers(cluster) == []


@pytest.mark.parametrize("flags", ["", "Contain"], ids=["none", "contain"])
def test_prolog_flags_of_other_sites(make_cluster: MakeCluster, flags: str) -> None:
    """Where a node's prolog runs only at its first step, or an extern step is there, both nodes are served."""
    cluster = make_cluster(nodes=2, gpus=2, prolog_flags=flags)

    run = run_job(cluster, eerl_run(cluster, SHORT), *TWO_NODES)

    assert run.job.exit_code == 0, run.job.errors
    assert [run.node(name)["clock_backend"] for name in ("n1", "n2")] == ["locked-clocks"] * 2
    assert leftovers(cluster) == []
