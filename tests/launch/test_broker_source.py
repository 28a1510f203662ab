"""The agent's side of the clock broker, against a small broker that speaks contract 3.4 and can misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eerl_launch.devices import broker
from eerl_launch.devices.base import DeviceError, GpuSample
from eerl_launch.devices.broker import BrokerSource

HELLO = (
    "ok gpus=GPU-a,GPU-b backend=locked-clocks min_mhz=210 max_mhz=1980 lease_s=10 clocks=345,210,1980 "
    "names=NVIDIA_H100_80GB_HBM3,NVIDIA_H100_80GB_HBM3 idx=2,5 driver=580.105.08 scope=gpu"
)
SAMPLE = (
    "ok t_ns=5000 GPU-a energy_mj=123456789012 sm_mhz=1500 power_mw=300000 util_pct=97 reasons=0x4 ; "
    "GPU-b err=15"
)
LATER_SAMPLE = "ok t_ns=5000 GPU-a energy_mj=7 limit_mw=700000 ; GPU-b t_ns=900005000 energy_mj=8"
HANG_S = 30.0


class FakeBroker:
    """Answers each line by ``answer``; None hangs up, an empty text says nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[int, str]] = []
        self.answers: dict[str, str | None] = {"hello": HELLO, "sample": SAMPLE}
        self._connections: list[socket.socket] = []
        self.start()

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen()
        threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self._connections.append(connection)
            number = len(self._connections)
            threading.Thread(target=self._talk, args=(connection, number), daemon=True).start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                request = line.decode().strip()
                self.asked.append((number, request))
                answer = self.answers.get(request.split()[0], "ok")
                if answer is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(answer.encode() + b"\n" if answer else b"")

    def stop(self) -> None:
        """As when the broker's process dies."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)

    def requests(self, verb: str) -> list[str]:
        return [request for _, request in self.asked if request.split()[0] == verb]


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    """A broker for job 7 on node01; waits are short."""
    monkeypatch.setattr(broker, "RUN_FOLDER", tmp_path_factory.mktemp("b"))
    monkeypatch.setattr(broker, "_REPLY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(broker, "_RESTART_PAUSE_S", 0.2)
    fake = FakeBroker(broker.socket_path("node01", "7"))
    yield fake
    fake.stop()


@pytest.fixture
def source(fake: FakeBroker) -> Iterator[BrokerSource]:
    """A source that has said hello."""
    source = BrokerSource("node01", "7")
    yield source
    source.close()


def test_hello(source: BrokerSource) -> None:
    """All that the broker tells of itself and the GPUs is taken over."""
    first, second = source.gpus()

    assert (source.kind, source.backend, source.driver, source.lease_s) == (
        "broker",
        "locked-clocks",
        "580.105.08",
        10.0,
    )
    assert (first.uuid, first.index, first.name) == ("GPU-a", 2, "NVIDIA H100 80GB HBM3")
    assert (second.uuid, second.index) == ("GPU-b", 5)
    assert first.supported_mhz == (210, 345, 1980)
    assert first.energy_scope == "gpu"


def test_hello_of_a_broker_that_only_measures(fake: FakeBroker) -> None:
    """A broker without a way to set clocks says why, in words."""
    fake.answers["hello"] = "ok gpus=GPU-a backend=none reason=clock%20calls_answer%20code%204 lease_s=10"

    source = BrokerSource("node01", "7")

    assert source.backend == "none"
    assert source.backend_reason == "clock calls answer code 4"
    assert source.gpus()[0].supported_mhz == ()
    source.close()


@pytest.mark.parametrize("answer", ["err 4 - not your job", "", "ok", "garbage", None])
def test_hello_refused(fake: FakeBroker, answer: str | None) -> None:
    """A broker that refuses, says nothing, hangs up or serves no GPU is no source."""
    fake.answers["hello"] = answer

    with pytest.raises(DeviceError):
        BrokerSource("node01", "7")


def test_no_broker(fake: FakeBroker) -> None:
    """Where there is no socket the error says that the plugin gave none."""
    fake.stop()

    with pytest.raises(DeviceError, match="plugin"):
        BrokerSource("node01", "7")


def test_sample(source: BrokerSource) -> None:
    """What the broker knows is read, what it leaves out is None, an error stays with its GPU."""
    assert source.sample() == {
        "GPU-a": GpuSample(5000, 123456789012, 1500, 300000, 97, 4),
        "GPU-b": GpuSample(5000, error_code=15),
    }


def test_a_gpu_that_was_read_later_has_its_own_instant(fake: FakeBroker, source: BrokerSource) -> None:
    """One GPU answered late: its reading is of its own instant, the others' of the common one; limits are read."""
    fake.answers["sample"] = LATER_SAMPLE

    assert source.sample() == {
        "GPU-a": GpuSample(5000, 7, limit_mw=700_000),
        "GPU-b": GpuSample(900_005_000, 8),
    }


def test_gpus_that_could_not_be_opened_are_remarked(fake: FakeBroker) -> None:
    """A GPU of the job that the broker could not open is named in the agent's remarks."""
    fake.answers["hello"] = f"{HELLO} missing=3:15"

    source = BrokerSource("node01", "7")

    assert source.notes == ["the job's GPU 3 (Slurm's number) cannot be opened (code 15)"]


@pytest.mark.parametrize(
    "answer",
    [
        "err 999 - busy",
        "",
        "ok",
        "ok t_ns=x GPU-a energy_mj=1",
        "ok t_ns=1 GPU-a energy_mj=many",
        "ok GPU-a energy_mj=1",
        "ok t_ns=1 GPU-a energy_mj=",
        "\x00\xff",
        None,
    ],
)
def test_broken_sample(fake: FakeBroker, source: BrokerSource, answer: str | None) -> None:
    """A sample that cannot be read is a DeviceError and nothing else; the next one is read again."""
    fake.answers["sample"] = answer

    with pytest.raises(DeviceError):
        source.sample()

    fake.answers["sample"] = SAMPLE
    assert source.sample()["GPU-a"].sm_mhz == 1500


def test_unknown_keys_of_a_later_broker(fake: FakeBroker, source: BrokerSource) -> None:
    """Keys that this version does not know are passed over."""
    fake.answers["sample"] = "ok t_ns=1 mood=good GPU-a energy_mj=5 temperature_c=60"

    assert source.sample() == {"GPU-a": GpuSample(1, 5)}


def test_two_answers_to_one_question(fake: FakeBroker, source: BrokerSource) -> None:
    """An answer too many is never taken for the answer to the next question."""
    fake.answers["lock"] = "ok\nerr 4 GPU-a late"
    source.lock(1200)
    fake.answers["reset"] = "ok"
    fake.answers["lock"] = "ok"

    assert source.reset() == []


def test_lock_and_reset(fake: FakeBroker, source: BrokerSource) -> None:
    """Orders go out as the contract words them, for all GPUs or by UUID, on one connection."""
    assert source.lock(1200) == []
    assert source.lock(900, ["GPU-a", "GPU-b"]) == []
    assert source.reset() == []
    assert source.reset(["GPU-b"]) == []

    assert fake.requests("lock") == ["lock * 1200", "lock GPU-a 900", "lock GPU-b 900"]
    assert fake.requests("reset") == ["reset *", "reset GPU-b"]
    assert len({number for number, request in fake.asked if request[0] in "lr"}) == 1
    source.sample()
    assert {n for n, r in fake.asked if r == "sample"}.isdisjoint(
        {n for n, r in fake.asked if r.startswith("lock")}
    )


@pytest.mark.parametrize(
    ("answer", "failures"),
    [
        ("err 4 GPU-a no permission", [("GPU-a", 4)]),
        ("err 4 GPU-a no permission ; 15 GPU-b lost", [("GPU-a", 4), ("GPU-b", 15)]),
        ("err 3", [("GPU-a", 3), ("GPU-b", 3)]),
        ("what", [("GPU-a", 999), ("GPU-b", 999)]),
    ],
)
def test_failures(
    fake: FakeBroker, source: BrokerSource, answer: str, failures: list[tuple[str, int]]
) -> None:
    """Each GPU that failed comes with its code; an answer that names none is of all."""
    fake.answers["lock"] = answer

    assert [(f.uuid, f.code) for f in source.lock(1200)] == failures


@pytest.mark.parametrize("answer", ["", None])
def test_order_without_an_answer(fake: FakeBroker, source: BrokerSource, answer: str | None) -> None:
    """A broker that is silent or hangs up fails the order on every GPU, within two reply times."""
    fake.answers["lock"] = answer

    failures = source.lock(1200)

    assert [(f.uuid, f.code) for f in failures] == [("GPU-a", 10), ("GPU-b", 10)]
    assert len(fake.requests("lock")) == 2


def test_restarted_worker(fake: FakeBroker, source: BrokerSource) -> None:
    """When the supervisor restarts the worker between two orders, the order is given again to the new one."""
    source.lock(1200)
    fake.stop()
    timer = threading.Timer(0.05, fake.start)
    timer.start()

    failures = source.reset()

    timer.join()
    assert failures == []
    assert fake.requests("reset") == ["reset *"]
    assert source.sample()["GPU-a"].sm_mhz == 1500


def test_heartbeat_of_a_broker_that_died(fake: FakeBroker, source: BrokerSource) -> None:
    """A heartbeat tells that the connection which held the lock is gone, even if a new broker is there already."""
    source.lock(1200)
    fake.stop()
    fake.start()

    with pytest.raises(DeviceError, match="no answer"):
        source.keep_alive()

    source.keep_alive()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_close_hangs_up(fake: FakeBroker) -> None:
    """Closing ends both connections, upon which a broker resets what was locked."""
    source = BrokerSource("node01", "7")
    source.sample()

    source.close()

    until(lambda: all(connection.fileno() == -1 for connection in fake._connections))
    assert len(fake._connections) == 2


def test_words_of_the_plugin(fake: FakeBroker) -> None:
    """Why the plugin gave no broker is passed on in its words; without any there is nothing to pass on."""
    assert broker.refusal("node01", "7") is None
    (fake.path.parent / "reason").write_text("MIG is enabled on GPU-a\n")

    assert broker.refusal("node01", "7") == "MIG is enabled on GPU-a"
