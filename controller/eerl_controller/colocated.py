"""Colocated synchronous control (paper, section 6.1): both clocks searched together."""

from __future__ import annotations

from eerl_controller.rounds import Round
from eerl_controller.search import Search
from eerl_controller.situation import phase_shares
from eerl_controller.trials import Trials


class ColocatedSync(Trials):
    """The controller of a colocated synchronous job: one round over both clocks."""

    @property
    def _idle_mhz(self) -> int | None:
        """The clock of a pool that waits, MHz; one pool that does both never waits."""
        return None

    def _first_round(self) -> Search:
        shares, what = phase_shares(self._model), Round.joint(self._settings, self._idle_mhz)
        return Search(self._settings, self._clocks, self._ceilings, shares, what)
