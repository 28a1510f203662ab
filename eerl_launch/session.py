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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eerl_launch import ending
from eerl_launch.adapter_watch import Adapters
from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.gpu_detail import TickDetail
from eerl_launch.ledger import LedgerWriter
from eerl_launch.marker_intake import MarkerIntake
from eerl_launch.marker_server import MarkerServer
from eerl_launch.markers import Marker
from eerl_launch.node_watch import NodeWatch
from eerl_launch.nodes import Nodes
from eerl_launch.operator_door import OperatorDoor
from eerl_launch.orders import Orders
from eerl_launch.pilot import Pilot
from eerl_launch.policy import Policy
from eerl_launch.progress import Progress
from eerl_launch.sockets import SOCKET_NAME
from eerl_launch.status import Status
from eerl_launch.steering import Steering
from eerl_launch.telling import RunClock, Voice, say
from eerl_launch.update_flow import UpdateFlow
from eerl_launch.updates import Edge, Update

_TICK_PERIOD_S = 10.0
#: A second reading after an edge: the counter is published every 100 ms, so this one is fresh.
_SECOND_SAMPLE_S = 0.12
#: A reading for the edge of a phase comes this much after it, in wall seconds.
_AFTER_EDGE_S = 0.02


class Session:
    """Owns everything of a run but the command itself."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.policy = Policy.from_dict(config["policy"])
        self.clock = RunClock(config["origin_s"], config["time_scale"])
        self.ledger = LedgerWriter(Path(config["run_folder"]))
        self.voice = Voice(self.ledger, self.clock)
        self.nodes = Nodes(config["nodes"])
        self.energy = Allocation()
        self.arrangement = Arrangement(self.policy)
        self.steering = Steering()
        self.flow = UpdateFlow(self.arrangement, self.steering, self.energy)
        self.orders = Orders(self.nodes, self.steering, self.arrangement, self.clock, self.voice)
        self.pilot = Pilot(
            config, self.policy, self.nodes, self.energy, self.arrangement, self.steering, self.voice
        )
        self.pilot.not_honoured = self.orders.take_not_honoured
        self.adapters = Adapters(config, self.voice)
        self.status = Status(config, self.nodes, self.steering, self.pilot)
        self.selector = selectors.DefaultSelector()
        self.intake = MarkerIntake(self.clock, config["time_scale"], self.voice, self._mark)
        self.watch = NodeWatch(
            config,
            self.selector,
            self.nodes,
            self.energy,
            self.orders,
            self.clock,
            self.voice,
            self.intake.line,
            self.intake.bad_lines,
            self._nodes_changed,
        )
        self.ticks = TickDetail()
        self.progress = Progress(time_scale=config["time_scale"])
        self.end: dict[str, Any] | None = None
        self._samples_due: list[float] = []
        self._timers = {"second": 0.0, "tick": 0.0, "sample": 0.0}
        self._doing = True
        self._launcher_rest = b""

    # -- the loop -------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the command has ended; 0 when everything of ours went well."""
        self.voice.log("start", **self.config["start"])
        private = Path(self.config["private_folder"])
        server = socket.socket(fileno=self.config["marker_fd"])
        self.markers = MarkerServer(
            private / SOCKET_NAME, self.selector, self.intake.own_line, self.intake.bad_lines, server
        )
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
            self.voice.log("event", kind="warning", text=f"no operator socket: {error}")
        self.watch.start()
        threading.Thread(
            target=ending.warn_of_report, args=(self.policy.report, self.voice), daemon=True
        ).start()
        while self._doing:
            for key, _ in self.selector.select(self._patience_s()):
                key.data()
            self._tick()
        return self._finish()

    def _patience_s(self) -> float:
        """How long the loop may sleep."""
        if self.flow.waiting or self._samples_due or self.orders.waiting:
            return 0.02 if self.config["time_scale"] == 1.0 else 0.002
        return 0.25

    def _tick(self) -> None:
        now = time.monotonic()
        self.watch.tick(now)
        self.adapters.tell_launcher(self.nodes)
        if now >= self._timers["second"]:
            self._timers["second"] = now + 1.0
            complaint = self.markers.ensure()
            if complaint:
                self.voice.say_once("markers", complaint)
            elif self.door is not None:
                self.door.ensure()
            self.adapters.keep()
            self._show_progress()
        if now >= self._timers["tick"]:
            self._timers["tick"] = now + _TICK_PERIOD_S
            self._log_totals()
        if self._samples_due and now >= min(self._samples_due):
            self._samples_due = [due for due in self._samples_due if due > now]
            self.nodes.broadcast({"op": "sample", "id": self.nodes.serial()})
        self.orders.check(now)
        while (update := self.flow.next_ready()) is not None:
            self._record(update)

    def _nodes_changed(self) -> None:
        """Once every node has joined or cannot, it is known whether clocks can be controlled."""
        if self.nodes.settled:
            self.pilot.check_control()
            self.orders.apply("control")

    def _log_totals(self) -> None:
        silent = [node.name for node in self.nodes.by_name.values() if node.state != "joined"]
        totals_j = self.ticks.totals(self.energy.cumulative_j(), time.monotonic())
        self.voice.log("tick", gpu_energy_j=totals_j, nodes_silent=silent)

    def _show_progress(self) -> None:
        if self.flow.tracker.updates_seen == 0 and not self.progress.is_terminal:
            return
        state, line = self.status.progress(self.flow.tracker.updates_seen, self.clock.now_s())
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

    # -- markers --------------------------------------------------------------------------------------------

    def _mark(self, marker: Marker) -> None:
        if not self.adapters.accepts(marker):
            return
        edge = self.flow.feed(marker)
        if edge is not None:
            self._edge(edge)
        elif marker.event == "note":
            self.adapters.note(marker)
        elif marker.event in ("run", "pool", "metric"):
            fields = {
                key: value for key, value in marker.fields.items() if key not in ("v", "ev", "t", "t_s")
            }
            self.voice.log(marker.event, **fields)
            if marker.event != "metric":
                self._told(marker)

    def _told(self, marker: Marker) -> None:
        """The trainer described its run, or a pool of it."""
        edges = self.flow.tell_mode(marker) if marker.event == "run" else None
        if edges is not None:
            self.pilot.follow_again(edges)
        self.pilot.told(marker)
        if self.steering.off_reason is not None:
            self.orders.let_go(marker.event)

    def _edge(self, edge: Edge) -> None:
        now = time.monotonic()
        self.pilot.follow(edge)
        if edge.begins or self.arrangement.mode.separate:
            self.orders.apply(edge.phase)
        if edge.begins and edge.phase == "training":
            self.pilot.objections.look_for_borders(self.flow.tracker.current)
        if now >= self._timers["sample"]:  # too frequent readings come back empty
            self._timers["sample"] = now + 0.1 / self.config["time_scale"]
            # The lock of a phase that begins must not queue behind a reading.
            self._samples_due.append(now + _AFTER_EDGE_S / self.config["time_scale"])
            if edge.opened is not None:
                self._samples_due.append(now + _SECOND_SAMPLE_S)

    # -- updates --------------------------------------------------------------------------------------------

    def _record(self, update: Update) -> None:
        for event in self.pilot.before_first(self.flow.tracker.take_before(), update.begin_s):
            self.ledger.append(event)
        self.pilot.record(update, following_begin_s=self.flow.following_begin_s, now_s=self.clock.now_s())
        self.orders.apply("plan")
        self._log_totals()
        self.energy.forget_before(self.flow.oldest_begin_s)
        self.steering.forget_before(self.flow.oldest_begin_s)
        self._show_progress()

    # -- operators ------------------------------------------------------------------------------------------

    def _answer_operator(self, operation: str) -> dict[str, Any]:
        if operation in ("hold", "resume"):
            self.pilot.hold(operation == "hold", self.clock.now_s())
            self.orders.apply(operation)
        elif operation != "status":
            return {"error": f"unknown op {operation!r}; known are status, hold, resume"}
        return self.status.fields(self.flow.tracker.updates_seen, self.clock.now_s())

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self) -> int:
        threading.Thread(target=ending.show_life, daemon=True).start()
        self.progress.close()
        self.markers.drain()
        ended_s = self.clock.now_s()
        self.watch.ending = True
        ending.say_good_bye(self.nodes, self.selector)
        self.flow.finish(ended_s)
        while (update := self.flow.take()) is not None:
            self._record(update)
        for event in self.pilot.before_first(self.flow.tracker.take_before(), ended_s):
            self.ledger.append(event)
        self.pilot.leave_sums()
        self.pilot.leave_posterior()
        self._log_end(ended_s)
        self.markers.close()
        if self.door is not None:
            self.door.close()
        self.ledger.close()
        silence = None if self.arrangement.begun else self.adapters.why_silent()
        shutil.rmtree(self.config["private_folder"], ignore_errors=True)
        folder = Path(self.config["run_folder"])
        return ending.report(folder, self.policy.report, silence)

    def _log_end(self, ended_s: float) -> None:
        for node in self.nodes.joined:
            self.voice.log("node", **node.public())  # once more: by now the offset of its clock is known
        if self.intake.counts["lost"]:
            self.voice.log(
                "event", kind="markers_lost", text=f"{self.intake.counts['lost']} markers were not sent"
            )
        if self.flow.tracker.odd:
            self.voice.log("event", kind="markers_odd", text=json.dumps(dict(self.flow.tracker.odd)))
        if self.ledger.failure is not None:
            say(f"{self.ledger.path}: {self.ledger.failure}; {self.ledger.lost_lines} lines are missing")
        self.voice.log(
            "end",
            **ending.end_event(self.end, ended_s, self.nodes, self.energy, self.orders),
            markers=dict(self.intake.counts),
            updates=self.flow.tracker.updates_seen,
            control=self.steering.off_reason,
        )


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
        session.voice.log("event", kind="session_failed", text=repr(error))
        if os.environ.get("EERL_DEBUG"):
            raise
        say(f"the session failed ({error!r}); clocks are handed back, the command goes on unmeasured")
        return 70


if __name__ == "__main__":
    sys.exit(main())
