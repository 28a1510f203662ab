"""The job's GPUs through ``eerl-clockd``, the privileged broker on the node (contract 3.4). Standard library only.

Two connections: one that locks, resets and keeps the lease, and one that samples, so that neither waits for the
other. What the broker leaves out of a sample is unknown and stays None.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from eerl_launch.devices.base import DeviceError, GpuFailure, GpuInfo, GpuSample

RUN_FOLDER = Path("/run/eerl")
PROTOCOL_VERSION = 1
#: A broker answers within its own deadline for a hanging GPU; longer silence means that it is gone.
_REPLY_TIMEOUT_S = 10.0
_MAX_REPLY_BYTES = 1 << 20
_RESTART_PAUSE_S = 0.5
#: nvmlReturn_t for "no answer", used for every GPU when the broker itself cannot be reached.
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_UNKNOWN = 999

_SAMPLE_KEYS = {
    "energy_mj": "energy_mj",
    "sm_mhz": "sm_mhz",
    "power_mw": "power_mw",
    "util_pct": "util_pct",
    "reasons": "reasons",
    "err": "error_code",
    "limit_mw": "limit_mw",
    "t_ns": "t_ns",  # a GPU that was read later than the others has its own
}


def socket_path(node: str, job_id: str) -> Path:
    """Where the broker of this job listens on this node."""
    return RUN_FOLDER / node / job_id / "clock"


def refusal(node: str, job_id: str) -> str | None:
    """Why the plugin gave this job no broker here, in its own words; None when it says nothing."""
    try:
        text = (RUN_FOLDER / node / job_id / "reason").read_text(errors="replace")
    except OSError:
        return None
    return text.strip()[:500] or None


class _Connection:
    """One line out, one line back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._rest = b""
        self._lock = threading.Lock()

    def ask(self, request: str) -> str:
        """The broker's answer to one request line; raises DeviceError when it gives none."""
        with self._lock:
            try:
                if self._socket is None:
                    self._connect()
                return self._exchange(request)
            except OSError as error:
                self._drop()
                raise DeviceError(f"no answer from the clock broker at {self._path}: {error}") from error

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_REPLY_TIMEOUT_S)
        try:
            connection.connect(os.fspath(self._path))
        except OSError:
            connection.close()
            raise
        self._socket, self._rest = connection, b""
        self._exchange(f"hello {PROTOCOL_VERSION}")

    def _exchange(self, request: str) -> str:
        connection = self._socket
        if connection is None:
            raise ConnectionError("not connected")
        if self._rest:  # an answer nobody asked for: what comes next would be taken for another's
            raise ConnectionError("the broker answered twice")
        connection.sendall(request.encode("ascii") + b"\n")
        while b"\n" not in self._rest:
            data = connection.recv(65536)
            if not data or len(self._rest) > _MAX_REPLY_BYTES:
                raise ConnectionError("closed by the broker")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("ascii", "replace").strip()

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None

    def close(self) -> None:
        with self._lock:
            self._drop()


def _fields(reply: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in reply.split() if "=" in word)


def _clocks(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(mhz) for mhz in text.split(",") if mhz))


def _not_opened(text: str) -> list[str]:
    """Remarks on GPUs of the job that the broker could not open: ``<Slurm's number>:<code>,…``."""
    pairs = [entry.partition(":") for entry in text.split(",") if entry]
    return [
        f"the job's GPU {number} (Slurm's number) cannot be opened (code {code})" for number, _, code in pairs
    ]


def _failures(reply: str, uuids: Sequence[str]) -> list[GpuFailure]:
    """``err <code> <uuid> <text>`` entries, separated by ``;`` when several GPUs failed."""
    if reply.split(" ", 1)[0] == "ok":
        return []
    failures = []
    for entry in reply.removeprefix("err").split(";"):
        code_text, _, rest = entry.strip().partition(" ")
        uuid, _, text = rest.partition(" ")
        code = int(code_text) if code_text.isdigit() else NVML_ERROR_UNKNOWN
        targets = [uuid] if uuid.startswith("GPU-") else uuids
        failures += [GpuFailure(target, code, text or entry.strip()) for target in targets]
    return failures


def _samples(reply: str) -> dict[str, GpuSample]:
    """``ok t_ns=… GPU-a key=value … ; GPU-b …``; raises ValueError or KeyError for anything else."""
    head, *parts = reply.split(";")
    t_ns = int(_fields(head)["t_ns"])
    # The first GPU stands in the same part as the time stamp and whatever else a later broker says of them all.
    first = " ".join(itertools.dropwhile(lambda word: "=" in word, head.split()[1:]))
    samples = {}
    for part in [first, *parts]:
        uuid, _, rest = part.strip().partition(" ")
        if not uuid:
            continue
        values = {
            name: int(value, 0) for key, value in _fields(rest).items() if (name := _SAMPLE_KEYS.get(key))
        }
        samples[uuid] = GpuSample(**{"t_ns": t_ns} | values)
    return samples


class BrokerSource:
    """A :class:`~eerl_launch.devices.base.GpuSource` whose hands are the broker's."""

    kind = "broker"

    def __init__(self, node: str, job_id: str) -> None:
        path = socket_path(node, job_id)
        if not path.exists():
            raise DeviceError(f"the eerl plugin gave this job no clock broker on this node (no {path})")
        self._write = _Connection(path)
        self._read = _Connection(path)
        reply = self._write.ask(f"hello {PROTOCOL_VERSION}")
        if not reply.startswith("ok"):
            self.close()
            raise DeviceError(f"the clock broker at {path} refused: {reply}")
        fields = _fields(reply)
        self.backend = fields.get("backend", "none")
        self.backend_reason = unquote(fields.get("reason", "")).replace("_", " ")
        self.driver = fields.get("driver")
        self.lease_s = float(fields.get("lease_s", "10"))
        self.notes = _not_opened(fields.get("missing", ""))
        clocks = _clocks(fields.get("clocks", ""))
        uuids = [uuid for uuid in fields.get("gpus", "").split(",") if uuid]
        names = fields.get("names", "").split(",")
        indices = fields.get("idx", "").split(",")
        self._gpus = tuple(
            GpuInfo(
                uuid=uuid,
                index=int(indices[i]) if i < len(indices) and indices[i].isdigit() else i,
                name=names[i].replace("_", " ") if i < len(names) else "",
                supported_mhz=clocks,
                energy_scope=fields.get("scope", "unknown"),
            )
            for i, uuid in enumerate(uuids)
        )
        # NVML failed there, MIG, …: reading NVML ourselves may still show what is the job's.
        if not self._gpus:
            self.close()
            reason = self.backend_reason or "no reason given"
            raise DeviceError(f"the clock broker serves no GPU here: {reason}")

    def gpus(self) -> Sequence[GpuInfo]:
        """The GPUs the plugin granted to this job on this node."""
        return self._gpus

    def sample(self) -> Mapping[str, GpuSample]:
        """One reading per GPU that answered; raises DeviceError when the broker is gone."""
        reply = self._read.ask("sample")
        words = reply.split(None, 1)
        if not words or words[0] != "ok":
            raise DeviceError(f"the clock broker cannot sample: {reply[:200]}")
        try:
            return _samples(reply)
        except (ValueError, KeyError) as error:
            raise DeviceError(f"the clock broker's sample is not understood ({error!r})") from error

    def _ask_again(self, request: str) -> str:
        """Ask, and once more after a pause: the broker's supervisor restarts a worker that died."""
        try:
            return self._write.ask(request)
        except DeviceError:
            time.sleep(_RESTART_PAUSE_S)
            return self._write.ask(request)

    def _order(self, verb: str, uuids: Sequence[str] | None, rest: str = "") -> list[GpuFailure]:
        everyone = [gpu.uuid for gpu in self._gpus]
        failures: list[GpuFailure] = []
        for target in ["*"] if uuids is None else uuids:
            try:
                reply = self._ask_again(f"{verb} {target}{rest}")
            except DeviceError as error:
                affected = everyone if target == "*" else [target]
                return failures + [GpuFailure(uuid, NVML_ERROR_TIMEOUT, str(error)) for uuid in affected]
            failures += _failures(reply, everyone if target == "*" else [target])
        return failures

    def lock(self, mhz: int, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Ask for a clock ceiling; takes the writer role of the broker."""
        return self._order("lock", uuids, f" {mhz}")

    def reset(self, uuids: Sequence[str] | None = None) -> Sequence[GpuFailure]:
        """Hand GPUs back to the site's clocks."""
        return self._order("reset", uuids)

    def keep_alive(self) -> None:
        """Renew the lease of the writer role; raises DeviceError when the broker is gone."""
        self._write.ask("ping")

    def close(self) -> None:
        """Close both connections; the broker resets what this agent had locked."""
        self._write.close()
        self._read.close()
