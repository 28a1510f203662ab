"""Runs a framework's stand-in as a job of its own, and reads what the adapters made of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.marker_listener import HANG_S, Listener

from eerl_launch import adapter_folder
from eerl_launch.markers import Marker, parse
from eerl_launch.modes import Mode
from eerl_launch.update_tracker import UpdateTracker
from eerl_launch.updates import Update

ROOT = Path(__file__).parents[2]


class Senders(Listener):
    """A marker socket that knows which connection each line came by."""

    def __init__(self, path: Path) -> None:
        self.heard: list[tuple[str, bytes]] = []
        super().__init__(path)

    def _read(self, connection: socket.socket) -> None:
        sender = f"sender-{len(self.connections)}"
        with connection, connection.makefile("rb") as stream:
            for line in stream:
                self.heard.append((sender, line))


@dataclass
class Outcome:
    """A job's end, the markers it sent, and its own counts: the lines of JSON it printed."""

    returncode: int
    stderr: str
    counts: list[dict[str, Any]]
    markers: list[Marker] = field(default_factory=list)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The fields of all markers with one of these events, in order."""
        return [
            marker.fields for marker in self.markers if marker.event in names or marker.fields["ev"] in names
        ]

    def of(self, sender: str) -> list[Marker]:
        """The markers of one connection."""
        return [marker for marker in self.markers if marker.sender == sender]

    def notes(self) -> list[str]:
        """What the adapters told the user."""
        return [str(fields["text"]) for fields in self.events("note")]

    def spans(self, *without: str) -> list[str]:
        """Begins and ends as ``+phase`` and ``-phase``, in order."""
        sign = {"begin": "+", "end": "-", "pause": "+pause", "resume": "-pause"}
        return [
            sign[f["ev"]] + f.get("phase", "") for f in self.events(*sign) if f.get("phase") not in without
        ]

    def updates(self, mode: Mode) -> list[Update]:
        """The updates that the session makes of the markers, in order of their times."""
        tracker, closed = UpdateTracker(mode.border), []
        for marker in sorted(self.markers, key=lambda marker: marker.t_s):
            edge = tracker.feed(marker)
            if edge is not None and edge.closed is not None:
                closed.append(edge.closed)
        last = tracker.finish(max(marker.t_s for marker in self.markers) + 1)
        return closed + ([last] if last is not None else [])


def run(
    command: list[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    adapter: str = "auto",
    python: str = sys.executable,
) -> Outcome:
    """Run Python with ``command`` and ``folder`` on its path, set up as eerl-run does, under a marker socket."""
    place = Path(tempfile.mkdtemp(prefix="eerl-"))
    listener = Senders(place / "s")
    plain = {**os.environ, "PYTHONPATH": str(folder), "EERL_SOCKET": str(listener.path), **environment}
    try:
        done = subprocess.run(
            [python, *command],
            env={
                **plain,
                **adapter_folder.environment(
                    plain, adapter_folder.lay(place, adapter_folder.new_name()), adapter
                ),
            },
            capture_output=True,
            text=True,
            timeout=10 * HANG_S,
        )
        listener.drain()
    finally:
        listener.close()
        shutil.rmtree(place, ignore_errors=True)
    markers = []
    for sender, line in listener.heard:
        t_s = float(json.loads(line)["t"])
        markers.append(parse(line, sender, t_s, t_s))
    counts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Outcome(done.returncode, done.stderr, counts, markers)
