"""What a marker costs the trainer, beside a bare send of the same bytes to the same listener."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measured import Number, median, quantile

CALLS = 100_000
_BLOCK = 1000
#: A listener that takes what comes: the kernel's share of a marker is the same for both ways of sending.
_LISTENER = """
import selectors, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1]); server.listen(); print("ready", flush=True)
selector = selectors.DefaultSelector(); selector.register(server, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is server:
            selector.register(server.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(65536):
            selector.unregister(key.fileobj); key.fileobj.close()
"""
_COUNTS = {"generated_tokens": 812345, "longest_response_tokens": 4096}


def measure() -> list[Number]:
    """Median and p99 of entering and leaving ``mark.phase`` and of ``mark.update``."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "markers")
        lines = _lines(path + ".first")
        listener = subprocess.Popen([sys.executable, "-I", "-c", _LISTENER, path], stdout=subprocess.PIPE)
        try:
            assert listener.stdout is not None
            listener.stdout.readline()
            os.environ["EERL_SOCKET"] = path
            return _compare(path, lines)
        finally:
            os.environ.pop("EERL_SOCKET", None)
            listener.kill()
            listener.wait()
            listener.stdout.close()


def _actions() -> dict[str, Callable[[int], None]]:
    from eerl_launch import mark

    def begin(update: int) -> None:
        mark.Phase("generation", update).__enter__()

    def end(update: int) -> None:
        phase = mark.Phase("generation", update)
        phase.set(**_COUNTS)
        phase.__exit__(None, None, None)

    def count(update: int) -> None:
        mark.update(update, valid_tokens=640001, responses=512, reward=0.41, **_COUNTS)

    return {"phase begin": begin, "phase end": end, "update": count}


def _lines(path: str) -> dict[str, bytes]:
    """The bytes each marker sends, as a listener sees them."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    os.environ["EERL_SOCKET"] = path
    found = {}
    connection = None
    for name, action in _actions().items():
        action(123456)
        connection = connection or server.accept()[0]
        found[name] = connection.recv(65536)
    assert connection is not None
    connection.close()
    server.close()
    return found


def _compare(path: str, lines: dict[str, bytes]) -> list[Number]:
    bare = socket.socket(socket.AF_UNIX)
    bare.connect(path)
    numbers = []
    for name, action in _actions().items():
        line = lines[name]

        def send(_: int, line: bytes = line) -> None:
            bare.send(line)

        marker_us: list[float] = []
        bare_us: list[float] = []
        # Turn about in small blocks: what else the machine does meets both alike.
        for _ in range(CALLS // _BLOCK):
            marker_us += _timed_us(action)
            bare_us += _timed_us(send)
        what = f"socket.send of the same {len(line)} bytes on a connected stream socket, same listener"
        numbers += [
            Number(f"marker, {name}: median", "us", median(marker_us), median(bare_us), what, target=20.0),
            Number(f"marker, {name}: p99", "us", quantile(marker_us, 0.99), quantile(bare_us, 0.99), what),
        ]
    bare.close()
    return numbers


def _timed_us(call: Callable[[int], None]) -> list[float]:
    clock = time.perf_counter_ns
    taken = []
    for number in range(_BLOCK):
        begin = clock()
        call(number)
        taken.append((clock() - begin) / 1000)
    return taken
