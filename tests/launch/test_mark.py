"""The marker client: what it writes, and that nothing on the other side can stop or break the trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launch.marker_listener import HANG_S, Listener, wait_until

from eerl_launch import mark, mark_cli
from eerl_launch.markers import MarkerError, parse

READER = """
import json, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(8); print("ready", flush=True)
connection = server.accept()[0]
lines = lost = 0
for line in connection.makefile("rb"):
    lines += 1
    event = json.loads(line)
    lost += event.get("count", 0) if event["ev"] == "lost" else 0
    if event["ev"] == "metric":
        break
print(json.dumps({"lines": lines, "lost": lost}), flush=True)
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has not sent anything yet."""
    monkeypatch.setattr(mark, "_sender", mark.Sender())


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> Iterator[Listener]:
    """A listener at EERL_SOCKET."""
    instance = Listener(tmp_path / "s")
    monkeypatch.setenv("EERL_SOCKET", str(instance.path))
    yield instance
    instance.close()


def test_without_a_socket_nothing_happens(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """Outside eerl-run every call is a no-op and keeps nothing."""
    monkeypatch.delenv("EERL_SOCKET", raising=False)

    with mark.phase("generation") as phase:
        phase.set(generated_tokens=1)
    mark.update(1, valid_tokens=2)
    mark.pool("training", ["GPU-1"])

    assert not mark._sender.queue
    assert mark._sender.lost == 0


def test_all_events_as_the_protocol_has_them(listener: Listener) -> None:
    """Each call writes the line of contract 3.3, which the session's parser accepts."""
    mark.run(framework="trl", mode="colocated_sync", total_updates=500)
    with mark.phase("generation", update=12) as phase:
        phase.set(generated_tokens=812345, longest_response_tokens=4096)
    mark.update(12, generated_tokens=812345, valid_tokens=640001, reward=0.41, policy_age=1)
    mark.pool("generation", ["GPU-a", "GPU-b"])
    mark.pause()
    mark.resume()
    mark.metric("validation_accuracy", 0.62, update=100)

    events = listener.events(8)
    assert [event["ev"] for event in events] == [
        "run",
        "begin",
        "end",
        "update",
        "pool",
        "pause",
        "resume",
        "metric",
    ]
    assert events[2]["generated_tokens"] == 812345
    assert events[2]["phase"] == "generation"
    assert events[3]["valid_tokens"] == 640001
    assert events[4]["gpus"] == ["GPU-a", "GPU-b"]
    times = [event["t"] for event in events]
    assert times == sorted(times)
    for line in listener.lines:
        assert parse(line.strip(), "s", time.time(), 1.0).event in line.decode()


def test_response_lengths_go_out_as_one_metric(listener: Listener) -> None:
    """Mean, quantiles, longest and number of the responses, in one line; none without lengths, junk is lost."""
    mark.response_lengths([], update=3)
    mark.response_lengths(range(1, 102), update=4)
    mark.response_lengths(["long"], update=5)
    mark.metric("after", 1.0)

    events = listener.events(3)
    assert {key: value for key, value in events[0].items() if key not in ("v", "t")} == {
        "ev": "metric",
        "name": "response_length_tokens",
        "value": 51.0,
        "update": 4,
        "p10": 11,
        "p25": 26,
        "p50": 51,
        "p75": 76,
        "p90": 91,
        "p95": 96,
        "p99": 100,
        "max": 101,
        "responses": 101,
    }
    assert [event["ev"] for event in events[1:]] == ["lost", "metric"]


def test_phase_ends_when_its_body_raises(listener: Listener) -> None:
    """An exception of the trainer passes through unchanged, and the phase has its end."""
    with pytest.raises(KeyError, match="mine"), mark.phase("training"):
        raise KeyError("mine")

    assert [event["ev"] for event in listener.events(2)] == ["begin", "end"]


def test_long_pools_are_split(listener: Listener) -> None:
    """A thousand GPUs go out in lines below the limit, none missing."""
    names = [f"GPU-{number:036d}" for number in range(1000)]

    mark.pool("training", names)

    wait_until(lambda: sum(line.count(b"GPU-") for line in listener.lines) >= 1000)
    assert all(len(line) <= mark.MAX_LINE_BYTES for line in listener.lines)
    assert [name for line in listener.lines for name in json.loads(line)["gpus"]] == names


class _Number:
    """Like a NumPy scalar or a one-element tensor."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def test_numbers_of_other_libraries(listener: Listener) -> None:
    """Scalars with ``item`` become numbers; what has no value is left out and the rest is sent."""
    mark.update(_Number(7), valid_tokens=_Number(640), reward=float("nan"), responses=_Number(ValueError()))  # type: ignore[arg-type]

    (event,) = listener.events(1)
    assert event["update"] == 7
    assert event["valid_tokens"] == 640
    assert "reward" not in event and "responses" not in event


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=300),
    st.binary(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.builds(object),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(first=_VALUES, second=_VALUES, counts=st.dictionaries(st.text(max_size=300), _VALUES, max_size=50))
def test_bad_arguments_never_raise(
    listener: Listener, first: Any, second: Any, counts: dict[str, Any]
) -> None:
    """Whatever is passed, the call returns, and what is sent is a whole line of JSON."""
    counts = {name: value for name, value in counts.items() if name not in ("phase", "update")}

    with mark.phase(first, second) as phase:
        phase.set(**{name: value for name, value in counts.items() if name != "self"})
    mark.update(first, **counts)
    mark.run(first, second, first)
    mark.pool(first, second)
    mark.metric(first, second, first)

    for line in list(listener.lines):
        try:
            parse(line.strip(), "s", time.time(), 1.0)
        except MarkerError as error:
            assert "JSON" not in str(error) and "longer" not in str(error)


def test_listener_that_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """Markers sent before anybody listens arrive once somebody does."""
    monkeypatch.setenv("EERL_SOCKET", str(tmp_path / "s"))
    mark.begin("generation", 1)

    listener = Listener(tmp_path / "s")
    arrived = mark.flush(HANG_S)

    assert arrived
    assert listener.events(1)[0]["phase"] == "generation"
    listener.close()


def test_listener_restarts(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the listener is replaced, the next markers go to the new one."""
    mark.begin("generation", 1)
    listener.events(1)
    listener.close()

    second = Listener(listener.path)
    mark.end("generation", 1)
    mark.update(1, valid_tokens=5)
    assert mark.flush(HANG_S)

    assert [event["ev"] for event in second.events(2)] == ["end", "update"]
    second.close()


def test_vanished_listener_is_counted(listener: Listener) -> None:
    """With nobody there the queue stays bounded, and the loss is told to the next listener first."""
    mark.begin("generation", 1)
    listener.events(1)
    listener.close()

    for number in range(2000):
        mark.update(number)
    waiting = len(mark._sender.queue)
    second = Listener(listener.path)
    assert mark.flush(HANG_S)

    events = second.events(waiting + 1)
    assert events[0] == {"v": 1, "ev": "lost", "count": 2000 - waiting}
    assert [event["update"] for event in events[1:]] == list(range(waiting))
    second.close()


def test_stopped_listener_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    """100 000 markers to a listener under SIGSTOP all return at once; afterwards sent and lost add up."""
    path = tmp_path / "s"
    monkeypatch.setenv("EERL_SOCKET", str(path))
    reader = subprocess.Popen([sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    mark.begin("generation")
    os.kill(reader.pid, signal.SIGSTOP)

    longest_s = 0.0
    for number in range(100_000):
        started_s = time.monotonic()
        mark.update(number)
        longest_s = max(longest_s, time.monotonic() - started_s)
    os.kill(reader.pid, signal.SIGCONT)
    assert mark.flush(HANG_S)
    mark.metric("end", 1.0)

    result = json.loads(reader.stdout.readline())
    reader.wait(HANG_S)
    assert longest_s < 5.0  # a hang bound: a blocking send would wait for SIGCONT, which comes after the loop
    assert result["lost"] > 0
    assert result["lines"] + result["lost"] == 100_000 + 3  # with begin, metric and one lost line


def test_forked_children_have_their_own_connection(listener: Listener) -> None:
    """Parent and children send at the same time and every line stays whole."""
    mark.begin("generation", 0)
    pids = []
    for child in range(1, 5):
        pid = os.fork()
        if pid == 0:
            for number in range(200):
                mark.update(1000 * child + number)
            os._exit(0 if mark.flush(HANG_S) else 1)
        pids.append(pid)
    for number in range(200):
        mark.update(number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert mark.flush(HANG_S)

    assert codes == [0] * 4
    events = listener.events(1 + 5 * 200)
    assert len(listener.connections) == 5
    assert {event["update"] for event in events[1:]} == {1000 * c + n for c in range(5) for n in range(200)}


def test_many_threads_send_whole_lines(listener: Listener) -> None:
    """Eight threads at once lose nothing and mix no lines while the listener reads."""

    def work(thread: int) -> None:
        for number in range(300):
            mark.update(1000 * thread + number)
            if number % 50 == 0:
                mark.flush(HANG_S)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert mark.flush(HANG_S)

    lost = sum(event.get("count", 0) for event in listener.events(1) if event["ev"] == "lost")
    updates = [event["update"] for event in listener.events(2400 - lost) if event["ev"] == "update"]
    assert len(updates) == len(set(updates))
    assert len(updates) + lost + mark._sender.lost == 2400


def test_marker_inside_a_signal_handler(listener: Listener) -> None:
    """A handler that interrupts a marker call and sends one itself neither deadlocks nor breaks a line."""
    fired = 0

    def handler(number: int, frame: object) -> None:
        nonlocal fired
        fired += 1
        mark.begin("checkpoint")

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        wait_until(lambda: mark.update(1) or fired >= 50)  # type: ignore[func-returns-value]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    assert mark.flush(HANG_S)
    assert all(json.loads(line)["ev"] for line in listener.lines)


def test_import_is_light() -> None:
    """The client brings in nothing but the standard library, and neither NumPy nor YAML."""
    code = (
        "import sys; before = set(sys.modules); from eerl_launch import mark; "
        "print([n for n in set(sys.modules) - before "
        "if n.split('.')[0] not in sys.stdlib_module_names | {'eerl_launch'}])"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"


def test_command_sends_the_same(listener: Listener) -> None:
    """``eerl-mark`` writes what the Python calls write."""
    codes = [
        mark_cli.main(["begin", "generation", "--update", "3"]),
        mark_cli.main(["end", "generation", "--update", "3", "--generated-tokens", "100"]),
        mark_cli.main(["update", "3", "--valid-tokens", "80", "--reward", "0.5"]),
        mark_cli.main(["pool", "training", "GPU-a", "GPU-b"]),
        mark_cli.main(["pause"]),
        mark_cli.main(["metric", "accuracy", "0.5"]),
    ]

    events = listener.events(6)
    assert codes == [0] * 6
    assert [event["ev"] for event in events] == ["begin", "end", "update", "pool", "pause", "metric"]
    assert events[2]["valid_tokens"] == 80


def test_command_without_a_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fresh: None
) -> None:
    """A script goes on when nobody listens, with one line that says so; without EERL_SOCKET there is none."""
    monkeypatch.setenv("EERL_SOCKET", str(tmp_path / "absent"))
    gone = mark_cli.main(["begin", "generation"])
    told = capsys.readouterr().err
    monkeypatch.delenv("EERL_SOCKET")
    silent = mark_cli.main(["begin", "generation"])

    assert (gone, silent) == (0, 0)
    assert told.startswith("eerl: marker not delivered")
    assert len(told.splitlines()) == 1
    assert capsys.readouterr().err == ""
