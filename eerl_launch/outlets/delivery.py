"""Hands a run's numbers to its outlets, each in a process of its own, and waits no longer than it may."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from eerl_launch.outlets.parcel import Parcel
from eerl_launch.own_modules import OWN_PYTHON

#: All outlets together may delay the end of a job by so many seconds.
JOB_PATIENCE_S = 15.0
#: Who asks by hand (``eerl report --to``) can wait.
PATIENCE_S = 120.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one outlet: where the numbers are, or why they are not there."""

    name: str
    delivered: bool
    text: str


def deliver(names: Sequence[str], parcel: Parcel, patience_s: float) -> list[Delivery]:
    """Deliver to all these outlets at once; whatever is not done in time is killed, and said to be."""
    with ExitStack() as files:
        given = files.enter_context(tempfile.TemporaryFile())
        given.write(json.dumps(parcel).encode())
        given.flush()
        started = [
            _Sender(name, given, files.enter_context(_noted()), files.enter_context(_noted()))
            for name in names
        ]
        deadline = time.monotonic() + patience_s
        return [sender.result(deadline, patience_s) for sender in started]


def _noted() -> IO[bytes]:
    """A file and no pipe for what a process says: one that says much is not held up, nor are we."""
    return tempfile.TemporaryFile()


class _Sender:
    def __init__(self, name: str, given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> None:
        self._name, self._out, self._err = name, out, err
        self._failure: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # Each reads from the start, so each has a file description of its own.
            with open(f"/proc/self/fd/{given.fileno()}", "rb") as parcel:  # noqa: PTH123
                self._process = subprocess.Popen(
                    [*OWN_PYTHON, "-m", "eerl_launch.outlets.send", name],
                    stdin=parcel,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        except OSError as error:
            self._failure = f"cannot be started: {error.strerror}"

    def result(self, deadline: float, patience_s: float) -> Delivery:
        """Wait until the deadline at most, and leave nothing running."""
        process = self._process
        if process is not None:
            if not _ended(process.pid, deadline):
                self._failure = f"not done within {patience_s:.0f} s"
            with contextlib.suppress(OSError):  # services that a library started as well
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if code != 0 and self._failure is None:
                self._failure = _last_line(self._err) or f"ended with code {code}"
        return Delivery(self._name, self._failure is None, self._failure or _last_line(self._out))


def _ended(pid: int, deadline: float) -> bool:
    """Whether a child ends before the deadline. It stays a zombie, so that its number is nobody else's yet."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _last_line(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4096))
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return "".join(letter if letter.isprintable() else "?" for letter in lines[-1])[:500] if lines else ""
