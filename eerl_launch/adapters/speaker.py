"""Who of a job may mark phases and counts: counts are totals, so two speakers would be a wrong number.

Several trainers may run in one job, at once or one after another. The first to speak on a node holds a seat there,
which the kernel takes back however it ends; another one meanwhile stays silent, and says so. So does one of two that
train in threads of one process, and of the helper processes that they start.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import weakref

from .. import mark

LOCK_NAME = "trainer"
HELPER_NAME = "helper"

_ANOTHER = "a second trainer of this job; only the first one's phases and tokens are marked"

#: Whose child this is, if that spoke when it was forked.
_parent = 0


class Seat:
    """A lock file beside the job's marker socket, held by one process of this node until it ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fd: int | None = None
        self._socket = ""

    def taken(self, path: str) -> bool:
        """Whether no other process has it; a place that takes no lock is no reason for silence."""
        if path == self._socket:
            return self._fd is not None
        name = os.path.join(os.path.dirname(path), self._name)  # noqa: PTH118, PTH120
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 20)
            os.close(fd)
            return owner == b"%d" % _parent  # it may end before us: ask again next time
        except OSError:
            os.close(fd)
            return True
        os.ftruncate(fd, 0)
        os.write(fd, b"%d" % os.getpid())
        self._fd, self._socket = fd, path
        return True

    def leave(self) -> bool:
        """Let go of it; whether it was this process's."""
        if self._fd is None:
            return False
        os.close(self._fd)
        self._fd, self._socket = None, ""
        return True


_trainer, _helper = Seat(LOCK_NAME), Seat(HELPER_NAME)


class Threads:
    """Of trainers in threads of one process the first trains aloud; its thread is known, and those of the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aloud: threading.Thread | None = None
        self._silent: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def begins(self) -> None:
        """A training begins in this thread. One that a crash ended there ends with the next, or with its thread."""
        here = threading.current_thread()
        with self._lock:
            if self._aloud is not None and self._aloud is not here and self._aloud.is_alive():
                self._silent.add(here)
            else:
                self._aloud = here
                self._silent.discard(here)

    def ends(self) -> None:
        """It is over."""
        here = threading.current_thread()
        with self._lock:
            self._silent.discard(here)
            if self._aloud is here:
                self._aloud = None

    def forked(self) -> None:
        """In a child no thread goes on but the one that forked, silent or not."""
        self._lock = threading.Lock()
        self._aloud = None

    def silent(self) -> bool:
        """Whether the training of this thread is not the first one."""
        return threading.current_thread() in self._silent


threads = Threads()


def _after_fork_in_child() -> None:
    """The seat is the parent's and ends with it, not with the last of its children; they may speak in its place."""
    global _parent
    threads.forked()
    _helper.leave()
    if _trainer.leave():
        _parent = os.getppid()


os.register_at_fork(after_in_child=_after_fork_in_child)


def may_add() -> bool:
    """Whether a process of the trainer's that is not the one that speaks, on any node, may mark what only it knows.

    Its GPU, say, or the responses it generates; never what the speaker marks too.
    """
    return mark.listener() is not None and not marks_itself() and not threads.silent()


def parent_speaks() -> bool:
    """Whether this is the trainer that speaks on this node, or the first of the processes that it started."""
    path = mark.listener()
    if path is None or marks_itself():
        return False
    try:
        with open(os.path.join(os.path.dirname(path), LOCK_NAME), "rb") as lock:  # noqa: PTH118, PTH120, PTH123
            speaker = int(lock.read(20) or b"0")
    except (OSError, ValueError):
        return False
    if speaker == os.getpid():
        return not threads.silent()
    return speaker == os.getppid() and _helper.taken(path)


def marks_itself() -> bool:
    """Whether the training script sends markers of its own, through the eerl_launch installed beside it."""
    theirs = sys.modules.get("eerl_launch.mark")
    marks = getattr(theirs, "marks_phases", None)
    return theirs is not mark and marks is not None and bool(marks())


def silence() -> str | None:
    """Why this process, or the training in this thread of it, must not speak; or None."""
    path = mark.listener()
    if path is None:
        return "nobody listens (no EERL_SOCKET)"
    if marks_itself():
        return "the script marks its phases itself, so the adapter does not"
    return None if _trainer.taken(path) and not threads.silent() else _ANOTHER
