"""What agents send → nodes joined and lost, samples into the energy history, answers to orders, relayed markers."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from eerl_launch import agents_start
from eerl_launch.channel import Message
from eerl_launch.curve import COUNTER_PERIOD_S
from eerl_launch.energy import Allocation, NodeEnergy, Notice
from eerl_launch.nodes import SILENCE_S, Link, Node, Nodes
from eerl_launch.orders import Orders
from eerl_launch.sample_rows import unpack
from eerl_launch.telling import RunClock, Voice

_PING_PERIOD_S = 1.0
#: Until the first agent answers, look more often: its samples wait for its clock.
_FIRST_PING_PERIOD_S = 0.1

MarkerLine = Callable[[bytes, str, float, float], None]


class NodeWatch:
    """Starts the agents, hears them, and keeps book on who is there.

    ``on_marker(line, sender, arrival_real_s, arrival_s)`` gets markers from other nodes, ``on_bad(count)`` the
    number of those that could not be relayed, ``on_change()`` is called when nodes have come or gone.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        selector: selectors.BaseSelector,
        nodes: Nodes,
        energy: Allocation,
        orders: Orders,
        clock: RunClock,
        voice: Voice,
        on_marker: MarkerLine,
        on_bad: Callable[[int], None],
        on_change: Callable[[], None],
    ) -> None:
        self._config = config
        self._selector = selector
        self._nodes = nodes
        self._energy = energy
        self._orders = orders
        self._clock = clock
        self._voice = voice
        self._on_marker = on_marker
        self._on_bad = on_bad
        self._on_change = on_change
        self._next_ping = 0.0
        self._indices: dict[str, list[int]] | None = None
        self.ending = False

    def start(self) -> None:
        """Start the agents; without them the job runs unmeasured."""
        try:
            self._nodes.start(agents_start.commands(self._config))
        except OSError as error:
            self._voice.say_once("agents", f"the agents cannot be started ({error}); nothing is measured")
            for node in self._nodes.by_name.values():
                self._lose(node, f"no agent: {error}", quietly=True)
            return
        for link in self._nodes.links:
            self._selector.register(link.output_fd, selectors.EVENT_READ, lambda link=link: self._hear(link))
            self._selector.register(
                link.error_fd, selectors.EVENT_READ, lambda link=link: self._hear_complaint(link)
            )
        threading.Thread(target=self._look_up_gpus, daemon=True).start()

    def _look_up_gpus(self) -> None:
        """Ask Slurm which GPUs the job has on each node, for agents without a broker; beside the loop."""
        self._indices = agents_start.gpu_indices(self._config) or {}

    def tick(self, now: float) -> None:
        """Send what is due and notice who is silent."""
        for link in self._nodes.links:
            link.send()
        if self._indices is not None:
            self._nodes.broadcast({"op": "gpus", "indices": self._indices})
            if self._indices:
                self._voice.log("granted", gpus_by_node=self._indices)
            self._indices = None
        if now < self._next_ping:
            return
        self._next_ping = now + (_PING_PERIOD_S if self._nodes.joined else _FIRST_PING_PERIOD_S)
        self._nodes.ping(self._clock.now_s())
        for node in self._nodes.joined:
            if now - node.heard_at > SILENCE_S:
                self._lose(node, f"silent for {now - node.heard_at:.0f} s")
        self._tell_silence(now)

    def _tell_silence(self, now: float) -> None:
        """Agents that should be there by now are missing, and something was said about it: tell it once."""
        missing = [node.name for node in self._nodes.by_name.values() if node.state == "expected"]
        reasons = [reason for link in self._nodes.links if (reason := link.complaints.of_a_silence(now))]
        if missing and reasons and not self.ending:
            who = missing[0] + (f" and {len(missing) - 1} other nodes" if len(missing) > 1 else "")
            self._voice.say_once("agent_stderr", f"no agent has answered on {who} yet: {reasons[-1]}")

    def _hear(self, link: Link) -> None:
        try:
            data = os.read(link.output_fd, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(link.output_fd)
            if not self.ending:
                self._lose_link(link)
            return
        for message in link.decoder.feed(data):
            try:
                self._take(self._nodes.node(str(message["n"])), message)
            except (KeyError, TypeError, ValueError) as error:
                self._voice.log("event", kind="warning", text=f"agent message passed over: {error!r}")

    def _hear_complaint(self, link: Link) -> None:
        try:
            data = os.read(link.error_fd, 65536)
        except BlockingIOError:
            return
        if not data:
            if link.error_fd in self._selector.get_map():  # its end may have been read with the agent's own
                self._selector.unregister(link.error_fd)
            return
        text = data.decode("utf-8", "replace").strip()
        self._voice.log("event", kind="agent_stderr", text=text[:2000])
        link.complaints.hear(text, time.monotonic())

    def _lose_link(self, link: Link) -> None:
        """A process that carries agents has closed its output: its nodes are gone."""
        try:
            code: int | None = link.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        self._hear_complaint(link)
        why = link.complaints.of_an_end(time.monotonic())
        lost = [node for node in self._nodes.by_name.values() if node.state in ("expected", "joined")]
        if len(self._nodes.links) > 1:  # local agents stand in the order of the nodes
            name = self._config["nodes"][self._nodes.links.index(link)]
            lost = [node for node in lost if node.name == name]
        for node in lost:
            self._lose(node, f"its agent ended (code {code}{why and f'; {why}'})")

    def _lose(self, node: Node, reason: str, *, quietly: bool = False) -> None:
        had_joined = node.state == "joined"
        node.state, node.reason = "lost" if had_joined else "not_measured", reason
        self._voice.log("node", **node.public())
        last_s = node.energy.last_t_s if node.energy else None
        self._voice.log("event", kind="node_lost", node=node.name, text=reason, last_sample_s=last_s)
        if not quietly:
            what = "is lost, its energy ends here" if had_joined else "is not measured"
            self._voice.say_once(f"node {node.name}", f"node {node.name} {what}: {reason}; the job goes on")
        self._on_change()

    def _take(self, node: Node, message: Message) -> None:
        node.heard_at = time.monotonic()
        kind = message["ev"]
        if node.state == "lost" and kind in ("s", "pong"):
            node.state, node.reason = "joined", None
            self._voice.log("node", **node.public())
        if kind == "s":
            self._sample(node, message)
        elif kind == "m":
            known = node.offset_s is not None
            arrival_s = node.run_time_s(message["t"]) if known else self._clock.now_s()
            sender = f"{node.name}/{message['from']}"
            self._on_marker(message["line"].encode(), sender, message["real_s"], arrival_s)
        elif kind == "pong":
            self._pong(node, message)
        elif kind == "done":
            self._orders.done(node.name, message)
        elif kind == "join":
            self._join(node, message)
        elif kind == "not_measured":
            node.state, node.reason = "not_measured", message["text"]
            node.info = {"hostname": message.get("hostname")}
            self._voice.log("node", **node.public())
            self._on_change()
        elif kind == "bad_markers":
            self._on_bad(int(message["count"]))
        elif kind == "bye":
            node.farewell = message
        elif kind == "note":
            self._note(node, message)

    def _pong(self, node: Node, message: Message) -> None:
        sent_s = self._nodes.round_trips.get(message["re"])
        if sent_s is None:
            return
        node.take_pong(sent_s, self._clock.now_s(), message["t"])
        while node.early:
            self._sample(node, node.early.popleft())

    def _note(self, node: Node, message: Message) -> None:
        self._voice.log("event", kind=message["kind"], node=node.name, text=message["text"])
        if message["kind"] == "broker_lost":
            self._voice.say_once(f"broker {node.name}", f"{node.name}: {message['text']}")
            self._orders.forget_applied()
            self._orders.apply("broker")

    def _join(self, node: Node, message: Message) -> None:
        node.state, node.reason, node.info = "joined", None, message
        node.supported_mhz = tuple(message["clocks"])
        uuids = [gpu["uuid"] for gpu in message["gpus"]]
        # Simulated counters are exact at every reading.
        period_s = 0.0 if message["source"] == "sim" else COUNTER_PERIOD_S
        node.energy = NodeEnergy(node.name, uuids, self._config["time_scale"], period_s)
        self._energy.nodes[node.name] = node.energy
        self._voice.log("node", **node.public())
        for note in message.get("notes", []):
            self._voice.say_once(f"{node.name}: {note}", f"{node.name}: {note}")
        self._on_change()

    def _sample(self, node: Node, message: Message) -> None:
        if node.energy is None:
            return
        if node.offset_s is None:
            node.early.append(message)
            return
        newest_ns = int(message["t"])
        rows = [unpack(row, newest_ns) for row in message["g"]]
        for notice in node.energy.add(node.run_time_s(newest_ns), rows):
            self._tell(node, notice)
        self._orders.verify(node, rows)

    def _tell(self, node: Node, notice: Notice) -> None:
        self._voice.log(
            "event",
            kind=notice.kind,
            node=node.name,
            uuid=notice.uuid or None,
            text=notice.text,
            at_s=notice.t_s,
            **notice.values,
        )
        if notice.kind != "gpu_back":
            name = notice.uuid or node.name
            self._voice.say_once(f"{notice.kind} {node.name}", f"{node.name} {name}: {notice.text}")
