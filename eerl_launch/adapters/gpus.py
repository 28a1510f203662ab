"""The GPUs of this process, by UUID: Slurm's index, NVML's and CUDA's all differ."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .. import mark
from . import speaker

_told: set[tuple[str, str]] = set()


def tell(role: str, otherwise: Callable[[], object] | None = None) -> bool:
    """Mark this process's GPU as one of ``role``'s, once; every rank may, but for a script that marks itself.

    ``otherwise``: what the framework takes its UUID to be, for a PyTorch before 2.4, which does not tell. False when
    nobody here knows it.
    """
    if not speaker.may_add():
        return True
    found: list[object] = list(uuids())
    if not found and otherwise is not None:
        found = [otherwise()]
    known = [uuid for uuid in found if isinstance(uuid, str) and uuid.startswith(("GPU-", "MIG-"))]
    new = [uuid for uuid in known if (role, uuid) not in _told]
    _told.update((role, uuid) for uuid in new)
    if new:
        mark.pool(role, new)
    return bool(known)


def uuids(devices: list[int] | None = None) -> list[str]:
    """UUIDs of CUDA devices of this process, by default its current one; empty where CUDA is not in use.

    Asks PyTorch only where the trainer has brought CUDA up itself.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return []
        chosen = [torch.cuda.current_device()] if devices is None else devices
        found = [str(torch.cuda.get_device_properties(device).uuid) for device in chosen]
    except Exception:  # a PyTorch without UUIDs, or a device that is gone
        return []
    return [uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in found]
