"""Files are written whole or not at all: to a temporary file beside them first, then renamed into place."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from eerl_launch.errors import OptionError
from eerl_launch.ledger import FILE_NAME as LEDGER

_KINDS = (
    (stat.S_ISLNK, errno.ELOOP, "it is a symbolic link"),
    (stat.S_ISDIR, errno.EISDIR, "it is a folder"),
)


def write_whole(path: Path, content: str | bytes) -> None:
    """``path`` holds ``content`` (text as UTF-8), and held its old content until then, also when this is killed.

    Only a plain file is replaced, and keeps its permissions. A link may lead anywhere, so it is neither followed nor
    replaced, nor is a folder, a device, a pipe, or a run's ledger, of which there is no second one. Raises
    :class:`OSError` with ``path`` as its filename; ``strerror`` is the reason.
    """
    mode = _mode_of_replaceable(path)
    # Hidden, and of no suffix that a collector takes; its own name is long enough that ``path``'s is not added.
    temporary = path.with_name(f".eerl-{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o644), "wb") as file:  # noqa: PTH123
            file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_asked(option: str, path: Path, content: str | bytes) -> None:
    """The file that the user named with ``option``. Raises :class:`OptionError` when it cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise OptionError(f"{option} {path}: cannot be written ({error.strerror})") from error


def why_not_into(folder: Path) -> str | None:
    """Why no file could be written into the folder now, None when one could."""
    if not folder.is_dir():
        return "it is no folder" if folder.exists() else "there is no such folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else "this user may not write there"


def _mode_of_replaceable(path: Path) -> int | None:
    """The permissions of the plain file that is there, None when nothing is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    for is_kind, number, words in _KINDS:
        if is_kind(found.st_mode):
            raise OSError(number, words, str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    if path.name == LEDGER:
        raise OSError(errno.EEXIST, "it is a run's ledger", str(path))
    return stat.S_IMODE(found.st_mode)
