"""Which process of a job may mark phases and counts: counts are totals, so two speakers would be a wrong number.

Several trainers may run in one job, at once or one after another. The first to speak on a node holds a lock there,
which the kernel takes back however it ends; another one meanwhile stays silent, and says so.
"""

from __future__ import annotations

import fcntl
import os
import sys

from .. import mark

LOCK_NAME = "trainer"

_fd: int | None = None
_socket = ""
#: Whose child this is, if that spoke when it was forked.
_parent = 0


def _is_first(path: str) -> bool:
    """Whether no other process here speaks for the job; a place that takes no lock is no reason for silence."""
    global _fd, _socket
    if path == _socket:
        return _fd is not None
    name = os.path.join(os.path.dirname(path), LOCK_NAME)  # noqa: PTH118, PTH120
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
    _fd, _socket = fd, path
    return True


def _after_fork_in_child() -> None:
    """The lock is the parent's and ends with it, not with the last of its children; they may speak in its place."""
    global _fd, _socket, _parent
    if _fd is not None:
        os.close(_fd)
        _fd, _socket, _parent = None, "", os.getppid()


os.register_at_fork(after_in_child=_after_fork_in_child)


def may_add() -> bool:
    """Whether a process of the trainer's that is not the one that speaks, on any node, may mark what only it knows.

    Its GPU, say, or the responses it generates; never what the speaker marks too.
    """
    return bool(os.environ.get("EERL_SOCKET")) and not marks_itself()


def parent_speaks() -> bool:
    """Whether this process, or the one that started it, is the trainer that speaks on this node."""
    path = os.environ.get("EERL_SOCKET")
    if not path or marks_itself():
        return False
    try:
        with open(os.path.join(os.path.dirname(path), LOCK_NAME), "rb") as lock:  # noqa: PTH118, PTH120, PTH123
            return int(lock.read(20) or b"0") in (os.getpid(), os.getppid())
    except (OSError, ValueError):
        return False


def marks_itself() -> bool:
    """Whether the training script sends markers of its own, through the eerl_launch installed beside it."""
    theirs = sys.modules.get("eerl_launch.mark")
    marks = getattr(theirs, "marks_phases", None)
    return theirs is not mark and marks is not None and bool(marks())


def silence() -> str | None:
    """Why this process must not speak, or None."""
    path = os.environ.get("EERL_SOCKET")
    if not path:
        return "nobody listens (no EERL_SOCKET)"
    if marks_itself():
        return "the script marks its phases itself, so the adapter does not"
    if not _is_first(path):
        return "a second trainer of this job; only the first one's phases and tokens are marked"
    return None
