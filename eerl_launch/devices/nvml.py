"""GPUs read through NVML where there is no broker: measure only. The one file that imports pynvml.

GPUs are known by UUID; NVML's index, Slurm's and CUDA's all differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eerl_launch.devices.base import DeviceError, GpuFailure, GpuInfo, GpuSample
from eerl_launch.devices.nvml_reader import UNKNOWN, Reader
from eerl_launch.devices.visible import resolve_visible

NO_PERMISSION = 4
#: A reading takes milliseconds; a GPU that does not answer for this long is passed over until it does (seconds).
_ANSWER_S = 2.0

_INIT_CURES = {
    9: "the NVIDIA driver is not loaded on this node; ask the site to load it",
    12: "libnvidia-ml.so.1 is not installed on this node, so it has no NVIDIA driver",
    18: "driver and library have different versions: the driver was updated without a reboot; reboot the node",
    17: "the devices are blocked for this process (cgroup); start eerl-run where the job's GPUs are visible",
    NO_PERMISSION: "this user may not use the driver; check the rights of /dev/nvidiactl",
}
_MEASURE_ONLY = "without the eerl broker an ordinary user cannot set clocks, so this node only measures"


def load_pynvml() -> Any:
    """The nvidia-ml-py module, initialised; :class:`DeviceError` with the cure when it cannot be used."""
    try:
        import pynvml
    except Exception as error:
        raise DeviceError(f"the module pynvml cannot be imported ({error}); install nvidia-ml-py") from error
    if not hasattr(pynvml, "_nvmlGetFunctionPointer") or not hasattr(pynvml, "NVMLError"):
        where = getattr(pynvml, "__file__", "?")
        raise DeviceError(
            f"the module pynvml at {where} is not nvidia-ml-py; pip uninstall pynvml, then install nvidia-ml-py"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = int(getattr(error, "value", UNKNOWN))
        raise DeviceError(
            f"NVML cannot start (code {code}): {_INIT_CURES.get(code, _text(error))}"
        ) from error
    return pynvml


def _text(value: object) -> str:
    """Text from old bindings (bytes) and new ones."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _describe(nvml: Any, handle: Any, index: int) -> GpuInfo:
    """What is known of a GPU; raises NVMLError when it has no UUID to be called by."""

    def ask(query: Callable[[], Any], default: Any) -> Any:
        try:
            return query()
        except (nvml.NVMLError, AttributeError):
            return default

    def clocks() -> list[int]:
        memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        return list(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz))

    name = _text(ask(lambda: nvml.nvmlDeviceGetName(handle), "unknown GPU"))
    # On Grace Hopper the counter is the module's (CPU and memory too); for Grace Blackwell it is not known.
    scope = "module" if "GH200" in name else "unknown" if "GB200" in name or "GB300" in name else "gpu"
    return GpuInfo(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=name,
        supported_mhz=tuple(sorted(ask(clocks, []))),
        energy_scope=scope,
        mig=bool(ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)),
    )


class NvmlSource:
    """A :class:`~eerl_launch.devices.base.GpuSource` that reads and never sets.

    ``indices`` are NVML's (None: all GPUs). GPUs that cannot be opened are named in ``notes`` and left out;
    :class:`DeviceError` when none is left.
    """

    kind = "nvml"
    backend = "none"

    def __init__(self, indices: Sequence[int] | None) -> None:
        self.backend_reason = _MEASURE_ONLY
        self.notes: list[str] = []
        self._nvml = nvml = load_pynvml()
        self._infos: dict[str, GpuInfo] = {}
        self._readers: dict[str, Reader] = {}
        try:
            self.driver: str | None = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            self.driver = None
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise DeviceError(f"NVML cannot count the GPUs: {_text(error)}") from error
        for index in range(count) if indices is None else indices:
            if index >= count:
                self.notes.append(f"GPU {index} is not among the {count} that NVML shows here")
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                info = _describe(nvml, handle, index)
            except nvml.NVMLError as error:
                code = int(getattr(error, "value", UNKNOWN))
                self.notes.append(f"GPU {index} cannot be opened (code {code}): {_text(error)}")
                continue
            if info.uuid not in self._infos:
                self._infos[info.uuid] = info
                self._readers[info.uuid] = Reader(nvml, handle)
        if not self._infos:
            self.close()
            raise DeviceError("; ".join(self.notes) or "no GPU of the job is visible to NVML on this node")

    def gpus(self) -> Sequence[GpuInfo]:
        """The GPUs that could be opened."""
        return tuple(self._infos.values())

    def sample(self) -> Mapping[str, GpuSample]:
        """One reading per GPU, all at once; a GPU that hangs or is gone has an ``error_code``."""
        for reader in self._readers.values():
            reader.request()
        deadline_s = time.monotonic() + _ANSWER_S
        return {uuid: reader.answer(deadline_s) for uuid, reader in self._readers.items()}

    def lock(self, mhz: int, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Nothing is set; every GPU asked for is a failure with NVML's code for no permission."""
        chosen = list(self._infos) if uuids is None else uuids
        return tuple(GpuFailure(uuid, NO_PERMISSION, _MEASURE_ONLY) for uuid in chosen)

    def reset(self, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Nothing was set, so nothing is left to reset."""
        return ()

    def keep_alive(self) -> None:
        """There is no lease."""

    def close(self) -> None:
        """Let NVML go, unless a call still hangs in it."""
        hanging = any(reader.hangs for reader in self._readers.values())
        for reader in self._readers.values():
            reader.close()
        if not hanging:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass


def visible_gpus(env: Mapping[str, str]) -> NvmlSource:
    """The GPUs that a program with this environment would see as CUDA devices, in its order.

    Raises :class:`DeviceError` when there is none or when it cannot be shown which ones they are.
    """
    source = NvmlSource(None)
    indices, notes = resolve_visible(env, source.gpus())
    if indices == [gpu.index for gpu in source.gpus()]:
        source.notes += notes
        return source
    source.close()
    if not indices:
        raise DeviceError("; ".join(notes) or "CUDA_VISIBLE_DEVICES names no GPU")
    chosen = NvmlSource(indices)
    chosen.notes += notes
    return chosen
