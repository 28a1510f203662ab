"""Clock orders to the agents, by pool: all GPUs of it or none, never twice the same, and what came of them.

A lock that fails on one GPU hands every GPU of the job back, whatever its pool: a job runs at the speed of its
slowest. A clock that is not the one asked for (:mod:`eerl_launch.clock_watch`) is somebody else's doing; ours is set
once more, and then the clocks are theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eerl_launch.arrangement import Arrangement
from eerl_launch.channel import Message
from eerl_launch.clock_watch import ClockWatch
from eerl_launch.devices.base import GpuSample
from eerl_launch.nodes import Node, Nodes
from eerl_launch.pools import ALL
from eerl_launch.steering import MAX_REAPPLIED, Steering
from eerl_launch.telling import RunClock, Voice

#: NVML codes after which no clock will ever be set: no permission, not supported, no such function, deprecated.
_PERMANENT = frozenset({3, 4, 13, 26})
_CODE_NAMES = {3: "not supported", 4: "no permission", 10: "time-out", 13: "function missing", 15: "GPU lost"}
_ANSWER_S = 20.0
#: A switch needs up to some hundred ms to show; clocks are judged after this.
_SETTLED_S = 2.0
#: Failed orders (not permanent ones) after which control stops for good.
_MAX_FAILED = 3


@dataclass(slots=True)
class _Order:
    pool: str
    mhz: int | None
    phase: str
    plan_id: int | None
    sent_at: float
    waiting: set[str]
    gpus_set: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


class Orders:
    """Keeps what was asked of the GPUs in step with what is wanted."""

    def __init__(
        self,
        nodes: Nodes,
        steering: Steering,
        arrangement: Arrangement,
        clock: RunClock,
        voice: Voice,
    ) -> None:
        self._nodes = nodes
        self._steering = steering
        self._arrangement = arrangement
        self._clock = clock
        self._voice = voice
        self._orders: dict[int, _Order] = {}
        self._watch = ClockWatch()
        self._asked_at: dict[str, float] = {}
        self._unknown = False
        self._failed = 0
        self._reapplied = 0
        self._not_honoured = False
        self.reset_failures: dict[str, list[dict[str, Any]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether an order has not been answered by every node."""
        return bool(self._orders)

    def take_not_honoured(self) -> bool:
        """Whether a clock was not obeyed since the last question."""
        seen, self._not_honoured = self._not_honoured, False
        return seen

    def forget_applied(self) -> None:
        """A broker lost our lock: ask again even for what was asked before."""
        self._unknown = True

    def apply(self, phase: str) -> None:
        """Ask for the wanted clocks, pool by pool, unless that is what was asked for last."""
        steering, unknown = self._steering, self._unknown
        self._unknown = False
        for pool, wanted in steering.wanted_mhz().items():
            if wanted != steering.applied_mhz.get(pool) or (unknown and wanted is not None):
                self._send(pool, wanted, phase)

    def let_go(self, phase: str) -> None:
        """Hand every GPU back if any was asked for a clock: who is in which pool is not known any more."""
        if any(mhz is not None for mhz in self._steering.applied_mhz.values()):
            self._hand_back(phase)

    def _hand_back(self, phase: str) -> None:
        """Reset all GPUs of the job, whatever their pool."""
        self._send(ALL, None, phase)
        for pool in self._steering.map.pools:
            if pool != ALL:
                self._steering.asked(pool, None, self._clock.now_s())

    def _send(self, pool: str, mhz: int | None, phase: str) -> None:
        number = self._nodes.serial()
        members = self._arrangement.members(pool)
        uuids = None if members is None else sorted(members)
        message: Message = {"op": "reset", "id": number, "uuids": uuids}
        if mhz is not None:
            message = {"op": "lock", "id": number, "mhz": mhz, "uuids": uuids}
        self._nodes.broadcast(message)
        if pool in self._steering.map.pools:
            self._steering.asked(pool, mhz, self._clock.now_s())
        now = time.monotonic()
        self._asked_at[pool] = now
        self._watch.restart()
        names = {node.name for node in self._nodes.joined}
        self._orders[number] = _Order(pool, mhz, phase, self._steering.plan_id_asked(), now, names)

    def done(self, node: str, message: Message) -> None:
        """One node's answer."""
        failures = [{"node": node, "uuid": u, "code": c, "text": t} for u, c, t in message["failures"]]
        order = self._orders.get(message["re"]) if message["re"] is not None else None
        if order is None:
            if failures:
                self.reset_failures[node] = failures
            return
        order.waiting.discard(node)
        order.gpus_set += int(message["set"])
        order.failures += failures
        if order.mhz is None:
            self.reset_failures[node] = failures
        if not order.waiting:
            del self._orders[message["re"]]
            self._complete(order)

    def check(self, now: float) -> None:
        """Give up on answers that do not come."""
        for number, order in list(self._orders.items()):
            order.waiting &= {node.name for node in self._nodes.joined}
            if not order.waiting or now - order.sent_at > _ANSWER_S:
                order.failures += [
                    {"node": name, "uuid": None, "code": 10, "text": "no answer"} for name in order.waiting
                ]
                del self._orders[number]
                self._complete(order)

    def _complete(self, order: _Order) -> None:
        self._voice.log(
            "clock",
            plan_id=order.plan_id,
            pool=order.pool,
            phase=order.phase,
            mhz=order.mhz,
            latency_s=time.monotonic() - order.sent_at,
            gpus_set=order.gpus_set,
            failures=order.failures,
        )
        if order.failures:
            self._fail(order)

    def _fail(self, order: _Order) -> None:
        first = order.failures[0]
        code = first["code"]
        text = f"{first['node']} {first['uuid'] or ''}: NVML code {code} ({_CODE_NAMES.get(code, first['text'])})"
        if order.mhz is None:
            self._voice.say_once(
                "reset",
                f"a clock could not be reset: {text}; the broker and the epilog try again",
            )
            return
        self._not_honoured = True
        self._failed += 1
        permanent = code in _PERMANENT or self._failed >= _MAX_FAILED
        if permanent:
            self._steering.off_reason = f"clocks cannot be set: {text}"
        self._voice.say_once(
            "lock",
            f"a clock could not be set, all GPUs are back with the governor: {text}; "
            + ("measuring only from here (see eerl doctor)" if permanent else "control will try again"),
        )
        self._voice.log("event", kind="control_off", node=first["node"], uuid=first["uuid"], text=text)
        self._hand_back("failure")

    def verify(self, node: Node, rows: Sequence[GpuSample | None]) -> None:
        """Compare achieved clocks with what was asked for, once a switch has had time to show."""
        if self._orders or node.energy is None or not any(self._steering.applied_mhz.values()):
            return
        now = time.monotonic()
        for uuid, sample in zip(node.energy.uuids, rows, strict=True):
            pool = self._arrangement.pools.of(uuid) if self._arrangement.separate else ALL
            asked = self._steering.applied_mhz.get(pool or "")
            settled = now - self._asked_at.get(pool or "", now) >= _SETTLED_S
            if pool is None or asked is None or not settled or sample is None:
                continue
            wrong = self._watch.judge(uuid, asked, sample)
            if wrong is not None:
                self._not_obeyed(node, uuid, pool, asked, wrong)
                return

    def _not_obeyed(self, node: Node, uuid: str, pool: str, asked_mhz: int, text: str) -> None:
        self._not_honoured = True
        self._watch.restart()
        causes = "likely GpuFreqDef or --gpu-freq in Slurm, or another program that sets clocks"
        if self._reapplied < MAX_REAPPLIED:
            self._reapplied += 1
            self._voice.log(
                "event", kind="not_honoured", node=node.name, uuid=uuid, text=f"{text}; set once more"
            )
            self._voice.say_once("not_honoured", f"{node.name} {uuid} {text} ({causes}); set once more")
            # The broker sets no clock again that it has set already, so ours is taken back first.
            self._send(pool, None, "again")
            self._send(pool, asked_mhz, "again")
            return
        self._voice.log(
            "event", kind="outside_writer", node=node.name, uuid=uuid, text=f"{text}; control stops"
        )
        self._steering.off_reason = f"somebody else sets the clocks of {node.name} {uuid}"
        self._voice.say_once(
            "outside", f"{node.name} {uuid} {text} again ({causes}); measuring only from here"
        )
        self._hand_back("outside writer")
