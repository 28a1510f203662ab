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
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

from eerl_launch import adapter_folder
from eerl_launch.agent_hands import Hands
from eerl_launch.agent_source import describe, open_source
from eerl_launch.agent_uplink import Uplink
from eerl_launch.channel import Decoder, Message
from eerl_launch.devices.base import DeviceError, GpuSource
from eerl_launch.marker_server import MarkerServer
from eerl_launch.sockets import SOCKET_NAME, InstanceLock, claim, is_private

SAMPLE_PERIOD_S = 0.2
_COUNTED_ELSEWHERE = (
    "another eerl-run of this job is at work there and counts its GPUs, so they are not counted twice; "
    "one eerl-run, in the batch script or in one step, measures the whole job"
)


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
        self._adapter_name = os.environ.get(adapter_folder.VARIABLE, "")
        self._adapter_complaint: str | None = None
        self._source: GpuSource | None = None
        self._claim: InstanceLock | None = None
        if options.marker_folder:
            self._claim = claim(Path(options.marker_folder)) if options.session_node else None
            if not self._is_anothers:
                path = Path(options.marker_folder) / SOCKET_NAME
                self._relay = MarkerServer(path, self._selector, self._marker, self._bad_markers)
        self._lay_adapters()

    @property
    def _is_anothers(self) -> bool:
        """Whether another eerl-run of this job is at work on this node: then its GPUs are counted there."""
        return self._claim is not None and not self._claim.held

    def _lay_adapters(self) -> None:
        """Trainer processes of this node find the framework adapters; the session's node has them already."""
        if not (self._options.marker_folder and self._adapter_name) or self._is_anothers:
            return
        folder = Path(self._options.marker_folder)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_private(folder):
                adapter_folder.lay(folder, self._adapter_name)
        except OSError as error:
            text = f"the framework adapters cannot be laid into {folder} ({error})"
            if text != self._adapter_complaint:
                self._uplink.send({"ev": "note", "kind": "warning", "text": text})
            self._adapter_complaint = text

    def _clock_ns(self) -> int:
        clock = getattr(self._source, "clock_ns", None)
        return int(clock()) if clock is not None else time.monotonic_ns()

    def _open(self) -> None:
        """Join with GPUs, or say why this node is not measured; a broker may yet come, so try again later."""
        try:
            if self._is_anothers:
                raise DeviceError(_COUNTED_ELSEWHERE)
            self._source = open_source(self._options, self._indices)
        except DeviceError as error:
            if not self._is_anothers and self._options.job_id and self._indices is None:
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
            if self._hands is None and not self._is_anothers:
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
            try:
                self._command(message)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                text = f"command passed over: {error!r}"
                self._uplink.send({"ev": "note", "kind": "warning", "text": text[:500]})

    def run(self) -> int:
        """Serve until the session says end, closes the channel, or TERM comes and the channel closes after it."""
        self._selector.register(0, selectors.EVENT_READ, self._read_commands)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        self._selector.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 4096))
        self._open()
        try:
            self._serve()
        except Exception as error:  # whatever it is, the clocks go home first
            self._uplink.send({"ev": "note", "kind": "warning", "text": f"the agent failed: {error!r}"[:500]})
        farewell: Message = {"ev": "bye", "locked": False, "hangs": False, "left_locked": False}
        if self._hands is not None:
            farewell = self._hands.finish()
        self._uplink.send(farewell)
        if self._relay is not None:
            self._relay.close()
            if self._adapter_name:
                adapter_folder.remove(Path(self._options.marker_folder), self._adapter_name)
            if self._claim is not None:
                self._claim.give_up()
            with contextlib.suppress(OSError):
                Path(self._options.marker_folder).rmdir()
        self._uplink.close(2.0)
        if self._source is not None and not farewell["hangs"]:
            self._source.close()
        return 0

    def _serve(self) -> None:
        while not self._ending:
            if self._relay is not None:
                complaint = self._relay.ensure()
                if complaint and complaint != self._relay_complaint:
                    self._uplink.send({"ev": "note", "kind": "warning", "text": complaint})
                self._relay_complaint = complaint
                self._lay_adapters()
            for key, _ in self._selector.select(1.0):
                key.data()

    def _marker(self, sender: str, line: bytes) -> None:
        """Send a marker of this node up as it came, with the instant of its arrival on both clocks."""
        text = line.decode("utf-8", "replace")
        self._uplink.send(
            {"ev": "m", "from": sender, "line": text, "real_s": time.time(), "t": self._clock_ns()}
        )

    def _bad_markers(self, count: int) -> None:
        self._uplink.send({"ev": "bad_markers", "count": count})

    def _on_term(self, number: int, frame: object) -> None:
        """TERM means that the job is being ended: clocks go home at once, sampling goes on to the end of input."""
        if self._hands is not None:
            self._hands.go_home()


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
