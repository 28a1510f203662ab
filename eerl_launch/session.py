"""The session: the only loop. Markers and energy in, records to the controller, its plans to the agents.

    marker(n) + energy(n) → record(n) → observe → plan → agents → energy → ledger → report

A process of its own, started by the launcher: whatever happens here, the command does not notice. It ends when
the launcher says that the command has ended, or when the launcher is gone. It never writes to standard output
but for signs of life to the launcher, and little to standard error.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eerl_launch import agents_start
from eerl_launch.channel import Message
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import Allocation as AllocationEnergy
from eerl_launch.energy import NodeEnergy, Notice
from eerl_launch.launch import say
from eerl_launch.ledger import LedgerWriter
from eerl_launch.marker_server import MarkerServer
from eerl_launch.markers import Marker, MarkerError, parse
from eerl_launch.nodes import SILENCE_S, Link, Node, Nodes
from eerl_launch.operator_door import OperatorDoor
from eerl_launch.orders import Orders
from eerl_launch.pilot import Pilot
from eerl_launch.policy import Policy
from eerl_launch.progress import Progress
from eerl_launch.sockets import SOCKET_NAME
from eerl_launch.steering import Steering
from eerl_launch.updates import Edge, Update, UpdateTracker

_TICK_PERIOD_S = 10.0
_PING_PERIOD_S = 1.0
#: A second reading after an edge: the counter is published every 100 ms, so this one is fresh.
_SECOND_SAMPLE_S = 0.12
#: An update waits this long for readings after its end before it is called partial.
_ENERGY_PATIENCE_S = 3.0
#: Agents have this long to say good-bye; one that has not even joined is not waited for.
_FAREWELL_S = 6.0
_MAX_NAGS = 20


@dataclass(frozen=True, slots=True)
class RunClock:
    """Run time: seconds since the run began, monotonic; virtual seconds when the GPUs are simulated."""

    origin_s: float
    scale: float = 1.0

    def now_s(self) -> float:
        """Run time now."""
        return (time.monotonic() - self.origin_s) * self.scale


@dataclass(slots=True)
class Closed:
    """An update that has ended and waits for its last readings and counts."""

    update: Update
    closed_at: float  # CLOCK_MONOTONIC


class Session:
    """Owns everything of a run but the command itself."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.policy = Policy.from_dict(config["policy"])
        self.clock = RunClock(config["origin_s"], config["time_scale"])
        self.ledger = LedgerWriter(Path(config["run_folder"]))
        self.nodes = Nodes(config["nodes"])
        self.energy = AllocationEnergy()
        self.tracker = UpdateTracker()
        self.steering = Steering()
        self.orders = Orders(self.nodes, self.steering, self.log, self.say_once)
        self.pilot = Pilot(
            config, self.policy, self.nodes, self.energy, self.steering, self.log, self.say_once
        )
        self.pilot.not_honoured = self.orders.take_not_honoured
        self.selector = selectors.DefaultSelector()
        self.progress = Progress()
        self.closed: deque[Closed] = deque()
        self.counts = {"received": 0, "malformed": 0, "lost": 0}
        self.end: dict[str, Any] | None = None
        self._said: set[str] = set()
        self._samples_due: list[float] = []
        self._timers = {"ping": 0.0, "tick": 0.0, "sample": 0.0}
        self._update_lengths: deque[float] = deque(maxlen=10)
        self._doing = True
        self._launcher_rest = b""

    # -- telling --------------------------------------------------------------------------------------------

    def log(self, event: str, **fields: Any) -> None:
        """One line in the ledger, stamped with run time unless it brings its own."""
        self.ledger.append({"ev": event, "t_s": self.clock.now_s(), **fields})

    def say_once(self, key: str, text: str) -> None:
        """One message on stderr per kind of trouble, and in the ledger."""
        if key in self._said:
            return
        self._said.add(key)
        self.log("event", kind="warning", text=text, key=key)
        if len(self._said) <= _MAX_NAGS:
            say(text)

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the command has ended; 0 when everything of ours went well."""
        self.log("start", **self.config["start"])
        private = Path(self.config["private_folder"])
        server = socket.socket(fileno=self.config["marker_fd"])
        self.markers = MarkerServer(private / SOCKET_NAME, self.selector, self._line, self._bad_lines, server)
        self.selector.register(0, selectors.EVENT_READ, self._hear_launcher)
        try:
            self.door: OperatorDoor | None = OperatorDoor(
                private,
                Path(self.config["run_folder"]),
                self.config["session_node"],
                self.selector,
                self._answer_operator,
            )
        except OSError as error:
            self.door = None
            self.log("event", kind="warning", text=f"no operator socket: {error}")
        self._start_agents()
        while self._doing:
            for key, _ in self.selector.select(self._patience_s()):
                key.data()
            self._tick()
        return self._finish()

    def _patience_s(self) -> float:
        """How long the loop may sleep."""
        if self.closed or self._samples_due or self.orders.waiting:
            return 0.02 if self.config["time_scale"] == 1.0 else 0.002
        return 0.25

    def _start_agents(self) -> None:
        try:
            self.nodes.start(agents_start.commands(self.config))
        except OSError as error:
            self.say_once("agents", f"the agents cannot be started ({error}); nothing is measured")
            return
        for link in self.nodes.links:
            self.selector.register(
                link.output_fd, selectors.EVENT_READ, lambda link=link: self._hear_agents(link)
            )
            self.selector.register(
                link.error_fd, selectors.EVENT_READ, lambda link=link: self._hear_complaints(link)
            )
        threading.Thread(target=self._look_up_gpus, daemon=True).start()

    def _look_up_gpus(self) -> None:
        """Ask Slurm which GPUs the job has on each node, for agents without a broker."""
        indices = agents_start.gpu_indices(self.config) or {}
        self.nodes.broadcast({"op": "gpus", "indices": indices})

    def _tick(self) -> None:
        now = time.monotonic()
        for link in self.nodes.links:
            link.send()
        if now >= self._timers["ping"]:
            self._timers["ping"] = now + (_PING_PERIOD_S if self.nodes.joined else 0.1)
            self.nodes.ping(self.clock.now_s())
            complaint = self.markers.ensure()
            if complaint:
                self.say_once("markers", complaint)
            self._notice_silence(now)
            self._show_progress()
        if now >= self._timers["tick"]:
            self._timers["tick"] = now + _TICK_PERIOD_S
            self._log_totals()
        if self._samples_due and now >= self._samples_due[0]:
            self._samples_due = [due for due in self._samples_due if due > now]
            self.nodes.broadcast({"op": "sample", "id": self.nodes.serial()})
        self.orders.check(now)
        self._settle()

    def _log_totals(self) -> None:
        silent = [node.name for node in self.nodes.by_name.values() if node.state != "joined"]
        self.log("tick", gpu_energy_j=self.energy.cumulative_j(), nodes_silent=silent)

    def _show_progress(self) -> None:
        if self.tracker.updates_seen == 0 and not self.progress.is_terminal:
            return
        state, line = self.pilot.progress(self.tracker.updates_seen, self.clock.now_s())
        self.progress.show(state, line)

    # -- the launcher ---------------------------------------------------------------------------------------

    def _hear_launcher(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self.end = self.end or {"status": "launcher_lost", "code": None, "signal": None}
            self._doing = False
            return
        *lines, self._launcher_rest = (self._launcher_rest + data).split(b"\n")
        for line in lines:
            news = json.loads(line)
            if news.get("ev") == "exit":
                status = "killed" if news["signal"] else "complete"
                self.end = {"status": status, "code": news["code"], "signal": news["signal"] or None}
                self._doing = False

    # -- agents ---------------------------------------------------------------------------------------------

    def _hear_agents(self, link: Link) -> None:
        try:
            data = os.read(link.output_fd, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(link.output_fd)
            if self._doing:
                self._lose_all(link)
            return
        for message in link.decoder.feed(data):
            try:
                self._take(self.nodes.node(str(message["n"])), message)
            except (KeyError, TypeError, ValueError) as error:
                self.log("event", kind="warning", text=f"agent message passed over: {error!r}")

    def _hear_complaints(self, link: Link) -> None:
        try:
            data = os.read(link.error_fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self.selector.unregister(link.error_fd)
            return
        text = data.decode("utf-8", "replace").strip()
        self.log("event", kind="agent_stderr", text=text[:2000])
        errors = [line for line in text.splitlines() if "error" in line]
        if self._doing and errors and not self.nodes.joined:
            self.say_once("agent_stderr", f"while the agents start: {errors[-1][:300]}")

    def _lose_all(self, link: Link) -> None:
        try:
            code = link.process.wait(1.0)
        except Exception:
            code = None
        lost = [n for n in self.nodes.by_name.values() if n.state in ("expected", "joined")]
        if len(self.nodes.links) > 1:
            lost = [n for n in lost if n.name == self.nodes_of_link(link)]
        for node in lost:
            self._lose(node, f"its agent ended (code {code})")

    def nodes_of_link(self, link: Link) -> str:
        """The node of a local agent; links stand in the order of the expected nodes."""
        return str(self.config["nodes"][self.nodes.links.index(link)])

    def _lose(self, node: Node, reason: str) -> None:
        had_joined = node.state == "joined"
        node.state, node.reason = "lost" if had_joined else "not_measured", reason
        self.log("node", **node.public())
        last_s = node.energy.last_t_s if node.energy else None
        self.log("event", kind="node_lost", node=node.name, text=reason, last_sample_s=last_s)
        what = "is lost, its energy ends here" if had_joined else "is not measured"
        self.say_once(f"node {node.name}", f"node {node.name} {what}: {reason}; the job goes on")
        self._check_control()

    def _notice_silence(self, now: float) -> None:
        for node in self.nodes.joined:
            if now - node.heard_at > SILENCE_S:
                self._lose(node, f"silent for {now - node.heard_at:.0f} s")

    def _take(self, node: Node, message: Message) -> None:
        node.heard_at = time.monotonic()
        kind = message["ev"]
        if node.state == "lost" and kind in ("s", "pong"):
            node.state, node.reason = "joined", None
            self.log("node", **node.public())
        if kind == "s":
            self._sample(node, message)
        elif kind == "m":
            arrival_s = node.run_time_s(message["t"]) if node.offset_s is not None else self.clock.now_s()
            sender = f"{node.name}/{message['from']}"
            self._parse(message["line"].encode(), sender, message["real_s"], arrival_s)
        elif kind == "pong":
            sent_s = self.nodes.round_trips.get(message["re"])
            if sent_s is not None:
                node.take_pong(sent_s, self.clock.now_s(), message["t"])
                while node.early:
                    self._sample(node, node.early.popleft())
        elif kind == "done":
            self.orders.done(node.name, message)
        elif kind == "join":
            self._join(node, message)
        elif kind == "not_measured":
            node.state, node.reason = "not_measured", message["text"]
            node.info = {"hostname": message.get("hostname")}
            self.log("node", **node.public())
            self._check_control()
        elif kind == "bad_markers":
            self._bad_lines(int(message["count"]))
        elif kind == "bye":
            node.farewell = message
        elif kind == "note":
            self._note(node, message)

    def _note(self, node: Node, message: Message) -> None:
        self.log("event", kind=message["kind"], node=node.name, text=message["text"])
        if message["kind"] == "broker_lost":
            self.say_once(f"broker {node.name}", f"{node.name}: {message['text']}")
            self.orders.forget_applied()
            self.orders.apply(self.clock.now_s(), "broker")

    def _join(self, node: Node, message: Message) -> None:
        node.state, node.reason, node.info = "joined", None, message
        node.supported_mhz = tuple(message["clocks"])
        node.energy = NodeEnergy(
            node.name, [gpu["uuid"] for gpu in message["gpus"]], self.config["time_scale"]
        )
        self.energy.nodes[node.name] = node.energy
        self.log("node", **node.public())
        self._check_control()

    def _check_control(self) -> None:
        if self.nodes.settled:
            self.pilot.check_control()
            self.orders.apply(self.clock.now_s(), "control")

    def _sample(self, node: Node, message: Message) -> None:
        if node.energy is None:
            return
        if node.offset_s is None:
            node.early.append(message)
            return
        rows = [None if row is None else GpuSample(int(message["t"]), *row) for row in message["g"]]
        for notice in node.energy.add(node.run_time_s(message["t"]), rows):
            self._tell(node, notice)
        self.orders.verify(node, rows, self.clock.now_s())

    def _tell(self, node: Node, notice: Notice) -> None:
        self.log(
            "event",
            kind=notice.kind,
            node=node.name,
            uuid=notice.uuid or None,
            text=notice.text,
            at_s=notice.t_s,
        )
        if notice.kind != "gpu_back":
            name = notice.uuid or node.name
            self.say_once(f"{notice.kind} {node.name}", f"{node.name} {name}: {notice.text}")

    # -- markers --------------------------------------------------------------------------------------------

    def _line(self, sender: str, line: bytes) -> None:
        self._parse(line, f"0/{sender}", time.time(), self.clock.now_s())

    def _bad_lines(self, count: int) -> None:
        self.counts["malformed"] += count
        self.say_once("malformed", "a marker was not understood and passed over (more are only counted)")

    def _parse(self, line: bytes, sender: str, real_s: float, arrival_s: float) -> None:
        self.counts["received"] += 1
        try:
            marker = parse(line, sender, real_s, arrival_s, self.config["time_scale"])
        except MarkerError as error:
            if self.counts["malformed"] < _MAX_NAGS:
                self.log("event", kind="markers_malformed", text=str(error)[:300])
            self._bad_lines(1)
            return
        self._mark(marker)

    def _mark(self, marker: Marker) -> None:
        if marker.event in ("begin", "end", "update"):
            edge = self.tracker.feed(marker)
            if edge is not None:
                self._edge(edge)
        elif marker.event == "lost":
            self.counts["lost"] += int(marker.numbers.get("count", 1))
        elif marker.event in ("run", "pool", "metric"):
            fields = {
                key: value for key, value in marker.fields.items() if key not in ("v", "ev", "t", "t_s")
            }
            self.log(marker.event, **fields)
            if marker.event == "run":
                self.pilot.told(marker)

    def _edge(self, edge: Edge) -> None:
        now = time.monotonic()
        if edge.begins:
            self.steering.phase_begins(edge.phase)
        else:
            self._remember_length(edge)
        if edge.opened is not None:
            self.pilot.boundary(edge.t_s)
        if edge.begins:
            self.orders.apply(self.clock.now_s(), edge.phase)
        if edge.closed is not None:
            self.closed.append(Closed(edge.closed, now))
        if now >= self._timers["sample"]:  # too frequent readings come back empty
            self._timers["sample"] = now + 0.1 / max(1.0, self.config["time_scale"])
            self.nodes.broadcast({"op": "sample", "id": self.nodes.serial()})
            if edge.opened is not None:
                self._samples_due.append(now + _SECOND_SAMPLE_S)

    def _remember_length(self, edge: Edge) -> None:
        current = self.tracker.current
        for occurrence in reversed(current.occurrences if current else []):
            if occurrence.phase == edge.phase and occurrence.end_s == edge.t_s:
                self.steering.phase_took(edge.phase, edge.t_s - occurrence.begin_s)
                return

    # -- updates --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Turn closed updates into records as soon as their readings and counts are there."""
        while self.closed:
            head = self.closed[0]
            waited_s = time.monotonic() - head.closed_at
            end_s = head.update.end_s or 0.0
            ready = self.energy.covered(end_s) or waited_s > _ENERGY_PATIENCE_S
            counted = head.update.counted or len(self.closed) > 1
            if not ready or not counted:
                return
            self.closed.popleft()
            self._record(head.update)

    def _record(self, update: Update) -> None:
        for event in self.pilot.before_first(self.tracker.take_before(), update.begin_s):
            self.ledger.append(event)
        following = self.tracker.current
        self.pilot.record(
            update,
            following_begin_s=following.begin_s if following is not None and not self.closed else None,
            now_s=self.clock.now_s(),
        )
        self.orders.apply(self.clock.now_s(), "plan")
        self._log_totals()
        oldest_s = self.closed[0].update.begin_s if self.closed else (following.begin_s if following else 0.0)
        self.energy.forget_before(oldest_s)
        self.steering.forget_before(oldest_s)
        self._show_progress()

    # -- operators ------------------------------------------------------------------------------------------

    def _answer_operator(self, operation: str) -> dict[str, Any]:
        if operation in ("hold", "resume"):
            self.pilot.hold(operation == "hold", self.clock.now_s())
            self.orders.apply(self.clock.now_s(), operation)
        elif operation != "status":
            return {"error": f"unknown op {operation!r}; known are status, hold, resume"}
        return self.pilot.status(self.tracker.updates_seen, self.clock.now_s())

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self) -> int:
        threading.Thread(target=_show_life, daemon=True).start()
        self.progress.close()
        self.markers.drain()
        ended_s = self.clock.now_s()
        self._say_good_bye()
        last = self.tracker.finish(ended_s)
        if last is not None:
            complete = last.begun("training") and all(o.complete for o in last.occurrences)
            if complete:
                last.end_s = max(o.end_s or ended_s for o in last.occurrences)
            self.closed.append(Closed(last, 0.0))
        while self.closed:
            self._record(self.closed.popleft().update)
        for event in self.pilot.before_first(self.tracker.take_before(), ended_s):
            self.ledger.append(event)
        self._log_end(ended_s)
        self.markers.close()
        if self.door is not None:
            self.door.close()
        self.ledger.close()
        shutil.rmtree(self.config["private_folder"], ignore_errors=True)
        return self._report()

    def _say_good_bye(self) -> None:
        """Let the agents reset and read for the last time; bounded, and nothing of ours is left running."""
        self.nodes.broadcast({"op": "end"})
        joined = self.nodes.joined
        deadline = time.monotonic() + (_FAREWELL_S if joined else 0.0)
        while time.monotonic() < deadline and not all(node.farewell for node in joined):
            for key, _ in self.selector.select(0.02):
                if key.fd != 0:
                    key.data()
            for link in self.nodes.links:
                link.send()
        for link in self.nodes.links:
            link.close_input()
        for link in self.nodes.links:
            agents_start.reap(link, patient=bool(joined))

    def _log_end(self, ended_s: float) -> None:
        end = self.end or {}
        for node in self.nodes.joined:
            self.log("node", **node.public())  # once more: by now the offset of its clock is known
        measured = {u: m.measured_s for n in self.energy.nodes.values() for u, m in n.meters.items()}
        if self.counts["lost"]:
            self.log("event", kind="markers_lost", text=f"{self.counts['lost']} markers could not be sent")
        if self.tracker.odd:
            self.log("event", kind="markers_odd", text=json.dumps(dict(self.tracker.odd)))
        if self.ledger.failure is not None:
            say(f"{self.ledger.path}: {self.ledger.failure}; {self.ledger.lost_lines} lines are missing")
        self.log(
            "end",
            time_unix_s=time.time(),
            run_s=ended_s,
            exit_code=end.get("code"),
            signal=end.get("signal"),
            status=end.get("status", "launcher_lost"),
            gpu_energy_j=self.energy.cumulative_j(),
            gpu_coverage={u: min(1.0, s / ended_s) if ended_s > 0 else None for u, s in measured.items()},
            resets=self._resets(),
            markers=dict(self.counts),
            updates=self.tracker.updates_seen,
            control=self.steering.off_reason,
        )

    def _resets(self) -> dict[str, Any]:
        resets: dict[str, Any] = {}
        for node in self.nodes.by_name.values():
            if node.farewell is None:
                unknown = node.state in ("joined", "lost") and node.controllable
                resets[node.name] = {"ok": None if unknown else True, "failures": [], "unknown": unknown}
            else:
                failures = self.orders.reset_failures.get(node.name, [])
                left = bool(node.farewell.get("left_locked"))
                resets[node.name] = {"ok": not left and not failures, "failures": failures, "unknown": False}
        return resets

    def _report(self) -> int:
        folder = Path(self.config["run_folder"])
        try:
            from eerl_launch.report import write_report

            paths = write_report(folder, self.policy.report.formats)
        except Exception as error:
            say(f"the report failed ({error!r}); the ledger is complete: eerl report {folder}")
            return 1
        if not self.counts["received"]:
            say('no markers came, so only the whole job is measured; see README, "Markers"')
        for line in [*paths.summary.splitlines(), f"report: {folder}"]:
            say(line)
        return 0


def _show_life() -> None:
    """A byte a second to the launcher while the end takes its time."""
    while True:
        try:
            os.write(1, b".")
        except OSError:
            return
        time.sleep(1.0)


def main() -> int:
    """Entry point of ``python -I -m eerl_launch.session``: the first line of standard input is the config."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGQUIT,
    ):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return 0
        line += byte
    config = json.loads(line)
    session = Session(config)
    try:
        return session.run()
    except Exception as error:
        session.progress.close()
        session.log("event", kind="session_failed", text=repr(error))
        if os.environ.get("EERL_DEBUG"):
            raise
        say(f"the session failed ({error!r}); clocks are handed back, the command goes on unmeasured")
        return 70


if __name__ == "__main__":
    sys.exit(main())
