"""Slurm's environment in, the agents' command out: golden lines, and node lists against the real scontrol."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eerl_launch.hostlist import HostlistError, expand
from eerl_launch.slurm import (
    Allocation,
    agent_argv,
    agent_environment,
    parse_gpu_indices,
    read_allocation,
    run_folder_name,
)

BATCH = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "node[01-02,07]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURMD_NODENAME": "node01",
    "SLURM_JOB_USER": "ann",
    "SLURM_JOB_NAME": "grpo",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_SUBMIT_DIR": "/home/ann",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_PROCID": "0",
}


@pytest.mark.parametrize(
    ("compact", "names"),
    [
        ("node[01-03,07]", "node01 node02 node03 node07"),
        (
            "ml-16-node-[001-002,004],ml-17-node-[001-003]",
            "ml-16-node-001 ml-16-node-002 ml-16-node-004 ml-17-node-001 ml-17-node-002 ml-17-node-003",
        ),
        ("foo-[10-11]-[01-02]", "foo-10-01 foo-10-02 foo-11-01 foo-11-02"),
        ("n", "n"),
        ("n1.example.internal", "n1.example.internal"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("x[2,1],a", "x2 x1 a"),
        ("a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2"),
        ("", ""),
    ],
)
def test_known_node_lists(compact: str, names: str) -> None:
    """Lists whose expansion was read off scontrol 22.05, order kept."""
    assert expand(compact) == tuple(names.split())


@pytest.mark.parametrize(
    "compact", ["n[3-1]", "n[", "n[]", "n[1-2]x", "n[1a]", "n[1]]", "n[[1]", "n[1-99999]"]
)
def test_illegal_node_lists(compact: str) -> None:
    """What Slurm refuses is refused, with the list quoted, and costs no memory."""
    with pytest.raises(HostlistError):
        expand(compact)


_NUMBER = st.integers(0, 130).flatmap(lambda n: st.integers(1, 4).map(lambda width: str(n).zfill(width)))
_RANGE = st.one_of(
    _NUMBER, st.tuples(_NUMBER, st.integers(0, 5)).map(lambda pair: f"{pair[0]}-{int(pair[0]) + pair[1]}")
)
_BRACKET = st.lists(_RANGE, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
_TEXT = st.from_regex(r"[abn0][abn0-]{0,3}", fullmatch=True)
_ITEM = st.one_of(
    _TEXT, st.lists(st.tuples(_TEXT, _BRACKET).map("".join), min_size=1, max_size=3).map("".join)
)


@pytest.fixture(scope="module")
def scontrol_conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A configuration that is enough for ``scontrol show hostnames``, which asks no controller."""
    if not shutil.which("scontrol"):
        pytest.skip("scontrol is not installed: expansion is compared with recorded answers only")
    path: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=t\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    yield str(path)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(items=st.lists(_ITEM, min_size=1, max_size=4))
def test_node_lists_equal_scontrol(scontrol_conf: str, items: list[str]) -> None:
    """Every legal list gives what the real scontrol gives."""
    compact = ",".join(items)

    result = subprocess.run(
        ["scontrol", "show", "hostnames", compact],
        env={**os.environ, "SLURM_CONF": scontrol_conf},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert list(expand(compact)) == result.stdout.split()


@given(st.text("an01-9[],. ", max_size=30))
def test_any_text_expands_or_is_refused(text: str) -> None:
    """No list, however odd, ends in another exception or in endless names."""
    try:
        names = expand(text)
    except HostlistError as error:
        assert str(error)
    else:
        assert all(name and "[" not in name for name in names)


def test_no_job() -> None:
    """Outside Slurm, and with a job id that is none, there is no allocation."""
    assert read_allocation({}) is None
    assert read_allocation({"SLURM_JOB_ID": "x"}) is None


def test_batch_script() -> None:
    """In the batch script all nodes of the job and its own GPUs are known."""
    allocation = read_allocation(BATCH)

    assert allocation is not None
    assert allocation.nodes == ("node01", "node02", "node07")
    assert allocation.gpu_indices == (0, 1)
    assert not allocation.in_step
    assert (allocation.user, allocation.cluster, allocation.partition) == ("ann", "c", "gpu")
    assert allocation.end_time_unix_s is None


def test_inside_a_step() -> None:
    """In a step the inherited SLURM_JOB_GPUS is not believed; SLURM_STEP_GPUS is."""
    step = {**BATCH, "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_GPUS": "0,1,2"}

    without, own = read_allocation(step), read_allocation({**step, "SLURM_STEP_GPUS": "2-3"})

    assert without is not None and own is not None
    assert without.in_step
    assert without.gpu_indices is None
    assert own.gpu_indices == (2, 3)
    assert own.ntasks_in_step == 8


def test_unreadable_node_list_leaves_our_node() -> None:
    """A node list that cannot be read leaves the node we run on, and says why."""
    allocation = read_allocation({**BATCH, "SLURM_JOB_NODELIST": "node[02-"})

    assert allocation is not None
    assert allocation.nodes == ("node01",)
    assert "cannot be read" in allocation.nodes_problem


def test_heterogeneous_job() -> None:
    """The other components' nodes are named, so that a report can say they are not covered."""
    allocation = read_allocation(
        {
            **BATCH,
            "SLURM_HET_SIZE": "2",
            "SLURM_JOB_ID_HET_GROUP_0": "42",
            "SLURM_JOB_ID_HET_GROUP_1": "43",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "node[01-02]",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[1-2]",
        }
    )

    assert allocation is not None
    assert allocation.nodes == ("node01", "node02")
    assert allocation.other_nodes == ("cpu1", "cpu2")
    assert allocation.het_index == 0


@given(st.dictionaries(st.sampled_from([*BATCH, "SLURM_HET_SIZE", "SLURM_STEP_ID"]), st.text(max_size=12)))
def test_any_environment_is_read(env: dict[str, str]) -> None:
    """A forged environment gives an allocation or none, never an exception."""
    allocation = read_allocation(env)

    assert allocation is None or allocation.job_id >= 0


def test_agent_command() -> None:
    """The whole line, word for word: each option was needed on a real cluster."""
    allocation = Allocation(job_id=42, nodes=("node01", "node02"))

    argv = agent_argv(allocation, "/opt/venv/bin/python3", ["--run", "x y"])

    assert argv == [
        "srun", "--overlap", "--gres=none", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL",
        "--chdir=/",
        "--job-name=eerl-agent", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--no-kill",
        "--kill-on-bad-exit=0", "--wait=0", "--input=all",
        "/opt/venv/bin/python3", "-I", "-B", "-m", "eerl_launch.agent", "--run", "x y",
    ]  # fmt: skip


def test_agent_environment() -> None:
    """srun's own inputs are gone, the job's identity and everything that is not Slurm's stay unchanged."""
    hostile = {
        "SLURM_MEM_PER_CPU": "700", "SLURM_MEM_PER_NODE": "100", "SLURM_CPU_BIND": "mask_cpu:0xff",
        "SLURM_GPU_BIND": "single:1", "SLURM_EXPORT_ENV": "NONE", "SLURM_GPUS_PER_TASK": "1",
        "SLURM_EXACT": "1",
        "SLURM_TRES_PER_TASK": "gres/gpu=1", "SRUN_CPUS_PER_TASK": "4", "SLURM_UNBUFFEREDIO": "1",
        "SLURM_HOSTFILE": "/x", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "16", "SLURM_GPU_FREQ": "low",
        "SBATCH_EXPORT": "NONE", "PMI_RANK": "0", "SLURM_SOME_FUTURE_OPTION": "1",
    }  # fmt: skip
    kept = {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "LANG": "C",
        "EERL_RUN_ID": "r",
    }

    result = agent_environment({**BATCH, **hostile, **kept})

    assert not set(hostile) & set(result)
    assert {name: result[name] for name in kept} == kept
    assert result["SLURM_JOB_ID"] == "42"
    assert result["SLURM_JOB_NODELIST"] == "node[01-02,07]"


SHOW_JOB = """\
JobId=42 JobName=grpo
   NumNodes=3 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:7
     Nodes=node[01-02] CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:2-3)
     Nodes=node07 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,4),gpu:v100:1(IDX:7),shard:2(IDX:0)
     Nodes=node08 CPU_IDs=0 Mem=0 GRES=gpu:2(CNT:2)
     Nodes=node09 CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""


def test_gpu_indices_of_scontrol() -> None:
    """Positions come per node, over types and ranges; counts without positions are not guessed."""
    assert parse_gpu_indices(SHOW_JOB) == {"node01": (2, 3), "node02": (2, 3), "node07": (0, 4, 7)}


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({}, "eerl-42"),
        ({"SLURM_RESTART_COUNT": "2"}, "eerl-42.2"),
        ({"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "0"}, "eerl-40_0"),
        ({"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1"}, "eerl-40_3.1"),
    ],
)
def test_run_folder_names(extra: dict[str, str], name: str) -> None:
    """Array tasks and attempts have folders of their own, named as squeue names the job."""
    allocation = read_allocation({**BATCH, **extra})

    assert allocation is not None
    assert run_folder_name(allocation) == name
