"""What an agent needs of its GPUs, whoever provides it: the broker, NVML read directly, or the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class DeviceError(Exception):
    """No GPU can be read or set this way; the text says why and what would mend it."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU that is proven to be the job's."""

    uuid: str
    index: int
    name: str
    supported_mhz: tuple[int, ...]
    energy_scope: str = "gpu"  # "gpu", "module" (superchips: CPU and memory too), "unknown"
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading; ``t_ns`` is CLOCK_MONOTONIC of this node, what is unknown is None.

    ``power_mw`` is of the GPU alone, also where the energy counter is of a whole module.
    """

    t_ns: int
    energy_mj: int | None = None
    sm_mhz: int | None = None
    power_mw: int | None = None
    util_pct: int | None = None
    reasons: int | None = None
    error_code: int | None = None  # nvmlReturn_t when the GPU could not be read at all
    limit_mw: int | None = (
        None  # enforced power limit (nvmlDeviceGetEnforcedPowerLimit), at most a second old
    )


@dataclass(frozen=True, slots=True)
class GpuFailure:
    """One GPU that did not do as asked: nvmlReturn_t and its text."""

    uuid: str
    code: int
    text: str


class GpuSource(Protocol):
    """The agent's hands. ``mhz`` is a ceiling: the range [lowest supported, mhz] is locked."""

    kind: str  # "broker", "nvml", "sim"
    backend: str  # "locked-clocks", "application-clocks", "none" (measure only)
    backend_reason: str  # why it is none, with the cure; empty otherwise

    def gpus(self) -> Sequence[GpuInfo]:
        """The job's GPUs on this node."""

    def sample(self) -> Mapping[str, GpuSample]:
        """One reading per GPU, by UUID."""

    def lock(self, mhz: int, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Ask for a clock ceiling on these GPUs (None: all); the failures, empty when all obeyed."""

    def reset(self, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Hand these GPUs (None: all) back to the site's clocks; the failures."""

    def keep_alive(self) -> None:
        """Renew the lease, where there is one."""

    def close(self) -> None:
        """Let go; a broker resets what this connection had locked."""
