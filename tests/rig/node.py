"""One node of a test cluster: its GPUs, its processes, its logs, and ways to hurt it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvml_stub.stub import Call, Stub
from rig.processes import Process, end, in_namespaces, mount_namespace

if TYPE_CHECKING:
    from rig.cluster import Cluster


class Node:
    """A slurmd in a mount namespace of its own, which a holder process keeps open when slurmd dies."""

    def __init__(self, cluster: Cluster, name: str, holder: int) -> None:
        self.cluster = cluster
        self.name = name
        self.holder = holder
        namespace = mount_namespace(holder)
        assert namespace is not None, f"the namespace of {name} is gone"
        self.namespace = namespace

    @property
    def root(self) -> Path:
        """The node's file system as seen from outside; root only."""
        return Path(f"/proc/{self.holder}/root")

    @cached_property
    def stub(self) -> Stub:
        """The node's GPUs."""
        return Stub(self.root / "dev/shm/eerl-nvml-stub")

    def calls(self, function: str | None = None, gpu: int | None = None) -> list[Call]:
        """The node's NVML call log."""
        return self.stub.calls(function, gpu)

    def run_eerl(self) -> list[str]:
        """Everything below /run/eerl of the node, relative, sorted; empty when all is forgotten.

        The directory of the node itself does not count: it is no job's.
        """
        top = self.root / "run/eerl"
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path != top / self.name)

    def run_dir(self, job_id: int | None = None) -> Path:
        """The plugin's directory of the node or of a job, seen from outside."""
        top = self.root / "run/eerl" / self.name
        return top if job_id is None else top / str(job_id)

    # Logs.

    def log(self) -> str:
        """slurmd's log, with that of its steps."""
        return self._text(f"{self.name}.log")

    def syslog(self) -> str:
        """What the node's processes have sent to syslog."""
        return self._text(f"{self.name}.syslog")

    def _text(self, file: str) -> str:
        path = self.cluster.base / "log" / file
        return path.read_text(errors="replace") if path.exists() else ""

    # Processes.

    def processes(self, pattern: str = "") -> list[Process]:
        """Live processes of the node whose command line matches, parents first; the holder left out."""
        found = in_namespaces([self.namespace])
        chosen = [p for p in found if p.pid != self.holder and re.search(pattern, p.command)]
        return sorted(chosen, key=lambda p: (p.start_ticks, p.pid))

    def slurmd(self) -> Process | None:
        """The node's slurmd."""
        found = self.processes(rf"^\S*slurmd -D -N {re.escape(self.name)} ")
        return found[0] if found else None

    def brokers(self, job_id: int | None = None) -> list[Process]:
        """The broker's processes (of one job), supervisor before worker."""
        found = self.processes(r"^\S*eerl-clockd\b")
        if job_id is not None:
            found = [p for p in found if re.search(rf"\b{job_id}\b", p.command)]
        return sorted(found, key=lambda p: any(p.ppid == other.pid for other in found))

    def kill(self, pattern: str, number: signal.Signals = signal.SIGKILL) -> list[Process]:
        """Signal the node's processes whose command line matches; returns them."""
        chosen = self.processes(pattern)
        for process in chosen:
            process.kill(number)
        return chosen

    def kill_slurmd(self) -> None:
        """kill -9 slurmd and see it gone; its steps and brokers live on."""
        slurmd = self.slurmd()
        if slurmd is not None and end([slurmd]):
            raise TimeoutError(f"slurmd of {self.name} would not die")

    def kill_stepds(self) -> None:
        """kill -9 all slurmstepds of the node."""
        end(self.processes(r"^slurmstepd: \["))

    def start_slurmd(self) -> None:
        """Start slurmd in the node's namespace."""
        self.cluster.spawn(
            f"{self.name}.out",
            [
                "nsenter",
                f"--mount=/proc/{self.holder}/ns/mnt",
                "--",
                "slurmd",
                "-D",
                "-N",
                self.name,
                "-f",
                str(self.cluster.conf),
            ],
        )

    def restart_slurmd(self) -> None:
        """Kill what is left of slurmd, start it again and wait until the controller has it back."""
        self.kill_slurmd()
        time.sleep(0.1)  # the port is free a moment after the process
        self.start_slurmd()
        self.cluster.wait_nodes([self.name])

    def execute(
        self, command: Sequence[str], *, as_root: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's namespace, as the job's user unless told otherwise."""
        user = self.cluster.user
        drop = (
            []
            if as_root
            else ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        )
        return subprocess.run(
            ["nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "--", *drop, *command],
            env=self.cluster.environment(),
            cwd="/",
            text=True,
            capture_output=True,
            **{"timeout": 120, **options},
        )

    def reset_gpus(self) -> None:
        """Bring the stub back to its first state: no load, no lock, no fault, an empty log."""
        self.stub.clear_faults()
        self.stub.log_all(False)
        for index in range(len(self.stub)):
            self.stub.set(
                index,
                locked_min_mhz=0,
                locked_max_mhz=0,
                application_mhz=0,
                application_restricted=1,
                achieved_limit_mhz=0,
                mig=0,
                persistence=1,
                switch_delay_s=0,
            )
        self.stub.clear_load()
        self.stub.clear_calls()

    def is_alive(self) -> bool:
        """True while the holder keeps the namespace open."""
        return mount_namespace(self.holder) == self.namespace
