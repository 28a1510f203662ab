"""Asynchronous control with drained updates (paper, section 6.2): one pool after the other.

The pool that usually arrives first waits at the rendezvous anyway, so its clock is searched first, on a 50 MHz
grid, with the other pool on the governor. What is confirmed is held while the second pool is searched on a
100 MHz grid; a second lowered clock stays only if the pair keeps the throughput and uses no more energy than the
first alone. As in every mode with separate pools, the idle clock is tried alone before all others.
"""

from __future__ import annotations

from eerl_controller.clocks import Pair, idle_clock
from eerl_controller.governor import GovernorModel
from eerl_controller.pools import DEEPEST_START, PoolByPool
from eerl_controller.response import Curve
from eerl_controller.rounds import pool_round
from eerl_controller.search import Search
from eerl_controller.states import Reason
from eerl_controller.trials import Trials


class AsyncDrained(PoolByPool, Trials):
    """The controller of an asynchronous job whose pools meet before every refit."""

    def _missing(self, model: GovernorModel) -> tuple[Reason, str] | None:
        if model.overlap is not None:
            return None
        known = sum(item.arrivals_s is not None for item in model.references)
        note = f"{known} of {len(model.references)} governor updates tell when both pools arrived, within the update"
        return Reason.MISSING_ARRIVALS, f"{note}; phases of both pools are needed to have clocks controlled"

    def _first_round(self) -> Search:
        settings, overlap = self._settings, self._overlap
        axis = overlap.first_axis
        allowed_time = 1.0 / (1.0 - settings.allowed_loss) - 1.0
        # Work wholly bound by the clock would take this many times as long: no trial can be slower than that.
        ratio = overlap.longest_ratio(axis, allowed_time, 1.0 / DEEPEST_START)
        start = min(1.0 / ratio, settings.start_fraction)
        held = Pair(None, None, idle_clock(self._grid, settings))
        return self._round(pool_round(axis, settings.async_first_step_mhz, start, held))

    def _responses(self) -> tuple[Curve | None, Curve | None] | None:
        found = super()._responses()
        if found is None:
            return None
        # A pool that the search left on the governor stays there: feedback moves lowered clocks.
        generation, training = (
            curve if mhz is not None else None
            for curve, mhz in zip(found, self.book.pair.phases, strict=True)
        )
        return generation, training
