"""The channel's round trip, measured by itself: one line to every node, and back from the last.

    python echo.py agents 40 4 -- srun … python -I -m eerl_launch.agent …
    python echo.py bare 40 4 -- srun … python -I echo.py answer

``agents`` sends the session's ping to real agents; ``bare`` lets programs return what they read, so that srun is
left alone. 40 rounds, 4 nodes; prints the seconds of each round as JSON. Rounds are as far apart as orders may be.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time

from eerl_launch.channel import Decoder, Encoder

_PAUSE_S = 0.1
#: Agents open their GPUs and send what they are; rounds count once that is over.
_JOINING_S = 2.0


def answer() -> None:
    """Send back what comes."""
    while data := os.read(0, 65536):
        os.write(1, data)


def bare(rounds: int, nodes: int, command: list[str]) -> list[float]:
    """Seconds until every node's program had returned the line."""
    trips = []
    with _started(command) as far:
        for number in range(rounds):
            line = f"{number:08d} {'x' * 60}\n".encode()
            begin = _send(far, line)
            missing = nodes * len(line)
            while missing:
                missing -= len(os.read(_output(far), missing))
            trips.append(time.monotonic() - begin)
            time.sleep(_PAUSE_S)
    return trips[1:]  # the first one waited for the programs to start


def agents(rounds: int, nodes: int, command: list[str]) -> list[float]:
    """Seconds until every node's agent had answered the ping."""
    encoder, decoder, trips = Encoder(), Decoder(), []
    with _started(command) as far:
        for number in range(rounds):
            begin = _send(far, encoder.encode({"op": "ping", "id": number}))
            missing = nodes
            while missing:
                messages = decoder.feed(os.read(_output(far), 65536))
                missing -= sum(m["ev"] == "pong" and m["re"] == number for m in messages)
            trips.append(time.monotonic() - begin)
            _read_for(far, _PAUSE_S if number else _JOINING_S, decoder)
    return trips[1:]


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _send(far: subprocess.Popen[bytes], line: bytes) -> float:
    assert far.stdin is not None
    begin = time.monotonic()
    os.write(far.stdin.fileno(), line)
    return begin


def _output(far: subprocess.Popen[bytes]) -> int:
    assert far.stdout is not None
    return far.stdout.fileno()


def _read_for(far: subprocess.Popen[bytes], seconds: float, decoder: Decoder) -> None:
    """Take in telemetry that nobody asked for, as the session does all the time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([_output(far)], [], [], left)[0]:
            decoder.feed(os.read(_output(far), 65536))


def main() -> None:
    if sys.argv[1] == "answer":
        answer()
        return
    way, rounds, nodes = sys.argv[1:4]
    command = sys.argv[sys.argv.index("--") + 1 :]
    print(json.dumps((agents if way == "agents" else bare)(int(rounds), int(nodes), command)))


if __name__ == "__main__":
    main()
