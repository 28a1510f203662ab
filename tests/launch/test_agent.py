"""The real agent process with simulated GPUs, and its hands and broker in this process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eerl_launch import agent_hands
from eerl_launch.agent_hands import Hands
from eerl_launch.channel import Decoder, Encoder, Message
from eerl_launch.devices.base import DeviceError, GpuFailure, GpuInfo, GpuSample
from eerl_launch.devices.sim import SimGpus, SimSource, SimSpec
from eerl_launch.sockets import InstanceLock

HANG_S = 30.0
LOCKED_MHZ = 1200


class AgentProcess:
    """One agent with two simulated H100s, spoken to as the session does."""

    def __init__(self, sim: Path, *options: str) -> None:
        self.sim = SimGpus(sim)
        argv = [sys.executable, "-I", "-m", "eerl_launch.agent", "--node", "node01", "--sim-dir", str(sim)]
        self.process = subprocess.Popen(
            [*argv, "--period-s", "0.02", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.encoder, self.decoder = Encoder(), Decoder()
        self.messages: list[Message] = []
        self.ended = False

    @property
    def stdin(self) -> Any:
        assert self.process.stdin is not None
        return self.process.stdin

    def send(self, **message: Any) -> None:
        self.raw(self.encoder.encode(message))

    def raw(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def read(self) -> None:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 65536)
        self.ended = self.ended or not data
        self.messages += self.decoder.feed(data)

    def wait_for(self, event: str, **fields: Any) -> Message:
        """The first message of this kind from now on; those before it are dropped."""
        deadline = time.monotonic() + HANG_S
        while True:
            while self.messages:
                message = self.messages.pop(0)
                if message["ev"] == event and all(message.get(k) == v for k, v in fields.items()):
                    return message
            assert not self.ended, f"the agent ended without {event}: {self.process.communicate()[1]!r}"
            assert time.monotonic() < deadline, f"no {event}"
            self.read()

    def locked_mhz(self) -> list[int]:
        with self.sim.node(0).gpus() as gpus:
            return [gpu.locked_mhz for gpu in gpus]

    def until_locked(self, mhz: int) -> None:
        deadline = time.monotonic() + HANG_S
        while set(self.locked_mhz()) != {mhz}:
            assert time.monotonic() < deadline, f"locked at {self.locked_mhz()}, not {mhz}"
            time.sleep(0.01)

    def lock(self) -> None:
        self.send(op="lock", id=77, mhz=LOCKED_MHZ, uuids=None)
        assert self.wait_for("done", re=77)["failures"] == []
        assert self.locked_mhz() == [LOCKED_MHZ] * 2


@pytest.fixture
def sim(tmp_path: Path) -> Path:
    """A folder with one node of two simulated GPUs."""
    SimGpus.create(tmp_path / "sim", SimSpec("h100", 1, 2))
    return tmp_path / "sim"


@pytest.fixture
def start_agent(sim: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents and ends them with the test."""
    started: list[AgentProcess] = []

    def start(*options: str) -> AgentProcess:
        started.append(AgentProcess(sim, *options))
        return started[-1]

    yield start
    for agent in started:
        agent.process.kill()
        agent.process.wait(HANG_S)
        for stream in (agent.process.stdin, agent.process.stdout, agent.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@pytest.fixture
def agent(start_agent: Callable[..., AgentProcess]) -> AgentProcess:
    """An agent that has joined."""
    agent = start_agent()
    agent.wait_for("join")
    return agent


def test_join_and_samples(start_agent: Callable[..., AgentProcess]) -> None:
    """An agent says what GPUs it has, then sends samples whose energy grows, with a row per GPU."""
    agent = start_agent()

    joined = agent.wait_for("join")
    first, second = agent.wait_for("s"), agent.wait_for("s")

    assert joined["n"] == "node01"
    assert (joined["source"], joined["backend"]) == ("sim", "locked-clocks")
    assert [gpu["index"] for gpu in joined["gpus"]] == [0, 1]
    assert joined["clocks"] == sorted(joined["clocks"]) and len(joined["clocks"]) > 50
    assert len(first["g"]) == 2
    assert second["t"] > first["t"]
    assert all(after[0] >= before[0] for before, after in zip(first["g"], second["g"], strict=True))


def test_ping_and_sample_on_request(agent: AgentProcess) -> None:
    """Heartbeats are answered with the node's clock; a wanted sample carries its number."""
    agent.send(op="ping", id=7)
    pong = agent.wait_for("pong")
    agent.send(op="sample", id=8)
    sample = agent.wait_for("s", re=8)

    assert pong["re"] == 7
    assert sample["t"] >= pong["t"]


def test_lock_and_reset(agent: AgentProcess) -> None:
    """Orders are carried out on all GPUs and answered with their number and what failed."""
    agent.lock()

    agent.send(op="reset", id=2, uuids=None)

    done = agent.wait_for("done", re=2)
    assert (done["set"], done["failures"]) == (2, [])
    assert agent.locked_mhz() == [0, 0]


def test_orders_for_another_node(agent: AgentProcess) -> None:
    """A command addressed to another node is not obeyed."""
    agent.send(op="lock", id=1, mhz=LOCKED_MHZ, to="node02")
    agent.send(op="ping", id=2)

    agent.wait_for("pong")
    agent.send(op="reset", id=3, uuids=None)
    agent.wait_for("done", re=3)

    with agent.sim.node(0).gpus() as gpus:
        assert all(gpu.locks == 1 for gpu in gpus)


@pytest.mark.parametrize("how", ["closed input", "end"])
def test_end_hands_the_clocks_back(agent: AgentProcess, how: str) -> None:
    """When the session says end or its side closes, the clocks go home and the agent says good-bye."""
    agent.lock()

    if how == "end":
        agent.send(op="end")
    else:
        agent.stdin.close()

    bye = agent.wait_for("bye")
    assert (bye["locked"], bye["left_locked"], bye["hangs"]) == (True, False, False)
    assert agent.locked_mhz() == [0, 0]
    assert agent.process.wait(HANG_S) == 0
    assert agent.process.stderr is not None and agent.process.stderr.read() == b""


def test_end_right_behind_a_lock(agent: AgentProcess) -> None:
    """A lock that is still under way when the end comes does not stay behind."""
    orders = agent.encoder.encode({"op": "lock", "id": 1, "mhz": LOCKED_MHZ, "uuids": None})
    agent.raw(orders + agent.encoder.encode({"op": "end"}))

    assert agent.wait_for("bye")["left_locked"] is False

    assert agent.locked_mhz() == [0, 0]


def test_term_resets_and_measures_on(agent: AgentProcess) -> None:
    """TERM brings the clocks home at once and for good; sampling goes on to the end of input."""
    agent.lock()

    agent.process.send_signal(signal.SIGTERM)

    agent.wait_for("done", re=None)
    assert agent.locked_mhz() == [0, 0]
    agent.wait_for("s")
    agent.send(op="lock", id=9, mhz=LOCKED_MHZ, uuids=None)
    agent.wait_for("done", re=9)
    assert agent.locked_mhz() == [0, 0]
    assert agent.process.poll() is None
    agent.stdin.close()
    assert agent.process.wait(HANG_S) == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_meant_for_the_trainer(agent: AgentProcess, number: int) -> None:
    """Signals that Slurm or a user sends to the whole job leave the agent as it is."""
    agent.lock()

    agent.process.send_signal(number)
    agent.send(op="ping", id=5)

    agent.wait_for("pong", re=5)
    assert agent.locked_mhz() == [LOCKED_MHZ] * 2


GARBAGE = [
    {"op": "lock"},
    {"op": "lock", "id": 1, "mhz": "fast"},
    {"op": "lock", "id": 1, "mhz": None, "uuids": 7},
    {"op": "reset", "id": 1, "uuids": 7},
    {"op": "sample"},
    {"op": "sample", "id": "x"},
    {"op": "gpus", "indices": 5},
    {"op": "gpus"},
    {"op": ["lock"]},
    {"op": "dance"},
    {},
]


def test_garbage_commands(agent: AgentProcess) -> None:
    """Commands that make no sense and bytes that are none leave an agent that still obeys and samples."""
    source = random.Random(3)

    for message in GARBAGE:
        agent.send(**message)
        agent.raw(bytes(source.randrange(256) for _ in range(200)) + b"\n")
    agent.lock()

    agent.wait_for("s")
    agent.stdin.close()
    assert agent.wait_for("bye")["left_locked"] is False
    assert agent.locked_mhz() == [0, 0]


def test_output_that_nobody_reads(agent: AgentProcess) -> None:
    """A session that does not read cannot stop the reset, nor the agent's end."""
    agent.lock()
    for i in range(3000):
        agent.send(op="ping", id=i)

    agent.stdin.close()

    agent.until_locked(0)
    assert agent.process.wait(HANG_S) == 0


def test_output_that_is_closed(agent: AgentProcess) -> None:
    """A session whose reading side is gone cannot stop the reset either."""
    agent.lock()
    assert agent.process.stdout is not None
    agent.process.stdout.close()

    agent.send(op="sample", id=3)
    agent.stdin.close()

    agent.until_locked(0)
    assert agent.process.wait(HANG_S) == 0


def test_killed_agent(start_agent: Callable[..., AgentProcess]) -> None:
    """A killed agent leaves the simulated GPUs usable for the next one, which can reset them."""
    first = start_agent()
    first.wait_for("join")
    first.lock()

    first.process.kill()
    first.process.wait(HANG_S)
    second = start_agent()
    second.wait_for("join")
    second.send(op="reset", id=4, uuids=None)

    assert second.wait_for("done", re=4)["failures"] == []
    assert second.locked_mhz() == [0, 0]


def test_markers_are_relayed(start_agent: Callable[..., AgentProcess], tmp_path_factory: Any) -> None:
    """Markers of trainer processes on the agent's node go up as they came, and the socket goes at the end."""
    folder = tmp_path_factory.mktemp("m") / "markers"
    agent = start_agent("--marker-folder", str(folder))
    agent.wait_for("join")
    agent.send(op="ping", id=1)
    agent.wait_for("pong")
    script = "import eerl_launch.mark as m; m.begin('generation', 3); m.flush(5)"

    environment = {**os.environ, "EERL_SOCKET": str(folder / "s")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=HANG_S)

    relayed = agent.wait_for("m")
    assert '"phase":"generation"' in relayed["line"]
    assert abs(relayed["real_s"] - time.time()) < HANG_S
    agent.stdin.close()
    agent.wait_for("bye")
    assert agent.process.wait(HANG_S) == 0
    assert not folder.exists()


def test_a_node_of_another_run_is_left_alone(
    start_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """E03: another eerl-run of the job is at work here: nothing is counted, set or heard, and its folder stays."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    other = InstanceLock(folder)
    agent = start_agent("--marker-folder", str(folder), "--session-node", "node00")

    assert "another eerl-run" in agent.wait_for("not_measured")["text"]
    agent.send(op="lock", id=1, mhz=LOCKED_MHZ, uuids=None)
    assert agent.wait_for("done", re=1)["set"] == 0
    agent.stdin.close()
    agent.wait_for("bye")

    assert agent.process.wait(HANG_S) == 0
    assert agent.locked_mhz() == [0, 0]
    assert [path.name for path in folder.iterdir()] == ["lock"]
    other.close()


def test_the_first_agent_of_a_node_holds_it(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """An agent alone on its node keeps other runs from counting there, and leaves nothing behind."""
    folder = tmp_path / "private"
    agent = start_agent("--marker-folder", str(folder), "--session-node", "node00")
    agent.wait_for("join")

    second = InstanceLock(folder)
    agent.stdin.close()
    agent.wait_for("bye")

    assert not second.held
    assert agent.process.wait(HANG_S) == 0
    assert not folder.exists()
    second.close()


def test_no_simulation_there(start_agent: Callable[..., AgentProcess], tmp_path: Path, sim: Path) -> None:
    """An agent that gets at no GPU says why and stays to relay markers."""
    agent = start_agent("--sim-dir", str(tmp_path / "nothing"))

    assert "no simulated GPUs" in agent.wait_for("not_measured")["text"]

    agent.send(op="lock", id=1, mhz=LOCKED_MHZ, uuids=None)
    assert agent.wait_for("done")["set"] == 0
    agent.stdin.close()
    assert agent.process.wait(HANG_S) == 0


class Uplink:
    """Keeps what the hands would send."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def wait_for(self, wanted: Callable[[Message], bool]) -> Message:
        deadline = time.monotonic() + HANG_S
        while True:
            found = next((message for message in list(self.sent) if wanted(message)), None)
            if found is not None:
                return found
            assert time.monotonic() < deadline, self.sent
            time.sleep(0.01)


class Source:
    """A source whose calls can be made to fail or to hang."""

    kind, backend, backend_reason, lease_s = "broker", "locked-clocks", "", 0.2

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fault: dict[str, Exception] = {}
        self.hang: dict[str, threading.Event] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.hang:
            self.hang[name].wait(HANG_S)
        if name in self.fault:
            raise self.fault[name]

    def gpus(self) -> list[GpuInfo]:
        return [GpuInfo("GPU-0", 0, "H100", (345, 1980))]

    def sample(self) -> dict[str, GpuSample]:
        self._call("sample")
        return {"GPU-0": GpuSample(1, 2)}

    def lock(self, mhz: int, uuids: Any = None) -> list[GpuFailure]:
        self._call("lock")
        return []

    def reset(self, uuids: Any = None) -> list[GpuFailure]:
        self._call("reset")
        return []

    def keep_alive(self) -> None:
        self._call("keep_alive")

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def source() -> Iterator[Source]:
    """A source whose hanging calls end with the test."""
    source = Source()
    yield source
    for event in source.hang.values():
        event.set()


def hands_of(source: Any, uplink: Uplink) -> Hands:
    return Hands(source, uplink, time.monotonic_ns, 0.02)  # type: ignore[arg-type]


def is_done(number: int | None) -> Callable[[Message], bool]:
    return lambda message: message["ev"] == "done" and message["re"] == number


def test_silent_session(sim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that hangs loses its lock like one that died."""
    monkeypatch.setattr(agent_hands, "SESSION_SILENCE_S", 0.4)
    gpus, uplink = SimSource(sim, 0), Uplink()
    hands = hands_of(gpus, uplink)

    hands.order({"op": "lock", "id": 1, "mhz": LOCKED_MHZ, "uuids": None})

    note = uplink.wait_for(lambda message: message["ev"] == "note")
    assert "silent" in note["text"]
    with SimGpus(sim).node(0).gpus() as states:
        assert [gpu.locked_mhz for gpu in states] == [0, 0]
    assert hands.finish()["locked"] is False


def test_lease_is_renewed_only_while_locked(source: Source) -> None:
    """The lease is kept alive after a lock and not before."""
    uplink = Uplink()
    hands = hands_of(source, uplink)
    uplink.wait_for(lambda message: message["ev"] == "s")
    time.sleep(0.2)
    assert "keep_alive" not in source.calls

    hands.order({"op": "lock", "id": 1, "mhz": 900})
    deadline = time.monotonic() + HANG_S
    while source.calls.count("keep_alive") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert hands.finish()["left_locked"] is False
    assert source.calls.count("reset") == 1


def test_broker_that_is_gone(source: Source) -> None:
    """A broker that does not answer a heartbeat has reset the clocks; the session hears it once."""
    uplink = Uplink()
    hands = hands_of(source, uplink)
    source.fault["keep_alive"] = DeviceError("no answer")

    hands.order({"op": "lock", "id": 1, "mhz": 900})

    uplink.wait_for(lambda message: message.get("kind") == "broker_lost")
    time.sleep(0.2)
    assert sum(message.get("kind") == "broker_lost" for message in uplink.sent) == 1
    assert hands.finish()["locked"] is False


@pytest.mark.parametrize("fault", [DeviceError("gone"), ValueError("nonsense"), OSError("no")])
def test_sampling_survives_any_fault(
    source: Source, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever sampling raises is told once, and samples come again when it is over."""
    monkeypatch.setattr(agent_hands, "_RETRY_S", 0.02)
    uplink = Uplink()
    source.fault["sample"] = fault
    hands = hands_of(source, uplink)
    uplink.wait_for(lambda message: message["ev"] == "note")
    time.sleep(0.1)

    del source.fault["sample"]

    uplink.wait_for(lambda message: message["ev"] == "s")
    assert sum(message["ev"] == "note" for message in uplink.sent) == 1
    hands.finish()


def test_order_that_raises_is_answered(source: Source) -> None:
    """An order that fails in an unforeseen way is answered as failed on every GPU; the next one is obeyed."""
    uplink = Uplink()
    hands = hands_of(source, uplink)
    source.fault["lock"] = RuntimeError("driver went mad")

    hands.order({"op": "lock", "id": 1, "mhz": 900})
    done = uplink.wait_for(is_done(1))
    del source.fault["lock"]
    hands.order({"op": "lock", "id": 2, "mhz": 900})

    assert [failure[:2] for failure in done["failures"]] == [["GPU-0", 999]]
    assert uplink.wait_for(is_done(2))["failures"] == []
    hands.finish()


def test_orders_concern_the_own_gpus_of_a_pool(sim: Path) -> None:
    """An order for a pool sets only those of its GPUs that are here; none is no failure, all are set at once."""
    gpus, uplink = SimSource(sim, 0), Uplink()
    calls: list[Any] = []
    lock = gpus.lock
    gpus.lock = lambda mhz, uuids=None: (calls.append(uuids), lock(mhz, uuids))[1]  # type: ignore[method-assign]
    first, second = (gpu.uuid for gpu in gpus.gpus())
    hands = hands_of(gpus, uplink)

    for number, uuids in enumerate([[second, "GPU-elsewhere"], ["GPU-elsewhere"], [second, first], []]):
        hands.order({"op": "lock", "id": number, "mhz": 600 + 150 * number, "uuids": uuids})
    answers = [uplink.wait_for(is_done(number)) for number in range(4)]

    assert [(answer["set"], answer["failures"]) for answer in answers] == [(1, []), (0, []), (2, []), (0, [])]
    assert calls == [[second], None]
    with SimGpus(sim).node(0).gpus() as states:
        assert [gpu.locked_mhz for gpu in states] == [900, 900]
    hands.order({"op": "reset", "id": 9, "uuids": [first]})
    uplink.wait_for(is_done(9))
    with SimGpus(sim).node(0).gpus() as states:
        assert [gpu.locked_mhz for gpu in states] == [0, 900]
    assert hands.finish() == {"ev": "bye", "locked": True, "hangs": False, "left_locked": False}
    with SimGpus(sim).node(0).gpus() as states:
        assert [gpu.locked_mhz for gpu in states] == [0, 0]


def test_both_pools_reset_leave_nothing_locked(sim: Path) -> None:
    """When each pool has been reset on its own, the agent holds no lock any more."""
    gpus, uplink = SimSource(sim, 0), Uplink()
    first, second = (gpu.uuid for gpu in gpus.gpus())
    hands = hands_of(gpus, uplink)

    hands.order({"op": "lock", "id": 1, "mhz": 900, "uuids": None})
    for number, uuid in ((2, first), (3, second)):
        hands.order({"op": "reset", "id": number, "uuids": [uuid]})
    uplink.wait_for(is_done(3))

    assert hands.finish()["locked"] is False


def test_hanging_lock_does_not_stop_samples(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that hangs in the driver leaves sampling alive, and the end says that it hangs."""
    monkeypatch.setattr(agent_hands, "_FAREWELL_S", 0.3)
    uplink = Uplink()
    source.hang["lock"] = threading.Event()
    hands = hands_of(source, uplink)

    hands.order({"op": "lock", "id": 1, "mhz": 900})
    while "lock" not in source.calls:
        time.sleep(0.01)
    before = len(uplink.sent)
    uplink.wait_for(lambda message: message["ev"] == "s" and len(uplink.sent) > before + 2)

    farewell = hands.finish()
    assert (farewell["hangs"], farewell["left_locked"]) == (True, True)


def test_hanging_sample_does_not_stop_the_reset(source: Source) -> None:
    """A sample that hangs leaves locks and resets alive."""
    uplink = Uplink()
    source.hang["sample"] = threading.Event()
    hands = hands_of(source, uplink)

    hands.order({"op": "lock", "id": 1, "mhz": 900})
    uplink.wait_for(is_done(1))

    assert hands.finish() == {"ev": "bye", "locked": True, "hangs": False, "left_locked": False}
    assert source.calls.count("reset") == 1


def test_many_terms(agent: AgentProcess) -> None:
    """Hundreds of TERMs in a row leave an agent that still answers."""
    for _ in range(200):
        agent.process.send_signal(signal.SIGTERM)
    agent.send(op="ping", id=1)

    agent.wait_for("pong")
    assert agent.process.poll() is None
