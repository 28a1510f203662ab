"""What Slurm says about the job, and the command that starts one agent per node: strings, runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eerl_launch.hostlist import HostlistError, expand
from eerl_launch.own_modules import OWN_OPTIONS

#: What the agents' srun may see of Slurm: who and where the job is, and how to reach the controller. All else
#: that begins like a Slurm variable can be one of srun's own options (more of them in each release).
_KEPT = frozenset(
    {
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_WORKING_CLUSTER",
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NNODES",
        "SLURM_JOB_CPUS_PER_NODE",
        "SLURM_JOB_UID",
        "SLURM_JOB_USER",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_ACCOUNT",
        "SLURM_NODE_ALIASES",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_RESTART_COUNT",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_HET_SIZE",
        "SLURMD_NODENAME",
    }
)
# SLURM_SPANK_: without PrologFlags=Alloc a node's prolog hears of --eerl from its first step, which may be the agent.
_KEPT_PREFIXES = ("SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_NODELIST_HET_GROUP_", "SLURM_SPANK_")
_SLURM_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "PMI2_")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job as its environment tells it; what is not told is None. ``nodes`` are Slurm's own node names.

    ``nodes`` covers component ``het_index`` of a heterogeneous job; ``other_nodes`` are those of the others.
    """

    job_id: int
    nodes: tuple[str, ...]
    nodes_problem: str = ""
    other_nodes: tuple[str, ...] = ()
    array_job_id: int | None = None
    array_task: int | None = None
    restart: int = 0
    node_name: str | None = None
    het_size: int = 1
    het_index: int = 0
    user: str | None = None
    uid: int | None = None
    job_name: str | None = None
    partition: str | None = None
    account: str | None = None
    cluster: str | None = None
    submit_dir: str | None = None
    step_id: int | None = None
    procid: int | None = None
    node_index: int | None = None
    ntasks_in_step: int | None = None
    cpus_on_node: int | None = None
    gpu_indices: tuple[int, ...] | None = None
    shared_gpus: bool = False
    start_time_unix_s: int | None = None
    end_time_unix_s: int | None = None

    @property
    def in_step(self) -> bool:
        """Whether srun started us (else: the batch script or salloc's shell)."""
        return self.step_id is not None


def _integer(env: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a whole number."""
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
    return None


def _indices(text: str | None) -> tuple[int, ...] | None:
    """GPU positions such as ``0,1`` or ``0-3,6``; None when unset, empty or written in another way."""
    if not text or not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", text):
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _het_index(env: Mapping[str, str], job_id: int, het_size: int) -> int:
    """Our component of a heterogeneous job: the one whose own job id is ours, else the first."""
    for index in range(het_size):
        if _integer(env, f"SLURM_JOB_ID_HET_GROUP_{index}") == job_id:
            return index
    return 0


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    """The job these variables belong to, or None outside Slurm.

    A node list that cannot be read leaves the node we are on, and says so in ``nodes_problem``.
    """
    job_id = _integer(env, "SLURM_JOB_ID", "SLURM_JOBID")
    if job_id is None:
        return None
    node_name = env.get("SLURMD_NODENAME") or None
    het_size = min(max(1, _integer(env, "SLURM_HET_SIZE") or 1), 128)  # MAX_HET_JOB_COMPS is 128
    het_index = _het_index(env, job_id, het_size) if het_size > 1 else 0
    compact = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    if het_size > 1:
        compact = env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{het_index}") or compact
    problem, others = "", list[str]()
    try:
        nodes = tuple(dict.fromkeys(expand(compact)))
        for index in set(range(het_size)) - {het_index}:
            others += expand(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{index}", ""))
        if not nodes:
            problem = "SLURM_JOB_NODELIST is empty"
    except HostlistError as error:
        nodes, problem = (), f"SLURM_JOB_NODELIST cannot be read: {error}"
    if not nodes and node_name:
        nodes = (node_name,)
    step_id = _integer(env, "SLURM_STEP_ID", "SLURM_STEPID")
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        nodes_problem=problem,
        other_nodes=tuple(name for name in dict.fromkeys(others) if name not in nodes),
        array_job_id=_integer(env, "SLURM_ARRAY_JOB_ID"),
        array_task=_integer(env, "SLURM_ARRAY_TASK_ID"),
        restart=_integer(env, "SLURM_RESTART_COUNT") or 0,
        node_name=node_name,
        het_size=het_size,
        het_index=het_index,
        user=env.get("SLURM_JOB_USER") or env.get("USER") or env.get("LOGNAME"),
        uid=_integer(env, "SLURM_JOB_UID"),
        job_name=env.get("SLURM_JOB_NAME"),
        partition=env.get("SLURM_JOB_PARTITION"),
        account=env.get("SLURM_JOB_ACCOUNT"),
        cluster=env.get("SLURM_CLUSTER_NAME"),
        submit_dir=env.get("SLURM_SUBMIT_DIR"),
        step_id=step_id,
        procid=_integer(env, "SLURM_PROCID"),
        node_index=_integer(env, "SLURM_NODEID"),
        ntasks_in_step=_integer(env, "SLURM_STEP_NUM_TASKS") if step_id is not None else None,
        cpus_on_node=_integer(env, "SLURM_CPUS_ON_NODE"),
        # Inside an srun step SLURM_JOB_GPUS is inherited from the batch node; only the step's own is true.
        gpu_indices=_indices(env.get("SLURM_STEP_GPUS" if step_id is not None else "SLURM_JOB_GPUS")),
        shared_gpus=bool(_integer(env, "SLURM_SHARDS_ON_NODE")) or "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in env,
        start_time_unix_s=_integer(env, "SLURM_JOB_START_TIME"),
        end_time_unix_s=_integer(env, "SLURM_JOB_END_TIME"),
    )


def agent_argv(
    allocation: Allocation, interpreter: str, agent_args: Sequence[str] = (), srun: str = "srun"
) -> list[str]:
    """The command that starts one agent on each node, beside whatever steps the job runs.

    ``interpreter`` is an absolute path, so that an empty PATH on a node does no harm; ``-I`` keeps the
    working directory, PYTHONPATH and user site out, ``-B`` leaves no half-written module.
    No ``--unbuffered``: that is a pty, and it breaks lines.
    """
    nodes = len(allocation.nodes)
    return [
        srun,
        "--overlap",  # a step that owns everything must not make us wait
        "--gres=none",  # the broker reads the GPUs; asking for them can be refused
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--chdir=/",
        "--job-name=eerl-agent",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=all",
        interpreter,
        *OWN_OPTIONS,
        *("-m", "eerl_launch.agent"),
        *agent_args,
    ]


def agent_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of the agents' srun: the job's identity stays, every option of srun's own is gone."""
    return {
        name: value
        for name, value in env.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or not name.startswith(_SLURM_PREFIXES)
    }


def parse_gpu_indices(text: str) -> dict[str, tuple[int, ...]]:
    """GPU positions by node out of ``scontrol show job -d``; nodes without a known position are left out."""
    found: dict[str, tuple[int, ...]] = {}
    for match in re.finditer(r"^\s+Nodes=(\S+)\s.*?\bGRES=(\S*)", text, re.MULTILINE):
        indices: list[int] = []
        for part in re.finditer(r"(?:^|,)gpu(?::[^():,]+)*\(IDX:([0-9,-]+)\)", match[2]):
            indices += _indices(part[1]) or ()
        if not indices:
            continue
        try:
            nodes = expand(match[1])
        except HostlistError:
            continue
        found.update(dict.fromkeys(nodes, tuple(sorted(set(indices)))))
    return found


def run_folder_name(allocation: Allocation) -> str:
    """``eerl-<jobid>[_<arraytask>][.<restart>]``, the job named as squeue names it (contract 3.2)."""
    name = f"eerl-{allocation.job_id}"
    if allocation.array_task is not None:
        name = f"eerl-{allocation.array_job_id or allocation.job_id}_{allocation.array_task}"
    return f"{name}.{allocation.restart}" if allocation.restart else name
