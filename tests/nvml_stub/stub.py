"""Python handle of the NVML stub: make GPUs, load them, break them, and read what was done to them.

Only the standard library, so that a test's trainer can use it in any interpreter and as an ordinary user::

    stub = Stub.create("/dev/shm/eerl-nvml-stub", model="h100", gpus=8, seed="node01")
    stub.set_load(0, training=1.0)
    stub.add_fault("nvmlDeviceSetGpuLockedClocks", gpu=1, code=15, after_s=8)
    stub.true_energy_mj(0), stub.locked_mhz(0), stub.setter_calls()

The library finds its state at ``DEFAULT_DIR`` of its mount namespace; ``install_library`` puts a copy beside a
file that names another place, for tests that have no namespace of their own.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIR = Path("/dev/shm/eerl-nvml-stub")
HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / ".build" / "nvml_stub" / "libnvidia-ml.so.1"

SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40


@dataclass(frozen=True, slots=True)
class Call:
    """One logged NVML call; times are CLOCK_MONOTONIC, ``result`` is the nvmlReturn_t the caller saw."""

    t_ns: int
    end_ns: int
    pid: int
    tid: int
    uid: int
    comm: str
    function: str
    uuid: str | None
    args: str
    result: int
    fault: bool


def build_library(out: Path = LIBRARY.parent, without: Sequence[str] = ()) -> Path:
    """Build the library (a no-op when it is up to date); ``without`` names symbols it shall lack."""
    library = out / LIBRARY.name
    if without and library.exists():
        library.unlink()
    command = ["make", "-s", "-C", str(HERE), f"OUT={out}", f"WITHOUT={' '.join(without)}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return library


def install_library(folder: Path, state_dir: Path, without: Sequence[str] = ()) -> Path:
    """Put a library into ``folder`` whose state is at ``state_dir``; give the folder to LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    if without:
        library = build_library(folder, without)
    else:
        library = folder / LIBRARY.name
        shutil.copyfile(build_library(), library)
    (folder / "nvml_stub.dir").write_text(f"{state_dir}\n")
    return library


def _load_library() -> ctypes.CDLL:
    if os.access(HERE, os.W_OK) or not LIBRARY.exists():
        build_library()
    library = ctypes.CDLL(str(LIBRARY))
    library.eerl_stub_open.restype = ctypes.c_void_p
    library.eerl_stub_add_fault.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_longlong,
        ctypes.c_uint,
        ctypes.c_double,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_uint,
    ]
    return library


class Stub:
    """The GPUs of one mount namespace. GPUs are named by NVML index; methods without one act on all."""

    _library: ctypes.CDLL | None = None

    def __init__(self, directory: Path | str = DEFAULT_DIR) -> None:
        if Stub._library is None:
            Stub._library = _load_library()
        self.directory = Path(directory)
        self._lib = Stub._library
        pointer = self._lib.eerl_stub_open(os.fsencode(self.directory))
        if not pointer:
            raise FileNotFoundError(f"no NVML stub state of this version in {self.directory}")
        self._stub = ctypes.c_void_p(pointer)

    @classmethod
    def create(
        cls,
        directory: Path | str = DEFAULT_DIR,
        *,
        model: str = "h100",
        gpus: int = 8,
        seed: str = "stub",
        minors: Sequence[int] | None = None,
        name: str | None = None,
        driver: str | None = None,
        module_extra_w: float | None = None,
    ) -> Stub:
        """Make fresh GPUs (h100, a100, b200, gb200); equal seeds give equal UUIDs.

        ``module_extra_w`` makes the energy counter one of the whole module, which draws that much beside the GPU.
        """
        if cls._library is None:
            cls._library = _load_library()
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)  # the ordinary job user drives the load and its calls are logged too
        failure = cls._library.eerl_stub_create(os.fsencode(path), model.encode(), gpus, seed.encode())
        if failure:
            raise OSError(failure, f"{os.strerror(failure)} (model {model}, {gpus} GPUs)", str(path))
        stub = cls(path)
        for index in range(gpus):
            if minors is not None:
                stub.set(index, minor=minors[index])
            if name is not None:
                stub._set_text(index, "name", name)
            if module_extra_w is not None:
                stub.set(index, module_scope=1, module_extra_mw=module_extra_w * 1000)
        if driver is not None:
            stub._set_text(0, "driver", driver)
        return stub

    def close(self) -> None:
        """Unmap; the GPUs live on."""
        self._lib.eerl_stub_close(self._stub)

    def __len__(self) -> int:
        return int(self._lib.eerl_stub_gpus(self._stub))

    # What the workload does.

    def set_load(
        self, gpu: int | None = None, *, generation: float = 0.0, training: float = 0.0, context: bool = True
    ) -> None:
        """Load a GPU (None: all) from now on; 0..1 each. A context keeps the governor at its top clock."""
        for index in self._chosen(gpu):
            self.set(index, load_generation=generation, load_training=training, context=int(context))

    def clear_load(self, gpu: int | None = None) -> None:
        """Leave the GPU (None: all) as a process that has ended does."""
        self.set_load(gpu, context=False)

    def generation_speed(self, gpu: int) -> float:
        """Speed of decoding at the achieved clock, 1 at the top: memory bound, flat above 5/9 of it."""
        return min(1.0, self._share(gpu) / (5 / 9))

    def training_speed(self, gpu: int) -> float:
        """Speed of training at the achieved clock, 1 at the top."""
        return float(self._share(gpu) ** 0.9)

    def _share(self, gpu: int) -> float:
        return self.achieved_mhz(gpu) / self.clocks_mhz(gpu)[-1]

    # What the test does to the GPUs.

    def set(self, gpu: int, **fields: float) -> None:
        """Set fields (see ``fields[]`` in stub_control.c) at one instant, unseen by the call log."""
        names = (ctypes.c_char_p * len(fields))(*[name.encode() for name in fields])
        values = (ctypes.c_double * len(fields))(*fields.values())
        failure = self._lib.eerl_stub_set(self._stub, gpu, len(fields), names, values)
        if failure:
            raise KeyError(f"{os.strerror(failure)}: GPU {gpu}, {sorted(fields)}")

    def limit_clock(self, gpu: int, mhz: int, reasons: int = HW_THERMAL) -> None:
        """Hold the achieved clock down, whatever is asked; 0 lifts it."""
        self.set(gpu, achieved_limit_mhz=mhz, achieved_limit_reasons=reasons)

    def lock_from_outside(self, gpu: int, low_mhz: int, high_mhz: int) -> None:
        """Lock as an earlier job or another root process would have; 0, 0 unlocks."""
        self.set(gpu, locked_min_mhz=low_mhz, locked_max_mhz=high_mhz)

    def restart_energy_counter(self, gpu: int, value_mj: float = 1200.0) -> None:
        """Let the counter begin again from a small number, as after a driver reload."""
        self.set(gpu, counter_offset_mj=value_mj - self.get(gpu, "published_mj"))

    def add_fault(
        self,
        function: str = "*",
        *,
        gpu: int | None = None,
        code: int = 0,
        delay_ms: int = 0,
        after_s: float = 0.0,
        skip_calls: int = 0,
        times: int = 0,
        uid: int | None = None,
    ) -> int:
        """Answer matching calls with ``code`` after ``delay_ms``; code 0 only delays. Returns the rule's id.

        ``times`` 0 is for ever; ``skip_calls`` lets the first ones pass; ``uid`` is the effective uid of the caller.
        """
        rule = self._lib.eerl_stub_add_fault(
            self._stub,
            function.encode(),
            -1 if gpu is None else gpu,
            -1 if uid is None else uid,
            skip_calls,
            after_s,
            times,
            code,
            delay_ms,
        )
        if rule < 0:
            raise OverflowError("the stub holds 64 fault rules")
        return int(rule)

    def clear_faults(self, rule: int | None = None) -> None:
        """Remove one rule or all."""
        self._lib.eerl_stub_clear_faults(self._stub, -1 if rule is None else rule)

    def fault_fired(self, rule: int) -> int:
        """How often a rule has answered a call."""
        return int(self._lib.eerl_stub_fault_fired(self._stub, rule))

    # What can be read back.

    def get(self, gpu: int, field: str) -> float:
        """A field by its name in stub_control.c."""
        value = ctypes.c_double()
        if self._lib.eerl_stub_get(self._stub, gpu, field.encode(), ctypes.byref(value)):
            raise KeyError(f"GPU {gpu} has no field {field}")
        return value.value

    def true_energy_mj(self, gpu: int | None = None) -> float:
        """The exact integral since creation, in the scope of the energy counter; None: of all GPUs."""
        return sum(self.get(index, "true_energy_mj") for index in self._chosen(gpu))

    def achieved_mhz(self, gpu: int) -> int:
        """The SM clock the GPU runs at."""
        return int(self.get(gpu, "achieved_mhz"))

    def locked_mhz(self, gpu: int) -> tuple[int, int] | None:
        """The locked range, None when the governor is in charge."""
        high = int(self.get(gpu, "locked_max_mhz"))
        return (int(self.get(gpu, "locked_min_mhz")), high) if high else None

    def at_default(self, gpu: int | None = None) -> bool:
        """No lock, no application clock, API restriction in place."""
        return all(
            self.locked_mhz(index) is None
            and self.get(index, "application_mhz") == 0
            and self.get(index, "application_restricted") == 1
            for index in self._chosen(gpu)
        )

    def power_w(self, gpu: int) -> float:
        """The GPU's present draw."""
        return self.get(gpu, "power_mw") / 1000

    def clocks_mhz(self, gpu: int = 0) -> tuple[int, ...]:
        """Supported SM clocks, ascending."""
        clocks = (ctypes.c_uint32 * 320)()
        count = self._lib.eerl_stub_clocks(self._stub, gpu, clocks, 320)
        return tuple(clocks[:count])

    def uuid(self, gpu: int) -> str:
        """The GPU's UUID."""
        return self._get_text(gpu, "uuid")

    def uuids(self) -> tuple[str, ...]:
        """All UUIDs in NVML order."""
        return tuple(self.uuid(index) for index in range(len(self)))

    def clients(self) -> tuple[int, ...]:
        """Pids of the processes that hold NVML open (between init and shutdown)."""
        pids = (ctypes.c_int32 * 256)()
        count = self._lib.eerl_stub_clients(self._stub, pids, 256)
        return tuple(pids[:count])

    # The call log.

    def log_all(self, on: bool = True) -> None:
        """Log reads too; setters and faulted calls are always logged."""
        self._lib.eerl_stub_log_all(self._stub, int(on))

    def calls(self, function: str | None = None, gpu: int | None = None) -> list[Call]:
        """The log so far, oldest first."""
        uuid = None if gpu is None else self.uuid(gpu)
        lines: Iterable[str] = (self.directory / "calls.jsonl").read_text().splitlines()
        calls = (Call(**json.loads(line)) for line in lines)
        return [c for c in calls if function in (None, c.function) and uuid in (None, c.uuid)]

    def setter_calls(self, gpu: int | None = None) -> list[Call]:
        """Every Set… and Reset… call, refused ones too."""
        return [c for c in self.calls(gpu=gpu) if c.function.startswith(("nvmlDeviceSet", "nvmlDeviceReset"))]

    def clear_calls(self) -> None:
        """Empty the log."""
        os.truncate(self.directory / "calls.jsonl", 0)

    def _chosen(self, gpu: int | None) -> Sequence[int]:
        return range(len(self)) if gpu is None else (gpu,)

    def _get_text(self, gpu: int, field: str) -> str:
        text = ctypes.create_string_buffer(128)
        if self._lib.eerl_stub_get_text(self._stub, gpu, field.encode(), text, ctypes.c_size_t(128)):
            raise KeyError(f"GPU {gpu} has no text {field}")
        return text.value.decode()

    def _set_text(self, gpu: int, field: str, text: str) -> None:
        if self._lib.eerl_stub_set_text(self._stub, gpu, field.encode(), text.encode()):
            raise KeyError(f"GPU {gpu} has no text {field}, or {text!r} is too long")
