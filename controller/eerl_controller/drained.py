"""Asynchronous control with drained updates (paper, section 6.2): one pool after the other.

The pool that usually arrives first waits at the rendezvous anyway, so its clock is searched first, on a 50 MHz
grid, with the other pool on the governor. What is confirmed is held while the second pool is searched on a
100 MHz grid; a second lowered clock stays only if the pair keeps the throughput and uses no more energy than the
first alone. As in every mode with separate pools, the idle clock is tried alone before all others.
"""

from __future__ import annotations

from eerl_controller.arrivals import Arrivals
from eerl_controller.clocks import Pair, idle_clock
from eerl_controller.comparison import Comparison
from eerl_controller.governor import GovernorModel
from eerl_controller.response import Curve
from eerl_controller.rounds import Round, pool_round
from eerl_controller.search import Search
from eerl_controller.situation import pool_shares
from eerl_controller.states import Reason
from eerl_controller.trials import Trials

#: The first trial takes no clock below this fraction of its ceiling, however much time there is to lose: half
#: the clock is where static power begins to weigh, and nothing is known of power yet.
DEEPEST_START = 0.5


class AsyncDrained(Trials):
    """The controller of an asynchronous job whose pools meet before every refit."""

    def _missing(self, model: GovernorModel) -> tuple[Reason, str] | None:
        if model.arrivals is not None:
            return None
        known = sum(item.arrivals_s is not None for item in model.references)
        note = f"{known} of {len(model.references)} governor updates tell when both pools arrived, within the update"
        return Reason.MISSING_ARRIVALS, f"{note}; phases of both pools are needed to have clocks controlled"

    @property
    def _arrivals(self) -> Arrivals:
        arrivals = self._model.arrivals
        if arrivals is None:
            raise RuntimeError("a search without arrivals: a bug in the controller")
        return arrivals

    def _first_round(self) -> Search:
        settings, arrivals = self._settings, self._arrivals
        axis = arrivals.first_axis
        allowed_time = 1.0 / (1.0 - settings.max_throughput_loss) - 1.0
        # Work wholly bound by the clock would take this many times as long: no trial can be slower than that.
        ratio = arrivals.longest_ratio(axis, allowed_time, 1.0 / DEEPEST_START)
        start = min(1.0 / ratio, settings.start_fraction)
        held = Pair(None, None, idle_clock(self._grid, settings))
        return self._round(pool_round(axis, settings.async_first_step_mhz, start, held))

    def _second_round(self, pair: Pair, comparison: Comparison) -> Search | None:
        settings, axis = self._settings, 0 if pair.training_mhz is not None else 1
        if not pair.is_lowered:
            return None
        step_mhz = settings.async_second_step_mhz
        # Whatever the later pool loses shows at once: begin with one step.
        start = max(1.0 - step_mhz / self._ceilings[axis], DEEPEST_START)
        return self._round(pool_round(axis, step_mhz, start, pair, comparison))

    def _round(self, what: Round) -> Search:
        search = Search(self._settings, self._clocks, self._ceilings, pool_shares(self._model), what)
        search.arrivals = self._arrivals
        return search

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
