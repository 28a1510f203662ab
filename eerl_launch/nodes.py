"""The agents as the session sees them: their processes, their lines, their clocks, and who is silent.

Inside Slurm one srun carries all agents; outside it, and for simulated GPUs, each agent is a local process. The
session does not care: it broadcasts messages and gets messages, each with the node it came from.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eerl_launch.agent_complaints import Complaints
from eerl_launch.channel import Decoder, Encoder, Message
from eerl_launch.energy import NodeEnergy

#: A node whose agent has sent nothing for this long is silent; its numbers end there.
SILENCE_S = 6.0
_MAX_UNSENT_BYTES = 1 << 20
#: Round trips remembered for the clock offset; the shortest of them is the least disturbed.
_ROUND_TRIPS = 60
#: Samples kept until the node's clock is known.
_MAX_EARLY = 300


class Link:
    """One process that carries agents: srun, or a local agent."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.decoder = Decoder()
        self.complaints = Complaints()
        self._unsent = b""
        self._lock = threading.Lock()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)

    @property
    def output_fd(self) -> int:
        """Where agents' lines arrive."""
        return self.process.stdout.fileno() if self.process.stdout else -1

    @property
    def error_fd(self) -> int:
        """Where srun complains."""
        return self.process.stderr.fileno() if self.process.stderr else -1

    def send(self, data: bytes = b"") -> None:
        """Write without blocking; what does not fit now goes with the next call.

        An agent that reads nothing for long loses the oldest: its clocks are wanted as they are now.
        """
        with self._lock:
            stdin = self.process.stdin
            if stdin is None or stdin.closed:
                self._unsent = b""
                return
            unsent = self._unsent + data
            try:
                while unsent:
                    unsent = unsent[os.write(stdin.fileno(), unsent) :]
            except BlockingIOError:
                pass
            except OSError:  # its process is gone, which its closed output tells the session
                unsent = b""
            if len(unsent) > _MAX_UNSENT_BYTES:
                unsent = unsent[unsent.index(b"\n", len(unsent) - _MAX_UNSENT_BYTES // 2) + 1 :]
            self._unsent = unsent

    def close_input(self) -> None:
        """The end for agents: their input closes and they hand the clocks back."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()


@dataclass(slots=True)
class Node:
    """One node of the allocation and what is known of it."""

    name: str
    state: str = "expected"  # expected, joined, lost, not_measured
    reason: str | None = None
    info: Message = field(default_factory=dict)
    energy: NodeEnergy | None = None
    supported_mhz: tuple[int, ...] = ()
    heard_at: float = 0.0  # CLOCK_MONOTONIC of the session
    offset_s: float | None = None
    round_trip_s: float | None = None
    farewell: Message | None = None
    early: deque[Message] = field(default_factory=lambda: deque(maxlen=_MAX_EARLY))
    _trips: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_ROUND_TRIPS))

    @property
    def controllable(self) -> bool:
        """Whether clocks can be set here."""
        return self.state == "joined" and self.info.get("backend", "none") != "none"

    def take_pong(self, sent_s: float, received_s: float, agent_ns: int) -> None:
        """One round trip: the offset of the agent's clock to run time is known to half of it."""
        trip_s = received_s - sent_s
        self._trips.append((trip_s, agent_ns / 1e9 - (sent_s + received_s) / 2))
        self.round_trip_s, self.offset_s = min(self._trips)

    def run_time_s(self, agent_ns: int) -> float:
        """Run time of an instant on the agent's clock; only after the first round trip."""
        return agent_ns / 1e9 - (self.offset_s or 0.0)

    def public(self) -> Message:
        """The ledger's ``node`` event, without its time."""
        info = self.info
        return {
            "node": self.name,
            "state": self.state,
            "reason": self.reason,
            "hostname": info.get("hostname"),
            "source": info.get("source"),
            "backend": info.get("backend", "none"),
            "backend_reason": info.get("backend_reason") or None,
            "driver": info.get("driver"),
            "clock_offset_s": self.offset_s,
            "clock_offset_error_s": None if self.round_trip_s is None else self.round_trip_s / 2,
            "gpus": info.get("gpus", []),
            "notes": info.get("notes", []),
        }


class Nodes:
    """All nodes of the job and the links to them."""

    def __init__(self, expected: Sequence[str]) -> None:
        self.by_name = {name: Node(name) for name in expected}
        self.links: list[Link] = []
        self.round_trips: dict[int, float] = {}
        self._encoder = Encoder()
        self._serial = 0
        self._lock = threading.Lock()

    def start(self, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> None:
        """Start the processes that carry the agents; raises OSError when one cannot be started."""
        for argv, environment in commands:
            self.links.append(Link(argv, environment))

    def serial(self) -> int:
        """A new number for a message that wants an answer."""
        self._serial += 1
        return self._serial

    def broadcast(self, message: Message) -> None:
        """Send to every agent."""
        with self._lock:
            data = self._encoder.encode(message)
            for link in self.links:
                link.send(data)

    def ping(self, now_s: float) -> None:
        """Heartbeat and clock measurement in one."""
        number = self.serial()
        self.round_trips[number] = now_s
        while len(self.round_trips) > _ROUND_TRIPS:
            self.round_trips.pop(next(iter(self.round_trips)))
        self.broadcast({"op": "ping", "id": number})

    def node(self, name: str) -> Node:
        """The node a message came from; one that was not expected is taken in."""
        if name not in self.by_name:
            self.by_name[name] = Node(name)
        return self.by_name[name]

    @property
    def joined(self) -> list[Node]:
        """Nodes whose agents answer."""
        return [node for node in self.by_name.values() if node.state == "joined"]

    @property
    def settled(self) -> bool:
        """Whether every node has joined or said why it cannot."""
        return all(node.state != "expected" for node in self.by_name.values())

    @property
    def all_heard(self) -> bool:
        """Whether every node's agent has sent something, so that it has set up what trainers find there."""
        return all(node.heard_at > 0 for node in self.by_name.values())

    def without_control(self) -> list[Node]:
        """Nodes on which no clock can be set."""
        return [node for node in self.by_name.values() if not node.controllable]

    def gpu_count(self) -> int:
        """GPUs that are being measured."""
        return sum(len(node.energy.uuids) for node in self.joined if node.energy is not None)

    def common_clocks_mhz(self) -> list[int]:
        """Clocks that every GPU of the job supports, ascending."""
        grids = [set(node.supported_mhz) for node in self.joined if node.energy and node.energy.uuids]
        return sorted(set.intersection(*grids)) if grids else []
