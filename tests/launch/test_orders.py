"""Clock orders by pool: who is asked for what, never twice, and what failures do (contracts 3.4, 3.6, 3.7)."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from eerl_controller.records import ClockPlan
from eerl_launch import orders as orders_module
from eerl_launch.arrangement import Arrangement
from eerl_launch.clock_maps import clock_map
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import NodeEnergy
from eerl_launch.ledger import LedgerWriter, read_events
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.nodes import Node, Nodes
from eerl_launch.orders import Orders
from eerl_launch.policy import Policy
from eerl_launch.steering import Steering
from eerl_launch.telling import RunClock, Voice

ENGINE, TRAINER, SPARE = ["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"], "GPU-4"


class Why(Enum):
    TEST = "test"


class Wire(Nodes):
    """Nodes that keep what is sent to them: n1 has the engine's GPUs, n2 the trainer's and a spare one."""

    def __init__(self) -> None:
        super().__init__(["n1", "n2"])
        self.sent: list[dict[str, Any]] = []
        for name, uuids in (("n1", ENGINE), ("n2", [*TRAINER, SPARE])):
            info = {"gpus": [{"uuid": uuid, "index": i} for i, uuid in enumerate(uuids)]}
            self.by_name[name] = Node(name, state="joined", info=info, energy=NodeEnergy(name, uuids))

    def broadcast(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def orders(self) -> list[tuple[str, int | None, list[str] | None]]:
        return [(m["op"], m.get("mhz"), m["uuids"]) for m in self.sent]


class Desk:
    """Orders on two nodes with everything around them."""

    def __init__(self, mode: Mode, folder: Path) -> None:
        self.folder = folder
        self.wire = Wire()
        self.arrangement = Arrangement(Policy(mode=mode.value))
        for role, gpus in (("generation", ENGINE), ("training", TRAINER)):
            self.arrangement.tell_pool(Marker("pool", 0.0, "1", fields={"role": role, "gpus": gpus}))
        if mode.separate:
            from eerl_launch.energy import Allocation

            self.arrangement.settle_pools(self.wire.by_name.values(), Allocation())
        self.steering = Steering(clock_map(mode))
        clock = RunClock(time.monotonic())
        voice = Voice(LedgerWriter(folder), clock)
        self.orders = Orders(self.wire, self.steering, self.arrangement, clock, voice)

    def adopt(self, generation_mhz: int | None, training_mhz: int | None, plan_id: int = 1) -> None:
        self.steering.adopt(ClockPlan(plan_id, generation_mhz, training_mhz, None, Why.TEST), 0.0)
        self.orders.apply("test")

    def answer(self, failures: list[list[Any]] | None = None) -> None:
        """Every node answers all orders; n1 with these failures to the first."""
        for message in list(self.wire.sent):
            for name in ("n1", "n2"):
                failed = failures if name == "n1" and failures else []
                done = {"re": message["id"], "set": 2 - len(failed), "failures": failed}
                self.orders.done(name, done)
            failures = None

    def clocks(self) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder) if event["ev"] == "clock"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Separate pools, in flight: wanted clocks are the plan's."""
    return Desk(Mode.ASYNC_INFLIGHT, tmp_path)


def test_pools_are_asked_apart(desk: Desk) -> None:
    """Each pool gets its clock by UUID, and only what has changed is asked for again."""
    desk.adopt(1500, 1200)
    desk.answer()
    desk.adopt(1500, 900, plan_id=2)
    desk.adopt(1500, 900, plan_id=3)

    assert desk.wire.orders() == [
        ("lock", 1500, ENGINE),
        ("lock", 1200, TRAINER),
        ("lock", 900, TRAINER),
    ]
    assert [(c["pool"], c["mhz"], c["gpus_set"]) for c in desk.clocks()] == [
        ("generation", 1500, 4),
        ("training", 1200, 4),
    ]


def test_pool_back_to_the_governor(desk: Desk) -> None:
    """A pool whose clock becomes the governor's is reset alone."""
    desk.adopt(1500, 1200)
    desk.adopt(None, 1200, plan_id=2)

    assert desk.wire.orders()[2:] == [("reset", None, ENGINE)]


def test_colocated_orders_name_no_gpu(tmp_path: Path) -> None:
    """One pool of all GPUs: the order means every GPU, as ever."""
    desk = Desk(Mode.COLOCATED_SYNC, tmp_path)
    desk.steering.map.begins("generation", 0.0)

    desk.adopt(1500, 1200)
    desk.answer()

    assert desk.wire.orders() == [("lock", 1500, None)]
    assert desk.clocks()[0]["pool"] == "all"


def test_failure_hands_every_pool_back(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """A lock that fails on one GPU of one pool resets all GPUs, both pools count as reset, one message tells it."""
    desk.adopt(1500, 1200)
    desk.answer([["GPU-0", 4, "no permission"]])

    assert desk.wire.orders()[2:] == [("reset", None, None)]
    assert desk.steering.applied_mhz == {"generation": None, "training": None}
    assert desk.steering.off_reason is not None
    assert desk.steering.plans.values[-1] is None, "the plan is out of force"
    assert capfd.readouterr().err.count("could not be set") == 1


def test_failure_that_may_pass_is_tried_again(desk: Desk) -> None:
    """A time-out is not for ever: both pools are asked again at the next occasion."""
    desk.adopt(1500, 1200)
    desk.answer([["GPU-0", 10, "time-out"]])
    assert desk.steering.off_reason is None

    desk.orders.apply("refit")

    assert desk.wire.orders()[3:] == [("lock", 1500, ENGINE), ("lock", 1200, TRAINER)]


def test_letting_go(desk: Desk) -> None:
    """When it is not known any more who is in which pool, everything that was asked for is reset, once."""
    desk.orders.let_go("pool")
    assert desk.wire.sent == []
    desk.adopt(1500, 1200)

    desk.orders.let_go("pool")
    desk.orders.let_go("pool")

    assert desk.wire.orders()[2:] == [("reset", None, None)]


def test_each_pool_is_held_to_its_own_clock(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is judged by its own pool's lock; a spare one by none; a broken lock is asked for again in its pool."""
    monkeypatch.setattr(orders_module, "_SETTLED_S", 0.0)
    desk.adopt(1500, 1200)
    desk.answer()
    node, other = desk.wire.by_name["n2"], desk.wire.by_name["n1"]

    def rows(*clocks: int) -> list[GpuSample]:
        return [GpuSample(0, sm_mhz=mhz) for mhz in clocks]

    for _ in range(5):
        desk.orders.verify(node, rows(1200, 1190, 1980))
        desk.orders.verify(other, rows(1500, 1500))
    assert len(desk.wire.sent) == 2

    for _ in range(3):
        desk.orders.verify(node, rows(1500, 1200, 1980))

    assert desk.wire.orders()[2:] == [("reset", None, TRAINER), ("lock", 1200, TRAINER)]
    assert desk.orders.take_not_honoured()
    assert [(c["pool"], c["phase"]) for c in desk.clocks()] == [("generation", "test"), ("training", "test")]


def test_lost_broker_is_asked_for_both_pools(desk: Desk) -> None:
    """After a broker lost its locks, what should hold is asked for again, in every pool."""
    desk.adopt(1500, None)
    desk.orders.forget_applied()

    desk.orders.apply("broker")

    assert desk.wire.orders() == [("lock", 1500, ENGINE), ("lock", 1500, ENGINE)]
