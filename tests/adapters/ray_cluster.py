"""A Ray cluster of one node that somebody started before the job, and who never heard of eerl."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: For the cluster and for who connects to it.
QUIET = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
_DOWN_S = 60.0  # only a hang fails this bound


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(python: Path, cpus: int) -> Iterator[str]:
    """Its address; only its own processes are ended, by the one that minds them."""
    ours = ("EERL_", "PYTHON", "RAY_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    port = _free_port()
    command = [
        str(python.parent / "ray"),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        f"--num-cpus={cpus}",
    ]
    # A place of its own, so that nobody else's ray.init() finds it, or looks for it when it is gone.
    place = tempfile.mkdtemp(prefix="ray-")
    minder = subprocess.Popen(
        [*command, "--include-dashboard=false", "--disable-usage-stats"],
        env={**plain, **QUIET, "RAY_TMPDIR": place},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_for(minder)
        yield f"127.0.0.1:{port}"
    finally:
        minder.send_signal(signal.SIGTERM)
        try:
            minder.wait(_DOWN_S)
        except subprocess.TimeoutExpired:
            os.killpg(minder.pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def _wait_for(minder: subprocess.Popen[str]) -> None:
    """Return once the minder says that all of it runs."""
    assert minder.stdout is not None
    said = []
    for line in minder.stdout:
        said.append(line)
        if "Ray runtime started" in line:
            return
    raise AssertionError(f"ray start ended: {''.join(said)}")
