"""Disaggregated synchronous control (paper, section 6.1): as colocated, and a waiting pool idles at a lower clock.

The idle clock is tried alone before the clocks of the phases, so that what it saves is known apart from what they
save; it is judged like them, on the whole update's time and energy, and confirmed with the pair that carries it.
"""

from __future__ import annotations

from eerl_controller.clocks import idle_clock
from eerl_controller.rounds import Round
from eerl_controller.search import Search
from eerl_controller.situation import phase_shares
from eerl_controller.trials import Trials


class DisaggregatedSync(Trials):
    """The controller of a synchronous job with separate pools: one round over both clocks and the idle clock."""

    def _first_round(self) -> Search:
        return Search(
            self._settings,
            self._clocks,
            self._ceilings,
            phase_shares(self._model),
            Round.joint(self._settings, idle_clock(self._grid, self._settings)),
        )
