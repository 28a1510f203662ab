"""Phase markers → updates that wait for their record; the mode they follow may be told after the first of them.

Several processes of a trainer mark, and nothing orders their markers: an agent loop's first generation may come
before the ``run`` event that says what the mode is. Until then the mode is only assumed: markers are kept, nothing is
recorded, and where the event names another mode the kept markers are read again by its rules. What is assumed holds
for good once an update has closed that trained or was counted, or a controller was made.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from eerl_launch.arrangement import Arrangement
from eerl_launch.clock_maps import clock_map
from eerl_launch.energy import Allocation
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.steering import Steering
from eerl_launch.update_tracker import UpdateTracker
from eerl_launch.updates import Edge, Update

#: An update waits this long for readings after its end before it is called partial.
_ENERGY_PATIENCE_S = 3.0
#: Markers kept while the mode is assumed: some seconds of many agent loops, or a run that does nothing but generate.
_MOST_KEPT = 1024
_PAUSES = ("pause", "resume")
_PHASES = ("begin", "end", "update", *_PAUSES)


@dataclass(slots=True)
class _Closed:
    """An update that has ended and waits for its last readings and counts."""

    update: Update
    closed_at: float  # CLOCK_MONOTONIC


class UpdateFlow:
    """Owns the update that runs and those that have closed; keeps tracker and clock map to the mode of the run."""

    def __init__(self, arrangement: Arrangement, steering: Steering, energy: Allocation) -> None:
        self._arrangement = arrangement
        self._steering = steering
        self._energy = energy
        self._tracker = UpdateTracker(arrangement.mode.border)
        self._closed: deque[_Closed] = deque()
        self._kept: list[Marker] = []
        steering.map = clock_map(arrangement.mode)

    @property
    def tracker(self) -> UpdateTracker:
        """The tracker of the mode as far as it is known; another one after :meth:`tell_mode`."""
        return self._tracker

    @property
    def waiting(self) -> bool:
        """Whether an update waits for nothing but readings and counts."""
        return bool(self._closed) and not self._arrangement.assumes

    @property
    def following_begin_s(self) -> float | None:
        """Where the update that runs began; None when another has closed since, or none runs."""
        return None if self._closed or self._tracker.current is None else self._tracker.current.begin_s

    @property
    def oldest_begin_s(self) -> float:
        """The earliest instant, in run time, that a record to come looks back to."""
        current = self._tracker.current
        if self._closed:
            return self._closed[0].update.begin_s
        return current.begin_s if current is not None else 0.0

    # -- markers --------------------------------------------------------------------------------------------

    def feed(self, marker: Marker) -> Edge | None:
        """Take in a begin, end, update, pause or resume marker; the edge that it made, if any. Others pass."""
        if marker.event not in _PHASES:
            return None
        edge = self._follow(marker)
        if self._arrangement.assumes:
            self._kept.append(marker)
            # Processes that generate side by side each seem to begin an update; those close without either.
            if any(closed.update.trained or closed.update.counted for closed in self._closed):
                self._settle("its first update")
            elif len(self._kept) >= _MOST_KEPT:
                self._settle(f"{_MOST_KEPT} markers")
        return edge

    def tell_mode(self, marker: Marker) -> list[Edge] | None:
        """The trainer's ``run`` event; None unless the mode is another now.

        Then the edges that the phases marked until now make by its rules: whatever followed edges begins anew.
        """
        assumed = self._arrangement.mode
        self._arrangement.tell_mode(marker)
        if self._arrangement.mode is assumed:
            if not self._arrangement.assumes:
                self._kept.clear()
            return None
        kept, self._kept = self._kept, []
        self._tracker = UpdateTracker(self._arrangement.mode.border)
        self._steering.map = clock_map(self._arrangement.mode)
        self._closed.clear()
        return [edge for edge in map(self._follow, kept) if edge is not None]

    def _follow(self, marker: Marker) -> Edge | None:
        if marker.event in _PAUSES and self._arrangement.mode is not Mode.ASYNC_INFLIGHT:
            return None
        self._arrangement.begin()
        edge = self._tracker.feed(marker)
        if edge is None:
            return None
        if edge.begins:
            self._steering.map.begins(edge.phase, edge.t_s)
        else:
            self._steering.map.ends(edge.phase, edge.t_s, edge.took_s)
        if edge.closed is not None:
            self._closed.append(_Closed(edge.closed, time.monotonic()))
        return edge

    def _settle(self, what: str) -> None:
        self._arrangement.settle(what)
        self._kept.clear()

    # -- updates --------------------------------------------------------------------------------------------

    def next_ready(self) -> Update | None:
        """The oldest closed update, once, as soon as its mode, readings and counts are there; None before."""
        if not self.waiting:
            return None
        head = self._closed[0]
        waited_s = time.monotonic() - head.closed_at
        ready = self._energy.covered(head.update.end_s or 0.0) or waited_s > _ENERGY_PATIENCE_S
        counted = head.update.counts_known or len(self._closed) > 1
        return self.take() if ready and counted else None

    def take(self) -> Update | None:
        """The oldest closed update, ready or not; None when none is left."""
        return self._closed.popleft().update if self._closed else None

    def finish(self, ended_s: float) -> None:
        """The run is over at ``ended_s``: what was running has closed."""
        last = self._tracker.finish(ended_s)
        if last is None:
            return
        if last.trained and all(o.complete for o in last.occurrences):
            last.end_s = max(o.end_s or ended_s for o in last.occurrences)
        self._closed.append(_Closed(last, 0.0))
