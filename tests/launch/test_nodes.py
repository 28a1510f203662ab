"""The agents as the session sees them: links, clocks of nodes, who can be controlled."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from eerl_launch.channel import Decoder
from eerl_launch.energy import NodeEnergy
from eerl_launch.nodes import Link, Node, Nodes

HANG_S = 30.0
ECHO = """
import os
while data := os.read(0, 65536):
    while data:
        data = data[os.write(1, data):]
"""
DEAF = "import time; time.sleep(600)"


@pytest.fixture
def start_link() -> Iterator[Callable[[str], Link]]:
    """Starts links to small programs and ends them with the test."""
    started: list[Link] = []

    def start(script: str) -> Link:
        started.append(Link([sys.executable, "-c", script], os.environ))
        return started[-1]

    yield start
    for link in started:
        link.process.kill()
        link.process.wait(HANG_S)
        for stream in (link.process.stdin, link.process.stdout, link.process.stderr):
            if stream is not None:
                stream.close()


def test_link_carries_everything(start_link: Callable[[str], Link]) -> None:
    """More than a pipe holds goes out as the other side reads, whole and in order."""
    link = start_link(ECHO)
    nodes, received, decoder = Nodes([]), [], Decoder()
    nodes.links.append(link)
    for number in range(3000):
        nodes.broadcast({"op": "ping", "id": number, "filling": "x" * 50})

    deadline = time.monotonic() + HANG_S
    while len(received) < 3000:
        assert time.monotonic() < deadline
        link.send()
        try:
            received += decoder.feed(os.read(link.output_fd, 65536))
        except BlockingIOError:
            time.sleep(0.001)

    assert [message["id"] for message in received] == list(range(3000))
    assert decoder.bad_lines == 0


def test_deaf_agent_costs_no_memory_and_no_time(start_link: Callable[[str], Link]) -> None:
    """An agent that reads nothing blocks nobody; the newest commands are kept, in whole lines."""
    link = start_link(DEAF)
    nodes = Nodes([])
    nodes.links.append(link)

    for number in range(30_000):
        nodes.broadcast({"op": "ping", "id": number, "filling": "x" * 100})

    assert len(link._unsent) <= 1 << 20
    kept = Decoder().feed(link._unsent)
    assert kept[-1]["id"] == 29_999
    assert [m["id"] for m in kept] == list(range(kept[0]["id"], 30_000))


def test_link_to_a_dead_process(start_link: Callable[[str], Link]) -> None:
    """Sending to an agent that has ended raises nothing and keeps nothing."""
    link = start_link("")
    link.process.wait(HANG_S)

    for _ in range(3):
        link.send(b"x" * 1000)
    link.close_input()
    link.send(b"more")

    assert link._unsent == b""


def test_closed_input_ends_the_agent(start_link: Callable[[str], Link]) -> None:
    """The end for an agent is its closed input."""
    link = start_link(ECHO)

    link.close_input()
    link.close_input()

    assert link.process.wait(HANG_S) == 0


def test_offset_from_the_shortest_round_trip() -> None:
    """A node's clock is known to half the shortest round trip, however long the others take."""
    source, node, true_offset_s = random.Random(2), Node("node01"), 1234.5
    for i in range(100):
        sent_s = float(i)
        there_s, back_s = (0.001, 0.001) if i == 70 else (source.uniform(0.0, 2.0), source.uniform(0.0, 2.0))
        agent_ns = round((sent_s + there_s + true_offset_s) * 1e9)
        node.take_pong(sent_s, sent_s + there_s + back_s, agent_ns)

    assert node.offset_s == pytest.approx(true_offset_s, abs=0.0011)
    assert node.round_trip_s == pytest.approx(0.002)
    assert node.run_time_s(round((true_offset_s + 55.0) * 1e9)) == pytest.approx(55.0, abs=0.0011)
    assert node.public()["clock_offset_error_s"] == pytest.approx(0.001)


def test_offset_follows_drift() -> None:
    """Old round trips are forgotten, so a clock that drifts is followed."""
    node = Node("node01")
    for i in range(1000):
        node.take_pong(float(i), i + 0.01, round((i + 0.005 + i * 1e-4) * 1e9))

    assert node.offset_s == pytest.approx(0.1, abs=0.01)


def test_unanswered_pings_are_forgotten() -> None:
    """Round trips that never end do not pile up."""
    nodes = Nodes(["a"])
    for i in range(1000):
        nodes.ping(float(i))

    assert len(nodes.round_trips) <= 60
    assert 999.0 in nodes.round_trips.values()


def joined(name: str, clocks: list[int], backend: str = "locked-clocks", gpus: int = 2) -> Node:
    node = Node(name, state="joined", info={"backend": backend, "backend_reason": ""})
    node.supported_mhz = tuple(clocks)
    node.energy = NodeEnergy(name, [f"GPU-{name}{i}" for i in range(gpus)])
    return node


def test_clocks_common_to_all() -> None:
    """Only clocks that every GPU of the job supports are used."""
    nodes = Nodes([])
    nodes.by_name = {"a": joined("a", [900, 1200, 1980]), "b": joined("b", [900, 1500, 1980])}

    assert nodes.common_clocks_mhz() == [900, 1980]
    assert nodes.gpu_count() == 4
    assert Nodes(["a"]).common_clocks_mhz() == []


@pytest.mark.parametrize(
    ("state", "backend", "controllable"),
    [
        ("joined", "locked-clocks", True),
        ("joined", "application-clocks", True),
        ("joined", "none", False),
        ("lost", "locked-clocks", False),
        ("not_measured", "locked-clocks", False),
    ],
)
def test_control_needs_every_node(state: str, backend: str, controllable: bool) -> None:
    """One node without a way to set clocks is enough to name it."""
    nodes = Nodes([])
    nodes.by_name = {"a": joined("a", [900]), "b": joined("b", [900], backend)}
    nodes.by_name["b"].state = state

    assert [node.name for node in nodes.without_control()] == ([] if controllable else ["b"])


def test_settled_when_nobody_is_expected_any_more() -> None:
    """Nodes are settled once each has joined or said why not; an unexpected node is taken in."""
    nodes = Nodes(["a", "b"])
    assert not nodes.settled

    nodes.node("a").state = "joined"
    nodes.node("b").state = "not_measured"

    assert nodes.settled
    assert nodes.node("c").name == "c"
    assert [node.name for node in nodes.joined] == ["a"]


def test_broadcasts_from_two_threads_stay_whole(start_link: Callable[[str], Link]) -> None:
    """Two threads that broadcast at once do not mix their lines."""
    link = start_link(DEAF)
    nodes = Nodes([])
    nodes.links.append(link)
    for _ in range(300):  # more than a pipe holds
        nodes.broadcast({"op": "fill", "filling": "x" * 500})

    def send(who: int) -> None:
        for number in range(500):
            nodes.broadcast({"op": "ping", "who": who, "id": number})

    threads = [threading.Thread(target=send, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)

    decoder = Decoder()
    received = decoder.feed(link._unsent)
    assert decoder.bad_lines <= 1, "only the line that was sent in part"
    for who in range(2):
        assert [m["id"] for m in received if m.get("who") == who] == list(range(500))
