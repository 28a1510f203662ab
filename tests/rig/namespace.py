"""Runs inside a node's new mount namespace: lays out what a node has of its own, then holds the namespace open.

A node gets its own /dev (stand-in GPU devices, its own /dev/shm and /dev/log), its own /run (so /run/eerl) and its
own loader cache (so that ``libnvidia-ml.so.1`` is found without an environment variable). Directories of root
that hide the interpreter or the checkout from the job's user are replaced by a view of just what is needed.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

KEPT_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(*arguments: str) -> None:
    """Run mount(8); its message says what is wrong."""
    subprocess.run(["mount", *arguments], check=True)


def make_dev(gpus: int, stage: Path) -> None:
    """A container-like /dev with GPU stand-ins, laid over the machine's in this namespace only."""
    new = stage / "dev"
    new.mkdir()
    mount("-t", "tmpfs", "-o", "mode=0755", "dev", str(new))
    for name in KEPT_DEVICES:
        _bind_file(f"/dev/{name}", new / name)
    for index in range(gpus):
        device = new / f"nvidia{index}"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(195, index))
        device.chmod(0o666)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (new / name).symlink_to(target)
    (new / "pts").mkdir()
    mount("--rbind", "/dev/pts", str(new / "pts"))
    os.mknod(new / "ptmx", stat.S_IFCHR | 0o666, os.makedev(5, 2))  # no bind: it wants pts beside it
    (new / "ptmx").chmod(0o666)
    (new / "shm").mkdir()
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", str(new / "shm"))
    mount("--rbind", str(new), "/dev")


def _bind_file(source: str, target: Path) -> None:
    target.touch()
    mount("--bind", source, str(target))


def closed_ancestor(path: Path) -> Path | None:
    """The topmost directory above (or at) a path that others may not search; None when all may."""
    for ancestor in [*reversed(path.parents), path]:
        if not ancestor.stat().st_mode & stat.S_IXOTH:
            return ancestor
    return None


def open_view(paths: list[Path], stage: Path) -> None:
    """Make paths below closed directories reachable, and nothing else of those directories."""
    hidden: dict[Path, list[Path]] = {}
    for path in paths:
        closed = closed_ancestor(path)
        if closed is not None:
            hidden.setdefault(closed, []).append(path)
    for number, (closed, wanted) in enumerate(hidden.items()):
        behind = stage / f"behind{number}"
        behind.mkdir()
        mount("--rbind", str(closed), str(behind))
        mount("-t", "tmpfs", "-o", "mode=0755", "view", str(closed))
        for path in sorted(set(wanted)):
            if any(other in path.parents for other in wanted):
                continue  # comes with the directory above it
            path.mkdir(parents=True, exist_ok=True)
            mount("--rbind", str(behind / path.relative_to(closed)), str(path))


def main() -> None:
    """Set the namespace up from the JSON on the command line, say so on stdout, and wait for ever."""
    wish = json.loads(sys.argv[1])
    base = Path(wish["base"])
    mount("--make-rprivate", "/")
    stage = base / "stage" / wish["node"]
    stage.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "mode=0700", "stage", str(stage))
    make_dev(wish["gpus"], stage)
    mount("-t", "tmpfs", "-o", "mode=0755", "run", "/run")
    Path("/run/eerl").mkdir()
    (Path("/dev") / "log").symlink_to(base / "syslog" / wish["node"])
    if Path("/etc/slurm").is_dir():  # where clients look without SLURM_CONF, as on a real node
        mount("--bind", str(base / "etc"), "/etc/slurm")
    if wish["loader_cache"]:
        mount("--bind", str(base / "lib" / "ld.so.cache"), "/etc/ld.so.cache")
    if wish["plugin_missing"]:
        (stage / "empty").mkdir()
        mount("--bind", str(stage / "empty"), str(base / "eerl"))
    open_view([Path(path) for path in wish["visible"]], stage)
    os.chdir("/")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.execvp("sleep", ["sleep", "infinity"])


if __name__ == "__main__":
    main()
