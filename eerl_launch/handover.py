"""When a plan takes effect: at the border of updates that is legal for the mode (contract 3.7). No I/O.

Synchronous modes change clocks at a generation begin. The asynchronous ones change them when the refit (pause) begins
and count the plan from its end, the border; drained, a plan that is made just after the border may still count from
it, in flight clocks change inside a pause or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eerl_launch.modes import Mode
from eerl_launch.steering import GRACE_S, Steering

if TYPE_CHECKING:
    from eerl_controller.records import ClockPlan

#: Wall seconds in which a plan is made and sent; with virtual time this is longer than the grace.
_WALL_GRACE_S = 0.05


class Handover:
    """Keeps the plan that waits for its border; all times are run time in seconds."""

    def __init__(self, steering: Steering, time_scale: float) -> None:
        self._steering = steering
        self._grace_s = max(GRACE_S, _WALL_GRACE_S * time_scale)
        self._waiting: ClockPlan | None = None
        self._approached_s: float | None = None
        self._borders = 0

    def first(self, plan: ClockPlan) -> None:
        """The plan to start with; one that leaves all to the governor is how things have been so far."""
        if plan.is_governor:
            self._steering.adopt(plan, 0.0)
        else:
            self._waiting = plan

    def take(self, plan: ClockPlan, mode: Mode, border_s: float | None, now_s: float) -> None:
        """A new plan; ``border_s`` is where the update that runs now began, None when that is over already."""
        in_grace = border_s is not None and now_s - border_s <= self._grace_s
        if in_grace and border_s is not None and mode is not Mode.ASYNC_INFLIGHT:
            self._waiting = None
            self._steering.adopt(plan, border_s)
            return
        self._waiting = plan
        if self._approached_s is not None:
            self._steering.prepare(plan)

    def approach(self, begin_s: float) -> None:
        """A refit or pause has begun, after which a new update does: clocks change now, to count from then on."""
        if self._approached_s is not None and self._steering.coming is not None:
            # The last one's end got lost: its plan has ruled since it began, in the middle of an update.
            self._steering.adopt(self._steering.coming, self._approached_s)
            self._waiting = None
        self._approached_s = begin_s
        if self._waiting is not None:
            self._steering.prepare(self._waiting)

    def border(self, begin_s: float, mode: Mode) -> None:
        """A new update begins: a plan that came too late for the last one takes effect."""
        # In flight, one that was not there when the pause began waits for the next; at first nothing runs yet.
        in_time = self._borders == 0 or self._steering.coming is not None or mode is not Mode.ASYNC_INFLIGHT
        if self._waiting is not None and in_time:
            self._steering.adopt(self._waiting, begin_s)
            self._waiting = None
        self._approached_s = None
        self._borders += 1

    def forget(self) -> None:
        """No plan waits any more: the controller has failed."""
        self._waiting = self._steering.coming = None
