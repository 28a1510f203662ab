"""``eerl-mark``: a marker from a shell script. Apart from wrong usage (exit 2) it always exits 0."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from eerl_launch import mark

_COUNTS = ("generated_tokens", "valid_tokens", "longest_response_tokens", "responses")
#: A script's next command waits for this one, so a stalled listener gets no longer than this.
_DELIVERY_S = 0.5


def _counts(parser: argparse.ArgumentParser) -> None:
    for name in _COUNTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    parser.add_argument("--reward", type=float, metavar="X")
    parser.add_argument("--policy-age", type=float, metavar="UPDATES")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eerl-mark", description="Send a marker to eerl-run; does nothing where EERL_SOCKET is not set."
    )
    events = parser.add_subparsers(dest="event", required=True, metavar="EVENT")
    for event in ("begin", "end"):
        command = events.add_parser(event, help=f"a phase {event}s")
        command.add_argument("phase", help="generation, reward, logprob, training, refit, validation, …")
        command.add_argument("--update", type=int, metavar="N")
        if event == "end":
            _counts(command)
    command = events.add_parser("update", help="what an update generated and consumed")
    command.add_argument("update", type=int, metavar="N")
    _counts(command)
    command = events.add_parser("run", help="what kind of run this is")
    command.add_argument("--framework", metavar="NAME")
    command.add_argument("--mode", help="as in the policy file", metavar="MODE")
    command.add_argument("--total-updates", type=int, metavar="N")
    command = events.add_parser("pool", help="GPUs that have a role")
    command.add_argument("role", help="generation or training")
    command.add_argument("gpus", nargs="+", metavar="UUID")
    for event, text in (("pause", "generation pauses for a weight refit"), ("resume", "it goes on")):
        events.add_parser(event, help=text).add_argument("--update", type=int, metavar="N")
    command = events.add_parser("metric", help="a quantity to show beside the energy")
    command.add_argument("name")
    command.add_argument("value", type=float)
    command.add_argument("--update", type=int, metavar="N")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Send the marker that the arguments describe; the exit code."""
    fields = vars(_parser().parse_args(argv))
    event = fields.pop("event")
    given = {name: value for name, value in fields.items() if value is not None}
    getattr(mark, event)(**given)
    if not mark.flush(_DELIVERY_S):
        path = os.environ.get("EERL_SOCKET")
        print(
            f"eerl: marker not delivered: nothing listens at {path} (is eerl-run running?)", file=sys.stderr
        )
    return 0
