"""A training program as the update tracker hears it."""

from __future__ import annotations

from typing import Any

from eerl_launch.markers import Marker
from eerl_launch.modes import Border
from eerl_launch.update_tracker import UpdateTracker
from eerl_launch.updates import Edge, Update


class Trainer:
    """Feeds a tracker as a training program would and keeps what comes out."""

    def __init__(self, border: Border = Border.GENERATION) -> None:
        self.tracker = UpdateTracker(border)
        self.edges: list[Edge] = []
        self.updates: list[Update] = []

    def send(
        self, t_s: float, event: str, phase: str | None = None, update: int | None = None, **more: Any
    ) -> None:
        sender = more.pop("sender", "1")
        edge = self.tracker.feed(Marker(event, t_s, sender, phase, update, more))
        if edge is not None:
            self.edges.append(edge)
            if edge.closed is not None:
                self.updates.append(edge.closed)

    def phase(self, begin_s: float, end_s: float, phase: str, update: int | None = None, **more: Any) -> None:
        sender = more.pop("sender", "1")
        self.send(begin_s, "begin", phase, update, sender=sender)
        self.send(end_s, "end", phase, update, sender=sender, **more)

    def finish(self, t_s: float) -> list[Update]:
        last = self.tracker.finish(t_s)
        return [*self.updates, *([last] if last is not None else [])]
