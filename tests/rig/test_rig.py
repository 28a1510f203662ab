"""The rig itself: clusters start from nothing, nodes are apart, and nothing is left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig.cluster import HERE, Cluster, MakeCluster, job_user
from rig.processes import in_namespaces

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster_wishes() -> dict[str, Any]:
    return {"plugin": False}


def test_a_job_runs_as_an_ordinary_user_with_gpus(cluster: Cluster) -> None:
    """A job on two nodes sees its GPUs, its node names and its own exit code."""
    job = cluster.run(
        "id -u; echo $SLURM_JOB_GPUS; srun -N2 -n2 bash -c 'echo $SLURMD_NODENAME' | sort; exit 7",
        "-N2",
        "--gres=gpu:2",
    )

    assert (job.state, job.exit_code) == ("FAILED", 7)
    assert job.output.split() == [str(cluster.user.pw_uid), "0,1", "n1", "n2"]


def test_nodes_have_gpus_of_their_own(cluster: Cluster) -> None:
    """The loader finds the stub without an environment variable, and each node shows other UUIDs."""
    program = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
    job = cluster.run(f'srun -l -N2 -n2 python -I -c "{program}"; env | grep -c LD_', "-N2", "--gres=gpu:1")

    lines = sorted(job.output.splitlines())
    assert lines == ["0", f"0: {cluster.node('n1').stub.uuid(0)}", f"1: {cluster.node('n2').stub.uuid(0)}"]


def test_nodes_share_no_shm_and_no_run(cluster: Cluster) -> None:
    """What a job leaves in /dev/shm of one node is not on the other, nor on the machine."""
    job = cluster.run("touch /dev/shm/only-here; srun -w n2 -n1 -N1 ls /dev/shm", "-N2", "-n2")

    assert "only-here" not in job.output
    assert (cluster.node("n1").root / "dev/shm/only-here").exists()
    assert not Path("/dev/shm/only-here").exists()


def test_the_workload_drives_the_load(cluster: Cluster) -> None:
    """An ordinary user's program sets the load of its node's GPUs and reads the clock it got."""
    tests = HERE.parent
    program = (
        f"import sys; sys.path.insert(0, '{tests}'); from nvml_stub.stub import Stub; "
        "s = Stub(); s.set_load(1, generation=1.0); print(s.achieved_mhz(1))"
    )
    job = cluster.run(f'python -c "{program}"', "-w", "n1", "--gres=gpu:2")

    assert job.output.strip() == "1980"
    assert cluster.node("n1").stub.get(1, "load_generation") == 1.0
    assert cluster.node("n2").stub.get(1, "load_generation") == 0.0


def test_slurmd_survives_its_murder(cluster: Cluster) -> None:
    """After kill -9 of slurmd the node's namespace and GPUs are still there, and slurmd comes back into them."""
    node = cluster.node("n1")
    node.stub.lock_from_outside(3, 345, 900)
    node.kill_slurmd()
    gone = node.slurmd()

    node.restart_slurmd()

    assert gone is None and node.slurmd() is not None
    assert node.stub.locked_mhz(3) == (345, 900)
    assert cluster.run("true", "-w", "n1").state == "COMPLETED"


def test_settle_brings_everything_back(cluster: Cluster) -> None:
    """After a test has left jobs, a drained node, locks and faults behind, the next one finds none of it."""
    cluster.sbatch("sleep 600", "-N2", "--gres=gpu:4")
    cluster.sbatch("sleep 600", "-N2", "--gres=gpu:4")
    cluster.scontrol("update", "node=n2", "state=drain", "reason=test")
    stub = cluster.node("n1").stub
    stub.lock_from_outside(0, 345, 900)
    rule = stub.add_fault("*", code=999)

    cluster.settle()

    assert cluster.squeue() == []
    assert cluster.sinfo() == {"n1": "idle", "n2": "idle"}
    assert stub.at_default() and stub.calls() == []
    assert cluster.run("true", "-N2").state == "COMPLETED"
    assert stub.fault_fired(rule) == 0


def test_syslog_is_kept_per_node(cluster: Cluster) -> None:
    """What a process of a node sends to syslog can be read there."""
    cluster.run("logger from-the-job", "-w", "n2")

    assert "from-the-job" in cluster.node("n2").syslog()
    assert "from-the-job" not in cluster.node("n1").syslog()


def test_a_terminal_can_be_had(cluster: Cluster) -> None:
    """A pseudo-terminal works in a node's /dev for an ordinary user, as salloc and srun --pty need it."""
    program = "import os, pty; m, s = pty.openpty(); print(os.isatty(s))"

    done = cluster.node(0).execute([sys.executable, "-c", program])

    assert done.stdout.strip() == "True", done.stderr


def test_special_names_and_minors(make_cluster: MakeCluster) -> None:
    """Long and dotted node names work, and NVML's order may differ from the device files'."""
    names = ("n1.example.internal", "n" * 60)
    cluster = make_cluster(nodes=names, gpus=4, minors=(2, 3, 0, 1), plugin=False)

    job = cluster.run("srun -N2 -n2 bash -c 'echo $SLURMD_NODENAME' | sort", "-N2", "--gres=gpu:1")

    assert tuple(job.output.split()) == names
    assert [int(cluster.node(0).stub.get(gpu, "minor")) for gpu in range(4)] == [2, 3, 0, 1]


def test_stop_leaves_nothing(make_cluster: MakeCluster) -> None:
    """Stopping a cluster in mid-job ends its daemons, steps and orphans and removes its directory."""
    cluster = make_cluster(nodes=1, plugin=False)
    job_id = cluster.sbatch("setsid sleep 600 & unshare -rm sleep 600")
    cluster.wait_running(job_id)
    namespaces = [node.namespace for node in cluster.nodes.values()]
    before = in_namespaces(namespaces, cluster.base)

    cluster.stop()

    assert len(before) > 5
    assert in_namespaces(namespaces, cluster.base) == []
    assert not cluster.base.exists()


def test_a_checkout_below_a_private_directory_is_reachable(tmp_path: Path) -> None:
    """A private directory above the interpreter is opened for the job's user just as far as needed."""
    tmp_path.chmod(0o700)
    wanted = tmp_path / "closed" / "checkout"
    wanted.mkdir(parents=True)
    (wanted / "file").write_text("seen")
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "stage").mkdir()
    (tmp_path / "closed").chmod(0o700)
    program = (
        f"import sys; sys.path.insert(0, {str(HERE.parent)!r}); from pathlib import Path;"
        f"from rig import namespace as n; base = Path('/mnt'); n.mount('-t', 'tmpfs', 'stage', '/mnt');"
        f"n.open_view([Path({str(wanted)!r})], base)"
    )
    look = f"cat {wanted}/file; ls -A {tmp_path}"
    closed_above = [str(p) for p in tmp_path.parents if not p.stat().st_mode & 0o001]

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         f'{sys.executable} -c "$1" && setpriv --reuid=4001 --regid=4001 --clear-groups sh -c "$2"',
         "sh", program, look],
        capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seen"), closed_above
    assert "secret" not in done.stdout


def test_the_command_line(tmp_path: Path) -> None:
    """The documented commands start a cluster, print a submission that works, and stop it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(HERE / "cluster.py"), "--remember", str(tmp_path / "here.json"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )

    try:
        started = run("start", "--nodes", "2", "--gpus", "3")
        again = run("start")
        used = run("shell", "srun", "-N2", "-n2", "--gres=gpu:3", "id", "-un")
        printed = next(line for line in started.stdout.splitlines() if "sbatch" in line)
        short = printed.replace("--updates 60", "--updates 1").replace("sbatch ", "sbatch --wait ")
        submitted = run("shell", "sh", "-c", f"{short.strip()} && cat slurm-*.out eerl-*/report.txt")
    finally:
        stopped = run("stop")

    assert started.returncode == 0, started.stderr
    assert again.returncode == 1 and "running already" in again.stderr
    assert used.stdout.split() == [job_user().pw_name] * 2, used.stderr
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert re.search(r"2 of 2 nodes, 6( of 6)? GPUs", " ".join(submitted.stdout.split())), submitted.stdout
    assert stopped.returncode == 0 and "no cluster is running" in run("stop").stderr
