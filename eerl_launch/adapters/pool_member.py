"""A worker process tells which GPU it adds to a pool."""

from __future__ import annotations

from collections.abc import Callable

from .. import mark
from . import gpus
from .base import Adapter

_said: set[tuple[str, str]] = set()


def say(adapter: Adapter, role: str, framework_says: Callable[[], object] | None = None) -> None:
    """Tell once that this process's GPU is in the pool ``role``.

    CUDA's own word first, so no index has to be translated; ``framework_says``: what the framework takes its UUID
    to be, for a PyTorch before 2.4, which does not tell.
    """
    if not gpus.speaks_for_gpus():
        return
    found: list[object] = list(gpus.uuids())
    if not found and framework_says is not None:
        found = [framework_says()]
    uuids = [uuid for uuid in found if isinstance(uuid, str) and uuid.startswith(("GPU-", "MIG-"))]
    if not uuids:
        adapter.say(f"a worker of the {role} pool cannot tell its GPU's UUID; set `pools:` in the policy")
    for uuid in uuids:
        if (role, uuid) not in _said:
            _said.add((role, uuid))
            mark.pool(role, [uuid])
