"""Where the trainer finds us: a private folder in node-local memory, a listening socket, one instance a job.

``/dev/shm/eerl-<uid>-<jobid>/`` is visible inside enroot and pyxis containers without a mount, and it holds
what the trainer trusts (the marker socket, later the adapters), so it is made exclusively with mode 0700;
what is there already is used only when it is such a folder of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import stat
import struct
import time
from pathlib import Path

#: Tried in this order; a Unix socket path holds 107 bytes, and these prefixes leave room for any job id.
_ROOTS = ("/dev/shm", "/run/user/{uid}", "/tmp", "/var/tmp")
_MAX_SOCKET_PATH = 107
SOCKET_NAME = "s"
CONTROL_NAME = "c"
#: Beside a socket of ours while it is tried out; the longest name that a socket in the folder has.
_PROBE_NAME = "probe-12345678"
_LOCK_NAME = "lock"
#: A private folder without a holder is left alone for this long: it may be in the making.
_DEAD_AFTER_S = 600.0


class NoPlaceError(OSError):
    """No folder can hold a socket; the text lists what was tried."""


def is_private(folder: Path) -> bool:
    """Whether ``folder`` is a folder of ours that nobody else can look into, and no link to one."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and stat.S_IMODE(info.st_mode) == 0o700


def _make(folder: Path) -> bool:
    """Whether ``folder`` now exists and is private to us."""
    try:
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # an umask of 0o777 would have left less
    except FileExistsError:
        pass
    return is_private(folder)


def _holds_a_socket(folder: Path) -> bool:
    """Whether a socket bound in ``folder`` can be connected to: some file systems refuse one or the other."""
    path = folder / f"probe-{secrets.token_hex(4)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(path))
            server.listen(1)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(1.0)
                client.connect(str(path))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def private_folder(job: str) -> Path:
    """A folder of ours with mode 0700 that can hold sockets, named after uid and job; made when absent.

    Raises :class:`NoPlaceError` when no candidate works.
    """
    uid = os.geteuid()
    tried = []
    for root in _ROOTS:
        base = Path(root.format(uid=uid))
        for name in (f"eerl-{uid}-{job}", f"eerl-{uid}-{job}-{secrets.token_hex(4)}"):
            folder = base / name
            if len(os.fsencode(folder / _PROBE_NAME)) > _MAX_SOCKET_PATH:
                tried.append(f"{folder}: too long for a socket")
                break
            existed = os.path.lexists(folder)
            try:
                private = _make(folder)
            except OSError as error:
                tried.append(f"{folder}: {error.strerror}")
                break
            if not private:
                tried.append(f"{folder}: not a private folder of ours")
                continue
            if _holds_a_socket(folder):
                return folder
            tried.append(f"{folder}: cannot bind and connect a socket there")
            if not existed:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            break
    raise NoPlaceError("no place for the marker socket: " + "; ".join(tried))


def listen(path: Path) -> socket.socket:
    """A listening, non-blocking Unix socket at ``path``.

    A dead socket of ours in the way is removed; a live one, or anything that is not a socket of ours, is left
    alone and raises OSError.
    """
    try:
        info = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.geteuid():
            raise OSError(f"{path} is in the way and is not a socket of ours; remove it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise OSError(f"{path} belongs to a running eerl-run")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        server.bind(str(path))
        path.chmod(0o600)
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server


def peer_is_us(connection: socket.socket) -> bool:
    """Whether the other end runs under our uid or as root: the second line behind the folder's mode."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("iII", credentials)
    return uid in (os.geteuid(), 0)


class InstanceLock:
    """Held by the first eerl-run of a job on a node, by its session there or by its agent.

    Who does not hold it neither counts GPUs nor sets clocks there, so no joule is in two reports. The kernel lets go
    of it however the holder ends.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOCK_NAME
        self._fd: int | None = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except OSError:
            self.held = False

    @property
    def fd(self) -> int:
        """The descriptor, to hand the lock on to the session, which outlives a killed launcher."""
        if self._fd is None:
            raise ValueError("the lock is closed")
        return self._fd

    def give_up(self) -> None:
        """Let go for good, if it is ours, and leave no file behind."""
        if self.held:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.held = False
        self.close()

    def close(self) -> None:
        """Let go in this process; idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def claim(folder: Path) -> InstanceLock | None:
    """The lock of a job's folder on this node, held or not; None where there can be none."""
    try:
        return InstanceLock(folder) if _make(folder) else None
    except OSError:
        return None


def sweep_dead_folders(older_than_s: float = _DEAD_AFTER_S) -> int:
    """Remove private folders of ours that killed runs of other jobs left behind; how many there were.

    Dead is one that nobody holds the lock of, or, where agents listened and there is no lock, whose socket
    nobody answers at. A folder young enough to be in the making is left alone.
    """
    swept = 0
    for root in _ROOTS:
        base = Path(root.format(uid=os.geteuid()))
        with contextlib.suppress(OSError):
            for folder in base.glob(f"eerl-{os.geteuid()}-*"):
                if (
                    is_private(folder)
                    and time.time() - folder.stat().st_mtime > older_than_s
                    and _is_dead(folder)
                ):
                    shutil.rmtree(folder, ignore_errors=True)
                    swept += 1
    return swept


def _is_dead(folder: Path) -> bool:
    try:
        fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return not _is_live_socket(folder / SOCKET_NAME)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_live_socket(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # not to be judged from here
    return True
