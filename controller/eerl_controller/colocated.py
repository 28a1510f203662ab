"""Colocated synchronous control (paper, section 6.1): both clocks searched together."""

from __future__ import annotations

from eerl_controller.rounds import Round
from eerl_controller.search import Search
from eerl_controller.situation import phase_shares
from eerl_controller.trials import Trials


class ColocatedSync(Trials):
    """The controller of a colocated synchronous job: one round over both clocks."""

    def _first_round(self) -> Search:
        return Search(
            self._settings,
            self._clocks,
            self._ceilings,
            phase_shares(self._model),
            Round.joint(self._settings),
        )
