"""A Ray cluster of one node that somebody started before the job, and who never heard of eerl."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UP_S = 180.0  # only a hang fails these bounds
_DOWN_S = 60.0


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
    minder = subprocess.Popen(
        [*command, "--include-dashboard=false", "--disable-usage-stats"],
        env={**plain, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port, minder)
        yield f"127.0.0.1:{port}"
    finally:
        minder.send_signal(signal.SIGTERM)
        try:
            minder.wait(_DOWN_S)
        except subprocess.TimeoutExpired:
            os.killpg(minder.pid, signal.SIGKILL)


def _wait_for(port: int, minder: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline:
        assert minder.poll() is None, f"ray start ended with {minder.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the Ray cluster did not come up")
