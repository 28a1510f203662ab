"""Lines of markers, from this node and relayed ones → markers; what was not understood is counted and told once."""

from __future__ import annotations

import time
from collections.abc import Callable

from eerl_launch.markers import Marker, MarkerError, parse
from eerl_launch.telling import RunClock, Voice

#: Malformed markers written to the ledger one by one; the rest is counted.
_MAX_MALFORMED_LOGGED = 20


class MarkerIntake:
    """Calls ``on_marker`` for each marker; ``counts``: how many lines came, were malformed, were never sent."""

    def __init__(
        self, clock: RunClock, time_scale: float, voice: Voice, on_marker: Callable[[Marker], None]
    ) -> None:
        self._clock = clock
        self._time_scale = time_scale
        self._voice = voice
        self._on_marker = on_marker
        self.counts = {"received": 0, "malformed": 0, "lost": 0}

    def own_line(self, sender: str, line: bytes) -> None:
        """A line of a sender on the session's own node."""
        self.line(line, f"0/{sender}", time.time(), self._clock.now_s())

    def line(self, line: bytes, sender: str, real_s: float, arrival_s: float) -> None:
        """A line with its sender and its arrival, as CLOCK_REALTIME and as run time."""
        self.counts["received"] += 1
        try:
            marker = parse(line, sender, real_s, arrival_s, self._time_scale)
        except MarkerError as error:
            if self.counts["malformed"] < _MAX_MALFORMED_LOGGED:
                self._voice.log("event", kind="markers_malformed", text=str(error)[:300])
            self.bad_lines(1)
            return
        if marker.event == "lost":
            self.counts["lost"] += int(marker.numbers.get("count", 1))
        else:
            self._on_marker(marker)

    def bad_lines(self, count: int) -> None:
        """Lines that were too long to be markers."""
        self.counts["malformed"] += count
        self._voice.say_once(
            "malformed", "a marker was not understood and passed over (more are only counted)"
        )
