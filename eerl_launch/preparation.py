"""Everything that must exist before the command starts: run folder, private folder, marker socket, environment."""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from eerl_launch import __version__, adapter_folder
from eerl_launch.ledger import SCHEMA_VERSION
from eerl_launch.policy import Policy
from eerl_launch.slurm import Allocation, agent_argv, read_allocation, run_folder_name
from eerl_launch.sockets import SOCKET_NAME, InstanceLock, listen, private_folder, sweep_dead_folders
from eerl_launch.telling import say

_MAX_SAME_NAME = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    command: Sequence[str]
    policy: Policy
    policy_file: Path | None = None
    simulate: str | None = None
    time_scale: float = 1.0
    out: Path | None = None
    adapter: str = "none"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can start: the command's environment, the session's config, descriptors for the session."""

    environment: Mapping[str, str]
    config: Mapping[str, Any]
    pass_fds: tuple[int, ...]


class RefusedError(Exception):
    """This eerl-run must be transparent: another one of the job measures already."""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _make_run_folder(options: Options, job: Allocation | None) -> Path:
    """A new folder for this run, never one that exists; where the wanted place cannot be written, another."""
    name = run_folder_name(job) if job is not None else f"eerl-local-{time.strftime('%Y%m%dT%H%M%S')}"
    wanted = options.out or Path((job.submit_dir if job else None) or Path.cwd())
    problem = None
    for base in (wanted, Path.cwd(), Path(tempfile.gettempdir())):
        try:
            base.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, _MAX_SAME_NAME):
                folder = base.absolute() / (name if attempt == 1 else f"{name}-{attempt}")
                try:
                    folder.mkdir()
                except FileExistsError:
                    continue
                if problem is not None:
                    say(f"{problem}; the report goes to {folder}")
                return folder
        except OSError as error:
            problem = problem or f"cannot write to {base} ({error.strerror})"
    raise OSError(problem or "no place for the run folder")


def _refuse_second_instance(job: Allocation | None) -> None:
    if job is not None and job.in_step and (job.ntasks_in_step or 1) > 1 and job.procid:
        raise RefusedError(
            f"a step with {job.ntasks_in_step} tasks: task 0 measures the whole job, the others run the "
            "command only"
            if job.procid == 1
            else ""
        )


def _expected_nodes(job: Allocation | None, sim_nodes: int) -> list[str]:
    if sim_nodes:
        return [f"sim{index:02d}" for index in range(sim_nodes)]
    return list(job.nodes) if job is not None else [socket.gethostname()]


def _start_event(
    options: Options, job: Allocation | None, nodes: list[str], run_id: str, simulated: str | None
) -> dict[str, Any]:
    now = time.time()
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "job_id": job.job_id if job else None,
        "array_job_id": job.array_job_id if job else None,
        "array_task": job.array_task if job else None,
        "restart": job.restart if job else 0,
        "user": (job.user if job else None) or _user(),
        "cluster": job.cluster if job else None,
        "job_name": job.job_name if job else None,
        "partition": job.partition if job else None,
        "account": job.account if job else None,
        "nodes": nodes,
        "nodes_not_covered": list(job.other_nodes) if job else [],
        "time_unix_s": now,
        "time_iso": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
        "simulated": simulated,
        "time_scale": options.time_scale,
        "policy": options.policy.to_dict(),
        "policy_file": str(options.policy_file) if options.policy_file else None,
        "command": os.path.basename(options.command[0]),  # noqa: PTH119 - a word, not a path of ours
        "versions": {"eerl": __version__, "python": platform.python_version()},
    }


def _lay_adapters(options: Options, private: Path, environment: dict[str, str]) -> str:
    """Put the framework adapters before the command's Pythons; the folder's name, empty when there is none."""
    if options.adapter == "none":
        return ""
    reason = adapter_folder.why_off(options.command)
    if reason is not None:
        say(f"{reason}: no framework adapter is loaded; run it without, or send markers from the script")
        return ""
    try:
        folder = adapter_folder.lay(private, adapter_folder.new_name())
    except OSError as error:
        say(
            f"the framework adapters cannot be laid into {private} ({error}); only the script's own markers come"
        )
        return ""
    environment |= adapter_folder.environment(environment, folder, options.adapter)
    return folder.name


def prepare(options: Options, env: Mapping[str, str]) -> Prepared:
    """Make folders and socket; raises RefusedError, OptionError, or OSError when there is no way to measure."""
    job = read_allocation(env)
    _refuse_second_instance(job)
    sim_spec = None
    if options.simulate:
        from eerl_launch.simulate import parse_spec

        sim_spec = parse_spec(options.simulate)
    sweep_dead_folders()
    job_name = str(job.job_id) if job is not None else f"local{os.getpid()}"
    private = private_folder(job_name)
    lock = InstanceLock(private)
    if not lock.held:
        raise RefusedError(
            "another eerl-run of this job counts this node's GPUs already; this one counts none and runs "
            "the command only"
        )
    server = listen(private / SOCKET_NAME)
    run_folder = _make_run_folder(options, job)
    run_id = f"{run_folder.name}-{secrets.token_hex(4)}"
    origin_s = time.monotonic()
    sim_folder = ""
    environment = dict(env)
    if sim_spec is not None:
        from eerl_launch.devices.sim import SimGpus

        folder = private / "sim"
        simulation = SimGpus.create(folder, sim_spec, options.time_scale)
        origin_s = simulation.clock.origin_ns / 1e9
        sim_folder = str(folder)
        environment["EERL_SIM_DIR"] = sim_folder
    nodes = _expected_nodes(job, sim_spec.nodes if sim_spec else 0)
    if job is not None and job.other_nodes and sim_spec is None:
        say(
            f"heterogeneous job: only component {job.het_index} is measured, not {', '.join(job.other_nodes)}"
        )
    if job is not None and job.nodes_problem:
        say(f"{job.nodes_problem}; only this node is measured")
    environment |= {
        "EERL_SOCKET": str(private / SOCKET_NAME),
        "EERL_RUN_DIR": str(run_folder),
        "EERL_RUN_ID": run_id,
    }
    adapter_name = _lay_adapters(options, private, environment)
    adapter = options.adapter if adapter_name else "none"
    marker_fd = server.detach()
    config = {
        "run_folder": str(run_folder),
        "run_id": run_id,
        "private_folder": str(private),
        "adapter_folder": adapter_name,
        "waits_for_agents": bool(adapter_name) and job is not None and len(nodes) > 1 and sim_spec is None,
        "session_node": job.node_name if job is not None else nodes[0],
        "nodes": nodes,
        "allocation": asdict(job) if job is not None else None,
        "policy": options.policy.to_dict(),
        "origin_s": origin_s,
        "time_scale": options.time_scale,
        "sim_folder": sim_folder,
        "marker_fd": marker_fd,
        "lock_fd": lock.fd,
        "end_time_unix_s": job.end_time_unix_s if job is not None else None,
        "start": {
            **_start_event(options, job, nodes, run_id, options.simulate),
            "marker_socket": environment["EERL_SOCKET"],
            "adapter": adapter,
        },
    }
    return Prepared(environment, config, (marker_fd, lock.fd))


def describe(options: Options, env: Mapping[str, str]) -> str:
    """What ``--dry-run`` prints: allocation, pools, agent command, policy in force; starts nothing."""
    job = read_allocation(env)
    lines = []
    if options.simulate:
        from eerl_launch.simulate import parse_spec

        spec = parse_spec(options.simulate)
        lines.append(
            f"allocation: SIMULATED, {spec.nodes} nodes with {spec.gpus_per_node} {spec.model} GPUs each"
        )
        agents = "one local process per simulated node"
    elif job is None:
        lines.append(
            f"allocation: not inside a Slurm job; this node only ({socket.gethostname()}), measure only"
        )
        agents = "one local process"
    else:
        lines.append(f"allocation: job {job.job_id}, {len(job.nodes)} nodes: {' '.join(job.nodes)}")
        if job.other_nodes:
            lines.append(f"  not covered (other components): {' '.join(job.other_nodes)}")
        agents = shlex.join(agent_argv(job, sys.executable))
    pools = options.policy.pools
    lines.append(f"pools: generation {_pool(pools.generation)}; training {_pool(pools.training)}")
    lines.append(f"agents: {agents}")
    lines.append(f"adapter: {options.adapter}")
    lines.append(f"policy in force ({options.policy_file or 'defaults'}):")
    for key, value in options.policy.to_dict().items():
        lines.append(f"  {key}: {value}")
    lines.append(f"command: {shlex.join(options.command)}")
    return "\n".join(lines)


def _pool(chosen: Sequence[str] | None) -> str:
    return "as the trainer says, else all GPUs" if chosen is None else " ".join(chosen)
