"""How an agent gets at the GPUs of its node, and what it tells the session of them. Standard library only."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

from eerl_launch.channel import Message
from eerl_launch.devices.base import DeviceError, GpuInfo, GpuSource

#: A remark travels in a line of limited length.
_NOTE_CHARS = 300


def describe(source: GpuSource) -> Message:
    """What the session must know of this node's GPUs."""

    def gpu_fields(gpu: GpuInfo) -> Message:
        return {
            "uuid": gpu.uuid,
            "index": gpu.index,
            "name": gpu.name,
            "energy_scope": gpu.energy_scope,
            "mig": gpu.mig,
            "min_mhz": gpu.supported_mhz[0] if gpu.supported_mhz else None,
            "max_mhz": gpu.supported_mhz[-1] if gpu.supported_mhz else None,
        }

    gpus = source.gpus()
    grids = [set(gpu.supported_mhz) for gpu in gpus]
    return {
        "ev": "join",
        "source": source.kind,
        "backend": source.backend,
        "backend_reason": source.backend_reason,
        "driver": getattr(source, "driver", None),
        "hostname": socket.gethostname(),
        "clocks": sorted(set.intersection(*grids)) if grids else [],
        "gpus": [gpu_fields(gpu) for gpu in gpus],
        "notes": [note[:_NOTE_CHARS] for note in getattr(source, "notes", [])],
    }


def open_source(options: argparse.Namespace, indices: list[int] | None) -> GpuSource:
    """The GPUs of this node, by the best way there is; raises DeviceError with the reasons of all ways."""
    if options.sim_dir:
        from eerl_launch.devices.sim import SimSource

        return SimSource(Path(options.sim_dir), options.sim_node)
    reasons = []
    if options.job_id:
        from eerl_launch.devices import broker

        try:
            return broker.BrokerSource(options.node, options.job_id)
        except (DeviceError, OSError, ValueError) as error:
            reasons.append(broker.refusal(options.node, options.job_id) or str(error))
    if indices or not options.job_id:
        from eerl_launch.devices.nvml import NvmlSource, visible_gpus

        try:
            source = NvmlSource(indices) if options.job_id else visible_gpus(dict(os.environ))
        except DeviceError as error:
            reasons.append(str(error))
        else:
            if reasons:
                source.backend_reason = reasons[0]
            return source
    else:
        reasons.append("it cannot be shown which GPUs of this node are the job's, so none is measured")
    raise DeviceError("; ".join(reasons))
