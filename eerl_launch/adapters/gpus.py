"""The GPUs of this process, by UUID: Slurm's index, NVML's and CUDA's all differ."""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import mark
from . import speaker


def tell(role: str) -> None:
    """Mark this process's GPU as one of ``role``'s; every rank may, but for a script that marks itself."""
    if os.environ.get("EERL_SOCKET") and not speaker.marks_itself():
        found = uuids()
        if found:
            mark.pool(role, found)


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
