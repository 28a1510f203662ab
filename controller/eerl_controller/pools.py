"""A search of one pool after the other, as both asynchronous modes make it (paper, sections 6.2 and 6.3)."""

from __future__ import annotations

from eerl_controller.clocks import Pair
from eerl_controller.comparison import Comparison
from eerl_controller.controlled import Controlled
from eerl_controller.overlap import Overlap
from eerl_controller.rounds import Round, pool_round
from eerl_controller.search import Search
from eerl_controller.situation import pool_shares

#: The first trial takes no clock below this fraction of its ceiling, however much time there is to lose: half
#: the clock is where static power begins to weigh, and nothing is known of power yet.
DEEPEST_START = 0.5


class PoolByPool(Controlled):
    """Rounds over one pool's clock; the second is built upon what the first confirmed."""

    @property
    def _overlap(self) -> Overlap:
        overlap = self._model.overlap
        if overlap is None:
            raise RuntimeError("a search without knowing which pool waits: a bug in the controller")
        return overlap

    def _second_round(self, pair: Pair, comparison: Comparison) -> Search | None:
        settings, axis = self._settings, 0 if pair.training_mhz is not None else 1
        if not pair.is_lowered or self._model.overlap is None:
            return None
        step_mhz = settings.async_second_step_mhz
        # Whatever the later pool loses shows at once: begin with one step.
        start = max(1.0 - step_mhz / self._ceilings[axis], DEEPEST_START)
        return self._round(pool_round(axis, step_mhz, start, pair, comparison))

    def _round(self, what: Round) -> Search:
        search = Search(self._settings, self._clocks, self._ceilings, pool_shares(self._model), what)
        search.overlap = self._overlap
        return search
