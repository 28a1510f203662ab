"""A mode that is told late: in whatever order several processes are heard, updates and records are the same."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.clock_maps import clock_map
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import NodeEnergy
from eerl_launch.ledger import read_events
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.policy import Fixed, Policy
from eerl_launch.session import Session

GPUS = ("GPU-0", "GPU-1")
CLOCKS = (345, 1200, 1500, 1980)
ASYNCHRONOUS = ("async_drained", "async_inflight")
#: Length of an update of these runs.
UPDATE_S = 10.0


def marker(
    t_s: float, event: str, phase: str | None = None, update: int | None = None, **more: Any
) -> Marker:
    sender = more.pop("sender", "trainer")
    numbers = {name: float(value) for name, value in more.items() if isinstance(value, int)}
    return Marker(event, t_s, sender, phase, update, numbers, more)


def run_event(t_s: float, mode: str) -> Marker:
    return marker(t_s, "run", framework="mine", mode=mode, total_updates=20)


def run_of(mode: str, updates: int, loops: int) -> list[Marker]:
    """Markers of a run in this mode: several processes generate, each under labels of its own when asynchronous."""
    found = [
        marker(0.0, "pool", role=role, gpus=[gpu])
        for role, gpu in zip(("generation", "training"), GPUS, strict=True)
    ]
    for update, loop in itertools.product(range(updates), range(loops)):
        begin_s, sender = UPDATE_S * update + 1.0 + 0.1 * loop, f"loop {loop}"
        label = 1000 + loop if mode in ASYNCHRONOUS else update
        found.append(marker(begin_s, "begin", "generation", label, sender=sender))
        counts = {"generated_tokens": 100 + update, "longest_response_tokens": 50}
        found.append(marker(begin_s + 3.0, "end", "generation", label, sender=sender, **counts))
    for update in range(updates):
        t_s = UPDATE_S * update
        found += [
            marker(t_s + 4.6, "begin", "training", update),
            marker(t_s + 8.0, "end", "training", update),
        ]
        found += [marker(t_s + 8.5, "begin", "refit", update), marker(t_s + 9.0, "pause")]
        found += [marker(t_s + 9.5, "resume"), marker(t_s + 9.7, "end", "refit", update)]
        counts = {"valid_tokens": 90 + update, "longest_consumed_tokens": 50, "responses": 4}
        found.append(marker(t_s + 9.8, "update", update=update, **counts))
    return sorted(found, key=lambda one: one.t_s)


def of_first_update(markers: Sequence[Marker]) -> int:
    """How many of the markers are the first update's, in every mode."""
    return sum(one.t_s < UPDATE_S for one in markers)


def make(folder: Path, policy: Policy) -> Session:
    """A session whose node has joined, with readings for all of the run; it runs no loop."""
    session = Session(
        {
            "policy": policy.to_dict(),
            "origin_s": time.monotonic() - 1000.0,
            "time_scale": 1.0,
            "run_folder": str(folder),
            "run_id": "1",
            "private_folder": str(folder),
            "nodes": ["n1"],
            "end_time_unix_s": None,
            "start": {"time_unix_s": 0.0, "simulated": False},
        }
    )
    node = session.nodes.node("n1")
    node.info = {
        "backend": "locked-clocks",
        "gpus": [{"uuid": uuid, "index": index, "name": "H100"} for index, uuid in enumerate(GPUS)],
    }
    node.state, node.supported_mhz = "joined", CLOCKS
    node.energy = session.energy.nodes["n1"] = NodeEnergy("n1", GPUS)
    for tick in range(500):
        t_ns = tick * 200_000_000
        samples = [
            GpuSample(t_ns, tick * 1000 * (gpu + 1), 1980, 500_000, 50 * gpu, 0) for gpu in range(len(GPUS))
        ]
        node.energy.add(t_ns / 1e9, samples)
    session.pilot.check_control()
    return session


def records(
    folder: Path, markers: Sequence[Marker], policy: Policy | None = None
) -> tuple[list[Any], Session]:
    """What the ledger has of the run when its markers come in this order, but for when it was written."""
    session = make(folder, policy or Policy())
    for one in markers:
        session._mark(one)
        while (update := session.flow.next_ready()) is not None:
            session._record(update)
    session.flow.finish(max(one.t_s for one in markers))
    while (update := session.flow.take()) is not None:
        session._record(update)
    session.ledger.close()
    kinds = ("update", "phase", "plan", "controller", "event", "clock")
    lines = [event for event in read_events(folder) if event["ev"] in kinds]
    return [{k: v for k, v in line.items() if k not in ("t_s", "seq")} for line in lines], session


def followed(session: Session) -> dict[str, Any]:
    """What has followed the edges of the run: who waits for whom, and where a plan would take effect."""
    waits = {role: vars(wait) for role, wait in session.steering.map._waits.items()}  # type: ignore[attr-defined]
    return {
        name: value for name, value in vars(session.pilot._handover).items() if name != "_steering"
    } | waits


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["disaggregated_sync", *ASYNCHRONOUS]),
    loops=st.integers(1, 4),
    late=st.floats(0.0, 1.0),
)
def test_any_moment_within_the_first_update(mode: str, loops: int, late: float) -> None:
    """The run event first or after any of the first update's markers: the same updates, plans and oddities."""
    markers = run_of(mode, 3, loops)
    place = round(late * of_first_update(markers))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, told_first = records(Path(one), [run_event(0.0, mode), *markers])
        later, told_later = records(
            Path(other), [*markers[:place], run_event(markers[place].t_s, mode), *markers[place:]]
        )

    assert later == first
    known = [line["record"]["energy_j"] is not None for line in first if line["ev"] == "update"]
    assert known[:3] == [True] * 3
    assert told_later.flow.tracker.odd == told_first.flow.tracker.odd
    assert followed(told_later) == followed(told_first)
    assert type(told_later.steering.map) is type(clock_map(Mode(mode)))
    assert told_later.arrangement.contradiction is None
    (made,) = [line for line in later if line["ev"] == "controller"]
    assert (made["mode"], made["mode_source"]) == (mode, "trainer")


def after_updates(tmp_path: Path, count: int, policy: Policy | None = None) -> tuple[list[Any], Session]:
    """A colocated run that says only after this many updates that it is a drained one."""
    markers = run_of("colocated_sync", 3, 1)
    place = sum(one.t_s < UPDATE_S * count + 1.5 for one in markers)
    return records(tmp_path, [*markers[:place], run_event(50.0, "async_drained"), *markers[place:]], policy)


def test_after_the_first_update_it_is_too_late(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An update has been recorded by the rules of the assumed mode: one message with the cure, and measuring only."""
    lines, session = after_updates(tmp_path, 1)

    assert "only after its first update that its mode is async_drained" in capfd.readouterr().err
    assert session.steering.off_reason is not None
    assert [line["index"] for line in lines if line["ev"] == "update"] == [0, 1, 2]


def test_clocks_that_were_planned_are_not_planned_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fixed policy locks clocks at the first generation; by the map of a mode that turns out to be wrong."""
    policy = Policy(policy="fixed", fixed=Fixed(1500, 1200))

    lines, session = after_updates(tmp_path, 0, policy)

    assert "only after its clocks were planned that its mode is async_drained" in capfd.readouterr().err
    assert session.steering.off_reason is not None
    assert len([line for line in lines if line["ev"] == "controller"]) == 1
    assert not any(session.steering.wanted_mhz().values())


@pytest.mark.parametrize("counted", [True, False])
def test_runs_that_only_generate(tmp_path: Path, counted: bool) -> None:
    """Updates without training are recorded as they are counted; uncounted ones may be nobody's, and wait."""
    session = make(tmp_path, Policy())
    recorded = []
    for update in range(4):
        sent = [
            marker(update + 0.1, "begin", "generation", update),
            marker(update + 0.9, "end", "generation", update),
        ]
        if counted:
            sent.append(marker(update + 0.95, "update", update=update, generated_tokens=100, valid_tokens=90))
        for one in sent:
            session._mark(one)
        while (ready := session.flow.next_ready()) is not None:
            recorded.append(ready.label)

    assert recorded == ([0, 1, 2] if counted else [])
    session.flow.finish(4.0)
    assert list(iter(session.flow.take, None))[-1].label == 3  # type: ignore[union-attr]


def test_nobody_ever_says(tmp_path: Path) -> None:
    """Uncounted updates of a run that only generates wait for a mode no longer than a thousand markers."""
    session = make(tmp_path, Policy())

    for update in range(600):
        for one in (marker(update / 10, event, "generation", update) for event in ("begin", "end")):
            session._mark(one)

    assert session.arrangement.settled == "1024 markers"
    assert session.flow.next_ready() is not None
