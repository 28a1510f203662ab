"""Warm start: what a run learnt of its clocks is left beside its ledger, for a later run of the same job.

Only with ``warm_start: auto`` is it looked for, in the run folders beside this one. What must be the same, and how it
is confirmed before it is trusted, is the controller's affair (``eerl_controller.bayes.warm``).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eerl_launch.arrangement import Arrangement
from eerl_launch.markers import Marker
from eerl_launch.nodes import Node
from eerl_launch.whole_file import write_whole

if TYPE_CHECKING:
    from eerl_controller import Controller

NAME = "posterior.json"
#: Run folders looked into, the newest first, and the bytes of a file that is read: a posterior has some 30 KiB.
MOST_FOLDERS, MOST_BYTES = 100, 2**20


class WarmStart:
    """The key of this run, and the posteriors of the runs beside it."""

    def __init__(self, folder: Path, asked: str) -> None:
        self._folder = folder
        self._asked = asked == "auto"
        self._model: str | None = None
        self._framework: str | None = None
        self._responses: float | None = None
        #: The run that this one started from.
        self.source: str | None = None

    def told(self, marker: Marker) -> None:
        """The trainer's ``run`` event; ``model`` names what is trained."""
        for name in ("model", "framework"):
            value = marker.fields.get(name)
            if isinstance(value, str) and value:
                setattr(self, f"_{name}", value)

    def updated(self, numbers: Mapping[str, float]) -> None:
        """Counts of an update: how many responses make a batch."""
        self._responses = numbers.get("responses", self._responses)

    def key(self, arrangement: Arrangement, nodes: Iterable[Node]) -> dict[str, Any]:
        """What must be the same in a later run; None is what nobody said, and fits nothing."""
        gpus = [gpu for node in nodes for gpu in node.info.get("gpus", [])]
        members = arrangement.pools.members
        return {
            "model": self._model,
            "framework": self._framework,
            "mode": arrangement.mode.value,
            "batch_shape": [self._responses] if self._responses is not None else None,
            "gpu_model": sorted({str(gpu.get("name")) for gpu in gpus}) or None,
            "pool_sizes": {role: len(members[role]) for role in sorted(members)} or {"all": len(gpus)},
            "gpus": sorted(str(gpu["uuid"]) for gpu in gpus) or None,
        }

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest fitting posterior of a run beside this one; None without, or when none was asked for."""
        if not self._asked:
            return None
        from eerl_controller.bayes.warm import fits

        for path in _newest(self._folder):
            posterior = _read(path)
            if posterior is not None and fits(posterior, key):
                self.source = path.parent.name
                return posterior
        return None

    def leave(self, controller: Controller | None, key: Mapping[str, Any]) -> None:
        """Write what this run knows; a run that knows nothing leaves no file. Raises OSError."""
        posterior = controller.posterior(key) if controller is not None else None
        if posterior is None:
            return
        write_whole(self._folder / NAME, json.dumps(posterior, allow_nan=False))


def _newest(folder: Path) -> list[Path]:
    """Posteriors of the run folders beside this one, the latest written first."""
    found = []
    for path in folder.parent.glob(f"eerl-*/{NAME}"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:
            continue
    return [path for _, path in sorted(found, reverse=True)[:MOST_FOLDERS] if path.parent != folder]


def _read(path: Path) -> dict[str, Any] | None:
    """A posterior of our own; None for what is not ours, not a file, too large, or not one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_size > MOST_BYTES:
                return None
            found = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
