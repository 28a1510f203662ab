"""A client of the clock broker as small as can be, for tests of the plugin without eerl-run.

    srun -N2 -n2 python tests/rig/broker_client.py --lock 1200 --hold 30 --reset

Speaks contract 3.4 to /run/eerl/<node>/<job>/clock and prints every answer as ``<node> <request>: <answer>``.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time


class Broker:
    """One connection; answers are single lines."""

    def __init__(self, path: str, node: str = "", timeout_s: float = 30.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r", encoding="ascii", newline="\n")
        self._node = node

    def ask(self, request: str) -> str:
        """Send a line, return the answer."""
        self._socket.sendall(request.encode("ascii") + b"\n")
        answer = self._lines.readline().rstrip("\n")
        if self._node:
            print(f"{self._node} {request}: {answer}", flush=True)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--lock", type=int, metavar="MHZ")
    parser.add_argument("--uuid", default="*")
    parser.add_argument("--hold", type=float, default=0.0, metavar="S", help="ping for so long")
    parser.add_argument("--silent", type=float, default=0.0, metavar="S", help="then say nothing for so long")
    parser.add_argument("--reset", action="store_true")
    parser.add_argument("--sample", action="store_true")
    wish = parser.parse_args()
    node, job = os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]
    folder = f"/run/eerl/{node}/{job}"
    try:
        broker = Broker(f"{folder}/clock", node)
    except OSError as error:
        reason = ""
        if os.path.exists(f"{folder}/reason"):  # noqa: PTH110
            with open(f"{folder}/reason") as file:  # noqa: PTH123
                reason = file.read().strip()
        print(f"{node} no broker: {error.strerror}; reason: {reason or 'not told'}", flush=True)
        return 3
    broker.ask("hello 1")
    if wish.lock is not None:
        broker.ask(f"lock {wish.uuid} {wish.lock}")
    if wish.sample:
        broker.ask("sample")
    end = time.monotonic() + wish.hold
    while time.monotonic() < end:
        time.sleep(min(0.5, wish.hold))
        broker.ask("ping")
    time.sleep(wish.silent)
    if wish.reset:
        broker.ask(f"reset {wish.uuid}")
    broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
