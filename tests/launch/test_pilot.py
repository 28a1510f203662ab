"""The pilot keeps a controller's own faults away from the job (field case W11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from eerl_controller import Controller, UpdateRecord
from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.ledger import LedgerWriter, read_events
from eerl_launch.nodes import Nodes
from eerl_launch.pilot import Pilot
from eerl_launch.policy import Policy
from eerl_launch.steering import Steering
from eerl_launch.telling import RunClock, Voice
from eerl_launch.updates import Update

CONFIG = {"time_scale": 1.0, "end_time_unix_s": None, "start": {"time_unix_s": 0.0}}


@pytest.fixture
def pilot(tmp_path: Path) -> Pilot:
    """A pilot on one node that has joined with a clock table."""
    nodes = Nodes(["n1"])
    node = nodes.node("n1")
    node.state, node.info, node.supported_mhz = "joined", {"backend": "locked-clocks"}, (345, 1500, 1980)
    energy = Allocation()
    from eerl_launch.energy import NodeEnergy

    node.energy = energy.nodes["n1"] = NodeEnergy("n1", ["GPU-0"])
    voice = Voice(LedgerWriter(tmp_path), RunClock(0.0))
    policy = Policy()
    arrangement = Arrangement(policy)
    arrangement.begin()
    return Pilot(
        {**CONFIG, "run_folder": str(tmp_path)}, policy, nodes, energy, arrangement, Steering(), voice
    )


def one_update(index: int) -> Update:
    return Update(index, index, begin_s=10.0 * index, end_s=10.0 * index + 10.0)


@pytest.mark.parametrize("method", ["__init__", "observe", "governor_prediction"])
def test_a_fault_in_the_controller_ends_control_not_measuring(
    pilot: Pilot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    method: str,
) -> None:
    """Whatever the controller raises: one message, the governor's clocks, and every update still in the ledger."""

    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(Controller, method, breaks)

    for index in range(3):
        pilot.record(one_update(index), following_begin_s=None, now_s=10.0 * index + 10.1)

    events = list(read_events(tmp_path))
    assert [e["index"] for e in events if e["ev"] == "update"] == [0, 1, 2]
    assert pilot.controller is None
    assert capfd.readouterr().err.count("the controller failed") == 1
    assert any(e["ev"] == "event" and e["kind"] == "control_off" and "injected" in e["text"] for e in events)


def test_a_record_that_cannot_be_true_is_passed_over(
    pilot: Pilot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RecordError of the controller costs that record only."""
    from eerl_controller import RecordError

    seen: list[UpdateRecord] = []
    observe = Controller.observe

    def refuses_the_first(self: Controller, record: UpdateRecord) -> object:
        seen.append(record)
        if len(seen) == 1:
            raise RecordError("not this one")
        return observe(self, record)

    monkeypatch.setattr(Controller, "observe", refuses_the_first)

    for index in range(2):
        pilot.record(one_update(index), following_begin_s=None, now_s=10.0 * index + 10.1)

    assert pilot.controller is not None
    texts = [e.get("text", "") for e in read_events(tmp_path) if e["ev"] == "event"]
    assert sum("passed over update" in text for text in texts) == 1


def test_an_update_that_cannot_be_true_costs_itself_only(
    pilot: Pilot, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Counts no record may hold: one message, that update is left out, the next ones are recorded."""
    impossible = one_update(0)
    impossible.numbers["valid_tokens"] = -5.0
    impossible.counted = True

    pilot.record(impossible, following_begin_s=None, now_s=10.1)
    pilot.record(one_update(1), following_begin_s=None, now_s=20.1)

    events = list(read_events(tmp_path))
    assert [e["index"] for e in events if e["ev"] == "update"] == [1]
    assert capfd.readouterr().err.count("cannot be accounted for") == 1
