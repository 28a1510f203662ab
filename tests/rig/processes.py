"""Finding and ending what a cluster has started, whoever forked it: by mount namespace, never by a name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A live process; ``start_ticks`` tells a reused pid apart."""

    pid: int
    ppid: int
    uid: int
    state: str
    start_ticks: int
    command: str

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal this very process, not another that has its pid by now."""
        with contextlib.suppress(ProcessLookupError):
            now = read_process(self.pid)
            if now is not None and now.start_ticks == self.start_ticks:
                os.kill(self.pid, number)


def read_process(pid: int) -> Process | None:
    """The process with this pid, None when there is none or it is a zombie."""
    folder = Path("/proc") / str(pid)
    try:
        text = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        uid = folder.stat().st_uid
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    if rest[0] in "ZX":
        return None
    return Process(pid, int(rest[1]), uid, rest[0], int(rest[19]), command or f"[{name}]")


def mount_namespace(pid: int) -> str | None:
    """The identity of a process's mount namespace."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None


def in_namespaces(namespaces: Iterable[str], base: Path | None = None) -> list[Process]:
    """All processes in these mount namespaces, and those elsewhere whose environment names the cluster's base."""
    wanted = set(namespaces)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        if mount_namespace(pid) in wanted or (base is not None and _was_started_under(pid, base)):
            process = read_process(pid)
            if process is not None:
                found.append(process)
    return found


def _was_started_under(pid: int, base: Path) -> bool:
    """True for a process of the cluster that has left for a namespace of its own (a container in a job)."""
    try:
        return f"SLURM_CONF={base}/".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def end(processes: Iterable[Process], patience_s: float = 10.0) -> list[Process]:
    """Kill; returns what is still there after the patience is over."""
    left = list(processes)
    for process in left:  # stopped first, so that none of them acts on another's death
        process.kill(signal.SIGSTOP)
    deadline = time.monotonic() + patience_s
    while left and time.monotonic() < deadline:
        for process in left:
            process.kill()
        time.sleep(0.02)
        left = [p for p in left if (now := read_process(p.pid)) and now.start_ticks == p.start_ticks]
    return left
