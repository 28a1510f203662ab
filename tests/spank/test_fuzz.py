"""A hostile or broken client of the broker, which is the job's own user at worst."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spank.lone_node import LoneNode, until, without_namespaces

WORD = st.sampled_from(
    [
        "hello",
        "1",
        "lock",
        "reset",
        "*",
        "sample",
        "ping",
        "1200",
        "345",
        "0",
        "-1",
        "99999999999",
        "GPU-",
        "GPU-x",
        "\t",
    ]
)
LINE = st.lists(WORD, max_size=4).map(" ".join).map(str.encode) | st.binary(max_size=400)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, build: Callable[[str], Path]) -> Iterator[LoneNode]:
    """One node with the sanitized broker for all examples, its job holding GPUs 0 and 1 of four."""
    if reason := without_namespaces():
        pytest.skip(reason)
    node = LoneNode(tmp_path_factory.mktemp("victim"), build("sanitized") / "eerl-clockd")
    node.serve(gpus="0,1", settings=["lease_s=300"])
    yield node
    node.stop()


def _lines(data: bytes) -> int:
    """How many answers these bytes must get before the broker hangs up, at least; ends at an over-long line."""
    count = 0
    for line in data.split(b"\n")[:-1]:
        count += 1
        if len(line) > 256:
            break
    return count


@given(lines=st.lists(LINE, min_size=1, max_size=12))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_gets_one_answer(victim: LoneNode, lines: list[bytes]) -> None:
    """Any bytes: one answer a line, ok or err, in order; the worker lives and other jobs' GPUs see nothing."""
    client = victim.connect()
    data = b"\n".join(lines) + b"\n"

    client.send(data)
    answers = [client.line() for _ in range(_lines(data))]
    client.close()

    whole = [answer for answer in answers if answer is not None]
    assert all(re.match(r"ok( |$)|err \d+ ", answer) for answer in whole)
    assert len(whole) == len(answers) or any(len(line) > 256 for line in data.split(b"\n"))
    assert victim.stub.setter_calls(gpu=2) == victim.stub.setter_calls(gpu=3) == []
    assert "worker died" not in victim.syslog()


def test_a_flood_without_newline_is_cut_off(victim: LoneNode) -> None:
    """A megabyte on one line: told once that it is too long, then the connection ends."""
    client = victim.connect()

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send(b"x" * 1_000_000)

    assert (client.line() or "err 2 ").startswith("err 2 ")
    assert client.line() is None


def test_a_client_that_never_reads_costs_nobody(victim: LoneNode) -> None:
    """Ten thousand requests whose answers nobody takes: others are served, and clocks are set meanwhile."""
    deaf, other = victim.connect(), victim.agent()
    deaf.raw.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(10_000):
            deaf.raw.send(b"hello 1\n")

    assert other.ask("lock * 1200") == "ok"
    assert "energy_mj" in other.sample()[victim.stub.uuid(0)]
    other.close()
    until(victim.stub.at_default, "reset")
    deaf.close()


def test_clients_that_come_and_go(victim: LoneNode) -> None:
    """A thousand connections, some that say nothing, some that leave with a request under way."""
    for turn in range(1000):
        client = victim.connect()
        if turn % 3 == 1:
            client.send(b"hello 1\nlock * 1200\nsample\n")
        if turn % 3 == 2:
            client.send(b"hel")
        if turn % 7 == 0:
            client.raw.shutdown(socket.SHUT_RD)
        client.close()

    until(lambda: victim.connect().ask("ping") == "ok", "served as ever")
    until(lambda: victim.stub.at_default() and not victim.marks(), "no clock is left behind")
    assert "worker died" not in victim.syslog()
