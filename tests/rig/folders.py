"""Folders that tests share with other users: opened where they are ours, and the system's own left as they are."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def open_to_others(path: Path) -> None:
    """Let other users, of our group too, reach ``path`` through pytest's private folders.

    Only folders of ours below the system's temporary one are changed: that itself, and all above, are everybody's.
    """
    shared = Path(tempfile.gettempdir()).resolve()
    path = path.resolve()
    for folder in (path, *path.parents):
        facts = folder.stat()
        if shared in folder.parents and facts.st_uid == os.geteuid():
            folder.chmod(stat.S_IMODE(facts.st_mode) | stat.S_IXGRP | stat.S_IXOTH)


class KeptMode:
    """The mode of a folder that is everybody's, as it was at first."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._mode = self._now()

    def _now(self) -> int:
        return stat.S_IMODE(self._folder.stat().st_mode)

    def mend(self) -> str:
        """Put the mode back; what it was meanwhile, empty when it had stayed."""
        found = self._now()
        if found == self._mode:
            return ""
        with contextlib.suppress(OSError):  # somebody else's
            self._folder.chmod(self._mode)
        return (
            f"{self._folder} had mode {found:04o} instead of {self._mode:04o}, for every user of this machine"
        )
