"""Which GPUs ``CUDA_VISIBLE_DEVICES`` means, by CUDA's own rule. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eerl_launch.devices.base import DeviceError, GpuInfo


def resolve_visible(env: Mapping[str, str], gpus: Sequence[GpuInfo]) -> tuple[list[int], list[str]]:
    """NVML indices of the visible GPUs in the order given, and remarks for the user.

    Entries are ordinals, UUIDs or unique prefixes of them; the list ends at the first entry that is none of
    these. Ordinals follow CUDA's order, which is NVML's only when all GPUs are of one model or
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; otherwise :class:`DeviceError`, because it cannot be shown which they are.
    """
    text = env.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return [gpu.index for gpu in gpus], []
    found: list[int] = []
    for entry in (part.strip() for part in text.split(",")):
        index, problem = _resolve(entry, env, gpus)
        if index is None or index in found:
            reason = problem or "it is named twice"
            return found, [f"CUDA_VISIBLE_DEVICES={text!r}: the list ends before {entry!r} ({reason})"]
        found.append(index)
    return found, []


def _resolve(entry: str, env: Mapping[str, str], gpus: Sequence[GpuInfo]) -> tuple[int | None, str]:
    """The NVML index of one entry, or None with the reason why there is none."""
    if entry.isascii() and entry.isdigit():
        mixed = len({gpu.name for gpu in gpus}) > 1
        if mixed and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise DeviceError(
                "the node has GPUs of several models, and CUDA_VISIBLE_DEVICES counts them in CUDA's own order; "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID or name UUIDs"
            )
        by_index = {gpu.index for gpu in gpus}
        index = int(entry) if len(entry) < 6 else -1
        return (index, "") if index in by_index else (None, f"there are GPUs {sorted(by_index)}")
    if entry.startswith("MIG-"):
        return None, "MIG instances are not measured"
    if not entry.startswith("GPU-"):
        return None, "it is neither a number nor a UUID"
    matches = [gpu.index for gpu in gpus if gpu.uuid.startswith(entry)]
    if len(matches) == 1:
        return matches[0], ""
    return None, "several GPUs begin so" if matches else "no GPU begins so"
