"""The agent: one per node, the session's hands and eyes there. Standard library only.

Commands come down standard input, telemetry goes up standard output (srun carries both). It reads the GPUs every
200 ms, locks and resets their clocks when told, hears the markers of trainer processes on its node and relays
them, and hands the clocks back however it ends: told to, input closed, TERM, session silent. What it cannot do
any more (SIGKILL) the broker does when the connection closes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eerl_launch.channel import Decoder, Encoder, Message
from eerl_launch.devices.base import DeviceError, GpuFailure, GpuInfo, GpuSample, GpuSource
from eerl_launch.marker_server import MarkerServer
from eerl_launch.sockets import SOCKET_NAME

SAMPLE_PERIOD_S = 0.2
#: The session pings once a second; silent for this long it counts as gone and the clocks go home.
SESSION_SILENCE_S = 10.0
#: Lines waiting to be written; a launcher that does not read must not make us grow.
_MAX_QUEUED_LINES = 2000
_RETRY_S = 2.0
#: How long the last reset and sample may take once the end has come; a hanging driver is left to the broker.
_FAREWELL_S = 4.0


class Uplink:
    """Lines to the session, written by a thread of its own so that a full pipe stops nothing else."""

    def __init__(self, node: str, fd: int) -> None:
        self._node = node
        self._fd = fd
        self._encoder = Encoder(node)
        self._lock = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MAX_QUEUED_LINES)
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue one message; dropped and counted when the session does not read."""
        with self._lock:
            data = self._encoder.encode({"n": self._node, **message})
            try:
                self._lines.put_nowait(data)
            except queue.Full:
                self.dropped += 1

    def _write(self) -> None:
        while (data := self._lines.get()) is not None:
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                return

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most ``timeout_s``."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)


class Hands:
    """Runs device calls off the main thread: one thread samples, one locks; a hanging call stops only its own."""

    def __init__(
        self, source: GpuSource, uplink: Uplink, clock_ns: Callable[[], int], period_s: float
    ) -> None:
        self._source = source
        self._uplink = uplink
        self._clock_ns = clock_ns
        self._period_s = period_s
        self._uuids = [gpu.uuid for gpu in source.gpus()]
        self._orders: queue.Queue[Message | None] = queue.Queue()
        self._wake = threading.Event()
        self._requests: list[int] = []
        self._ended = threading.Event()
        self._locked = False
        self.session_heard = time.monotonic()
        self._sampler = threading.Thread(target=self._sample_forever, daemon=True)
        self._setter = threading.Thread(target=self._obey_forever, daemon=True)
        self._sampler.start()
        self._setter.start()

    def order(self, message: Message) -> None:
        """Queue a lock or reset."""
        self._orders.put(message)

    def sample_now(self, request: int) -> None:
        """Sample without waiting for the next period."""
        self._requests.append(request)
        self._wake.set()

    def _sample_forever(self) -> None:
        complaint = ""
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            requests, self._requests = self._requests, []
            ended = self._ended.is_set()
            try:
                samples = self._source.sample()
            except DeviceError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._uplink.send({"ev": "note", "kind": "warning", "text": complaint})
                self._ended.wait(_RETRY_S)
            else:
                complaint = ""
                self._uplink.send(self._telemetry(samples, requests))
            if ended:
                return

    def _telemetry(self, samples: Any, requests: list[int]) -> Message:
        rows: list[list[int | None] | None] = []
        t_ns = 0
        for uuid in self._uuids:
            sample: GpuSample | None = samples.get(uuid)
            if sample is None:
                rows.append(None)
                continue
            t_ns = max(t_ns, sample.t_ns)
            rows.append(
                [
                    sample.energy_mj,
                    sample.sm_mhz,
                    sample.power_mw,
                    sample.util_pct,
                    sample.reasons,
                    sample.error_code,
                ]
            )
        message: Message = {"ev": "s", "t": t_ns or self._clock_ns(), "g": rows}
        if requests:
            message["re"] = requests[-1]
        return message

    def _obey_forever(self) -> None:
        keep_alive_s = getattr(self._source, "lease_s", SESSION_SILENCE_S) / 4
        while True:
            try:
                order = self._orders.get(timeout=keep_alive_s)
            except queue.Empty:
                self._keep_alive()
                continue
            if order is None:
                return
            self._obey(order)

    def _keep_alive(self) -> None:
        """Renew the lease while the session lives; a session that hangs loses its lock like one that died."""
        if not self._locked:
            return
        if time.monotonic() - self.session_heard > SESSION_SILENCE_S:
            self._source.reset()
            self._locked = False
            self._uplink.send({"ev": "note", "kind": "control_off", "text": "the session fell silent: reset"})
            return
        try:
            self._source.keep_alive()
        except DeviceError as error:
            self._locked = False
            self._uplink.send({"ev": "note", "kind": "broker_lost", "text": str(error)})

    def _obey(self, order: Message) -> None:
        begin_ns = time.monotonic_ns()
        failures: list[GpuFailure]
        if order["op"] == "lock":
            self._locked = True
            failures = list(self._source.lock(int(order["mhz"]), order.get("uuids")))
        else:
            failures = list(self._source.reset(order.get("uuids")))
            self._locked = self._locked and bool(failures or order.get("uuids"))
        self._uplink.send(
            {
                "ev": "done",
                "re": order.get("id"),
                "t": self._clock_ns(),
                "took_s": (time.monotonic_ns() - begin_ns) / 1e9,
                "set": len(order.get("uuids") or self._uuids) - len(failures),
                "failures": [[f.uuid, f.code, f.text[:120]] for f in failures],
            }
        )

    def finish(self) -> Message:
        """Reset what was locked, take a last sample, and say how it went; bounded by the farewell time."""
        was_locked = self._locked
        if was_locked:
            self._orders.put({"op": "reset", "id": None, "uuids": None})
        self._orders.put(None)
        self._setter.join(_FAREWELL_S)
        self._ended.set()
        self._wake.set()
        self._sampler.join(1.0)
        hangs = self._setter.is_alive()
        return {"ev": "bye", "locked": was_locked, "hangs": hangs, "left_locked": self._locked or hangs}


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
        except (DeviceError, ValueError, KeyError) as error:
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


class Agent:
    """The main loop: commands, markers, and the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._uplink = Uplink(options.node, os.dup(1))
        self._selector = selectors.DefaultSelector()
        self._decoder = Decoder()
        self._hands: Hands | None = None
        self._indices: list[int] | None = None
        self._ending = False
        self._relay: MarkerServer | None = None
        self._relay_complaint: str | None = None
        self._source: GpuSource | None = None
        if options.marker_folder:
            path = Path(options.marker_folder) / SOCKET_NAME
            self._relay = MarkerServer(path, self._selector, self._marker, self._bad_markers)

    def _clock_ns(self) -> int:
        clock = getattr(self._source, "clock_ns", None)
        return int(clock()) if clock is not None else time.monotonic_ns()

    def _open(self) -> None:
        """Join with GPUs, or say why this node is not measured; a broker may yet come, so try again later."""
        try:
            self._source = open_source(self._options, self._indices)
        except DeviceError as error:
            if self._options.job_id and self._indices is None:
                return  # the session is asking Slurm which GPUs these are; then it is tried again
            self._uplink.send({"ev": "not_measured", "text": str(error), "hostname": socket.gethostname()})
            return
        self._uplink.send(describe(self._source))
        period_s = self._options.period_s
        self._hands = Hands(self._source, self._uplink, self._clock_ns, period_s)

    def _command(self, message: Message) -> None:
        if self._hands is not None:
            self._hands.session_heard = time.monotonic()
        if message.get("to") not in (None, self._options.node):
            return
        operation = message.get("op")
        if operation == "end":
            self._ending = True
        elif operation == "ping":
            self._uplink.send({"ev": "pong", "re": message.get("id"), "t": self._clock_ns()})
        elif operation == "gpus":
            self._indices = message["indices"].get(self._options.node, [])
            if self._hands is None:
                self._open()
        elif self._hands is None:
            self._uplink.send({"ev": "done", "re": message.get("id"), "set": 0, "failures": []})
        elif operation == "sample":
            self._hands.sample_now(int(message["id"]))
        elif operation in ("lock", "reset"):
            self._hands.order(message)

    def _read_commands(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._ending = True
        for message in self._decoder.feed(data):
            self._command(message)

    def run(self) -> int:
        """Serve until the session says end, closes the channel, or TERM comes and the channel closes after it."""
        self._selector.register(0, selectors.EVENT_READ, self._read_commands)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        self._open()
        while not self._ending:
            if self._relay is not None:
                complaint = self._relay.ensure()
                if complaint and complaint != self._relay_complaint:
                    self._uplink.send({"ev": "note", "kind": "warning", "text": complaint})
                self._relay_complaint = complaint
            for key, _ in self._selector.select(1.0):
                key.data()
        farewell: Message = {"ev": "bye", "locked": False, "hangs": False, "left_locked": False}
        if self._hands is not None:
            farewell = self._hands.finish()
        self._uplink.send(farewell)
        if self._relay is not None:
            self._relay.close()
            with contextlib.suppress(OSError):
                Path(self._options.marker_folder).rmdir()
        self._uplink.close(2.0)
        if self._source is not None and not farewell["hangs"]:
            self._source.close()
        return 0

    def _marker(self, sender: str, line: bytes) -> None:
        """Send a marker of this node up as it came, with the instant of its arrival on both clocks."""
        text = line.decode("utf-8", "replace")
        self._uplink.send(
            {"ev": "m", "from": sender, "line": text, "real_s": time.time(), "t": time.monotonic_ns()}
        )

    def _bad_markers(self, count: int) -> None:
        self._uplink.send({"ev": "bad_markers", "count": count})

    def _on_term(self, number: int, frame: object) -> None:
        """TERM means that the job is being ended: clocks go home at once, sampling goes on to the end of input."""
        if self._hands is not None:
            self._hands.order({"op": "reset", "id": None, "uuids": None})


def main() -> int:
    """Entry point of ``python -I -m eerl_launch.agent``."""
    parser = argparse.ArgumentParser(prog="eerl agent")
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    parser.add_argument("--job-id", default="")
    parser.add_argument("--marker-folder", default="")
    parser.add_argument("--session-node", default="", help="the node whose markers the session hears itself")
    parser.add_argument("--sim-dir", default="")
    parser.add_argument("--sim-node", type=int, default=0)
    parser.add_argument("--period-s", type=float, default=SAMPLE_PERIOD_S)
    options = parser.parse_args()
    if options.node == options.session_node:
        options.marker_folder = ""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(AttributeError):
        sys.setswitchinterval(0.02)
    code = Agent(options).run()
    # A thread that hangs in the driver must not keep the node's step alive.
    os._exit(code)


if __name__ == "__main__":
    main()
