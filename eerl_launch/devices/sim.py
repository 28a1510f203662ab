"""Simulated GPUs for ``--simulate``: agents and workload in several processes see the same ones, in virtual time.

The state of a node is one small file under a lock. It is only brought up to date when somebody looks, exactly:
power and speed are constant between two changes. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from eerl_launch.devices.base import DeviceError, GpuFailure, GpuInfo, GpuSample
from eerl_launch.devices.sim_model import IDLE, MODELS, Model

_RECORD = struct.Struct("<q7d6i")
_SPEC_NAME = "sim.json"
#: Chips of one model differ; each simulated GPU draws up to this share more or less than its model.
_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class SimSpec:
    """What is simulated, e.g. ``h100:2x8``: two nodes with eight GPUs each."""

    model: str
    nodes: int
    gpus_per_node: int

    def __str__(self) -> str:
        return f"{self.model}:{self.nodes}x{self.gpus_per_node}"


def gpu_uuid(node_index: int, index: int) -> str:
    """The UUID of a simulated GPU: the same in every run, and plainly none of a real one."""
    return f"GPU-51310000-0000-4000-8000-{node_index:06d}{index:06d}"


@dataclass(frozen=True, slots=True)
class SimClock:
    """Virtual time, the same in all processes of this machine: ``time_scale`` virtual seconds pass per second."""

    origin_ns: int
    time_scale: float

    def now_ns(self) -> int:
        """Virtual nanoseconds since the simulation was made."""
        return int((time.monotonic_ns() - self.origin_ns) * self.time_scale)

    def now_s(self) -> float:
        """Virtual seconds since the simulation was made."""
        return self.now_ns() / 1e9

    def real_s(self, virtual_s: float) -> float:
        """How long ``virtual_s`` virtual seconds take."""
        return virtual_s / self.time_scale


@dataclass(slots=True)
class SimGpu:
    """The state of one simulated GPU at virtual time ``t_ns``; ``progress_s`` is work done since it was set."""

    t_ns: int = 0
    energy_mj: float = 0.0
    progress_s: float = 0.0
    load: float = 0.0
    power_w: float = 0.0
    speed: float = 1.0
    factor: float = 1.0
    limit_w: float = 0.0  # enforced power limit; 0: the model's own
    kind: int = IDLE
    locked_mhz: int = 0  # 0: not locked
    achieved_mhz: int = 0
    reasons: int = 0
    context: int = 0  # whether a process holds the GPU: then its clock does not drop when idle
    locks: int = 0  # how often a clock was set or reset

    def pack(self) -> bytes:
        """As stored in the file."""
        return _RECORD.pack(*(getattr(self, name) for name in self.__slots__))

    def advance(self, now_ns: int) -> None:
        """Bring energy and progress up to now."""
        if now_ns > self.t_ns:
            elapsed_s = (now_ns - self.t_ns) / 1e9
            self.energy_mj += self.power_w * elapsed_s * 1e3
            self.progress_s += self.speed * elapsed_s
            self.t_ns = now_ns

    def settle(self, model: Model) -> None:
        """Follow a change of lock or load; the GPU must have been advanced to now."""
        if self.limit_w:
            model = replace(model, power_limit_w=self.limit_w)
        lowest, highest = model.supported_mhz[0], model.max_mhz
        ceiling_mhz = self.locked_mhz or highest
        if self.kind == IDLE and not self.context:
            ceiling_mhz = lowest
        self.achieved_mhz, self.reasons = model.settle(ceiling_mhz, self.kind, self.load)
        self.power_w = min(
            model.power_w(self.achieved_mhz, self.kind, self.load) * self.factor, model.power_limit_w
        )
        self.speed = model.speed(self.achieved_mhz, self.kind)


class SimNode:
    """The GPUs of one node, shared through a file."""

    def __init__(self, path: Path, model: Model, clock: SimClock, index: int) -> None:
        self.model = model
        self.index = index
        self._clock = clock
        self._thread_lock = threading.Lock()  # flock does not keep apart the threads of one process
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"simulated node {index} cannot be opened: {path}: {error.strerror}") from error

    @contextmanager
    def gpus(self) -> Iterator[list[SimGpu]]:
        """The GPUs, advanced to now, under the lock; what is changed in them is kept."""
        with self._thread_lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                data = os.pread(self._fd, 1 << 20, 0)
                gpus = [SimGpu(*fields) for fields in _RECORD.iter_unpack(data)]
                now_ns = self._clock.now_ns()
                for gpu in gpus:
                    gpu.advance(now_ns)
                yield gpus
                os.pwrite(self._fd, b"".join(gpu.pack() for gpu in gpus), 0)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class SimGpus:
    """All simulated GPUs of a run, in a directory of the session's."""

    def __init__(self, directory: Path) -> None:
        try:
            stored = json.loads((directory / _SPEC_NAME).read_text())
            self.spec = SimSpec(stored["model"], stored["nodes"], stored["gpus_per_node"])
            self.clock = SimClock(stored["origin_ns"], stored["time_scale"])
            self.model = MODELS[self.spec.model]
        except (OSError, ValueError, KeyError) as error:
            raise DeviceError(f"no simulated GPUs in {directory}: {error}") from error
        self.directory = directory

    @classmethod
    def create(cls, directory: Path, spec: SimSpec, time_scale: float = 1.0) -> SimGpus:
        """Make idle GPUs whose virtual time begins now."""
        directory.mkdir(parents=True, exist_ok=True)
        model = MODELS[spec.model]
        for node in range(spec.nodes):
            gpus = []
            for index in range(spec.gpus_per_node):
                share = (
                    (node * spec.gpus_per_node + index) * 7 % 16
                ) / 15  # spread out, the same in every run
                gpu = SimGpu(factor=1 + _SPREAD * (2 * share - 1))
                gpu.settle(model)
                gpus.append(gpu)
            (directory / f"node{node}").write_bytes(b"".join(gpu.pack() for gpu in gpus))
        stored = {
            "model": spec.model,
            "nodes": spec.nodes,
            "gpus_per_node": spec.gpus_per_node,
            "origin_ns": time.monotonic_ns(),
            "time_scale": time_scale,
        }
        (directory / _SPEC_NAME).write_text(json.dumps(stored))
        return cls(directory)

    def node(self, index: int) -> SimNode:
        """One node's GPUs."""
        return SimNode(self.directory / f"node{index}", self.model, self.clock, index)


class SimSource:
    """One node's simulated GPUs as an agent sees them; times are virtual nanoseconds."""

    kind = "sim"
    backend = "locked-clocks"
    backend_reason = ""
    driver = "simulated"

    def __init__(self, directory: Path, node_index: int) -> None:
        simulation = SimGpus(directory)
        self._clock = simulation.clock
        self._node = simulation.node(node_index)
        self._infos = tuple(
            GpuInfo(
                uuid=gpu_uuid(node_index, index),
                index=index,
                name=f"{simulation.model.name} (simulated)",
                supported_mhz=simulation.model.supported_mhz,
            )
            for index in range(simulation.spec.gpus_per_node)
        )
        self._locked = False

    def clock_ns(self) -> int:
        """Virtual time now, in nanoseconds."""
        return self._clock.now_ns()

    def gpus(self) -> Sequence[GpuInfo]:
        """The node's GPUs."""
        return self._infos

    def sample(self) -> Mapping[str, GpuSample]:
        """One exact reading per GPU."""
        with self._node.gpus() as gpus:
            return {
                info.uuid: GpuSample(
                    t_ns=gpu.t_ns,
                    energy_mj=round(gpu.energy_mj),
                    sm_mhz=gpu.achieved_mhz,
                    power_mw=round(gpu.power_w * 1000),
                    util_pct=0 if gpu.kind == IDLE else max(1, round(100 * gpu.load)),
                    reasons=gpu.reasons,
                    limit_mw=round(1000 * (gpu.limit_w or self._node.model.power_limit_w)),
                )
                for info, gpu in zip(self._infos, gpus, strict=True)
            }

    def lock(self, mhz: int, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Put a ceiling on the clock; never fails."""
        self._set(self._node.model.snap_mhz(mhz), uuids)
        self._locked = True
        return ()

    def reset(self, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Hand the clock back; never fails."""
        self._set(0, uuids)
        self._locked = self._locked and uuids is not None
        return ()

    def _set(self, mhz: int, uuids: Sequence[str] | None) -> None:
        with self._node.gpus() as gpus:
            for info, gpu in zip(self._infos, gpus, strict=True):
                if uuids is None or info.uuid in uuids:
                    gpu.locked_mhz = mhz
                    gpu.locks += 1
                    gpu.settle(self._node.model)

    def keep_alive(self) -> None:
        """There is no lease."""

    def close(self) -> None:
        """Hand back what is locked, as the broker does when its client goes."""
        if self._locked:
            self.reset()
        self._node.close()
