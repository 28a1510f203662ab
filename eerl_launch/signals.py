"""Signals pass through to the command exactly once, whoever sent them and to whomever.

A signal can reach the launcher alone (``kill PID``, ``sbatch --signal=B:USR1``) and must then be passed on, or
it can reach everything at once (Ctrl-C on a terminal, ``scancel``, the time limit) and must then not be passed
on, or the command would see it twice. The sender cannot tell the two apart: slurmstepd does both. So a small
forked process, the witness, sits in the command's process group and does nothing but report what it receives:
what the witness has seen, the command has seen too.

The witness also leads the command's process group when there is no terminal, so that the command itself stays
free to call setsid(2), as it would be without us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter

#: Everything that can be waited for, but for the faults a process raises in itself and what we use ourselves.
_OWN = {
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGSYS,
    signal.SIGTRAP,
    signal.SIGKILL,
    signal.SIGSTOP,
    # Job control of a terminal acts on the whole group, and stopping is for the kernel to do.
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    # The terminal tells its foreground group itself.
    signal.SIGWINCH,
}
FORWARDED = frozenset(signal.valid_signals()) - _OWN
#: How long the witness is waited for before a signal counts as ours alone.
_WITNESS_PATIENCE_S = 0.1
#: How much longer when it has the signal but no processor yet: a loaded machine must not double a Ctrl-C.
_BUSY_PATIENCE_S = 2.0
#: A report of the witness that no signal of ours followed within this time was the command's own affair.
_REPORT_LIFE_S = 1.0


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Witness:
    """The forked process that reports which signals the command's group received.

    Must be started before any thread, with :data:`FORWARDED` blocked. Without it (fork failed, or something
    killed it) every signal counts as ours alone and is passed on, as a plain wrapper would.
    """

    def __init__(self, new_group: bool) -> None:
        self.pid = 0
        self._reports: list[tuple[float, int]] = []
        self._read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(write_fd)
            return
        if self.pid == 0:
            try:
                _watch(parent, write_fd, new_group)
            finally:
                os._exit(0)
        os.close(write_fd)
        if new_group:
            with contextlib.suppress(OSError):
                os.setpgid(self.pid, self.pid)

    def saw(self, number: int) -> bool:
        """Whether the command's group received ``number`` together with us; uses the report up."""
        deadline = time.monotonic() + _WITNESS_PATIENCE_S
        latest = deadline + _BUSY_PATIENCE_S
        while True:
            now = time.monotonic()
            self._reports = [(t, n) for t, n in self._reports if now - t < _REPORT_LIFE_S]
            for report in self._reports:
                if report[1] == number:
                    self._reports.remove(report)
                    return True
            if self._read_fd < 0 or (now >= deadline and (now >= latest or not self._is_busy(number))):
                return False
            if select.select([self._read_fd], [], [], max(0.005, deadline - now))[0]:
                data = os.read(self._read_fd, 4096)
                if not data:
                    os.close(self._read_fd)
                    self._read_fd = -1
                self._reports += [(time.monotonic(), n) for n in data]

    def _is_busy(self, number: int) -> bool:
        """Whether the witness has ``number`` before it or is at work: it has not had its turn on this machine."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as handle:  # noqa: PTH123
                fields = dict(line.split(":", 1) for line in handle if ":" in line)
            pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
            return bool(pending >> (number - 1) & 1) or fields["State"].strip().startswith("R")
        return False

    def stop(self) -> None:
        """End and reap the witness."""
        if self.pid > 0:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def _watch(parent: int, write_fd: int, new_group: bool) -> None:
    """The witness: report signals until the launcher is gone."""
    if new_group:
        os.setpgid(0, 0)
    # The command's output may be a pipe that must close when the command closes it.
    null_fd = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null_fd, fd)
    os.closerange(3, write_fd)
    os.closerange(write_fd + 1, 256)
    while os.getppid() == parent:
        info = signal.sigtimedwait(FORWARDED, 2.0)
        if info is not None:
            os.write(write_fd, bytes([info.si_signo]))


def forward(number: int, command_pid: int, group: int | None) -> None:
    """Send ``number`` to the command's own group, or where it shares ours, to the command and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group is not None:
            os.killpg(group, number)
            return
    for pid in _tree(command_pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _tree(root: int) -> list[int]:
    """``root`` and its descendants that are still in our process group, from /proc."""
    children: dict[int, list[int]] = {}
    groups: Counter[int] = Counter()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as handle:  # noqa: PTH123
                    parent, group = handle.read().rpartition(")")[2].split()[1:3]
                children.setdefault(int(parent), []).append(int(name))
                groups[int(name)] = int(group)
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        if pid == root or groups[pid] == os.getpgrp():
            found.append(pid)
    return found
