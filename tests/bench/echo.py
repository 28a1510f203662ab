"""A bare echo through srun: what the channel costs without anything of eerl at its ends.

    python echo.py ask --rounds 60 -- srun … python echo.py answer

``ask`` sends a line to all tasks and waits for the last answer, ``--pause`` seconds apart as orders are, and prints
the round trips in seconds as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def answer() -> None:
    """Send back what comes."""
    while data := os.read(0, 65536):
        os.write(1, data)


def ask(rounds: int, pause_s: float, tasks: int, command: list[str]) -> list[float]:
    """The seconds each round took until the last task had answered."""
    far = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert far.stdin is not None and far.stdout is not None
    trips = []
    for number in range(rounds):
        line = f"{number:08d} {'x' * 80}\n".encode()
        begin = time.monotonic()
        os.write(far.stdin.fileno(), line)
        missing = tasks * len(line)
        while missing:
            missing -= len(os.read(far.stdout.fileno(), missing))
        trips.append(time.monotonic() - begin)
        time.sleep(pause_s)
    far.stdin.close()
    far.wait()
    return trips[1:]  # the first one waited for the tasks to start


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        answer()
    else:
        wanted = sys.argv.index("--")
        rounds, pause_s, tasks = sys.argv[2:wanted]
        print(json.dumps(ask(int(rounds), float(pause_s), int(tasks), sys.argv[wanted + 1 :])))
