"""Policy ``eerl`` in the synchronous modes: learn from every usable update, decide by one rule.

Lowered clocks alternate with governor blocks in the share that the plan for the rest of the run gives the governor
(``plan``, ``decision``, ``turns``).
"""

from __future__ import annotations

from eerl_controller.bayes.calibration import SyncCalibration
from eerl_controller.bayes.decision import first_below, first_fraction
from eerl_controller.bayes.outcomes import BLOCK_UPDATES
from eerl_controller.bayes.table import Table
from eerl_controller.clocks import Pair, snap
from eerl_controller.states import Reason, State


class BayesSync(SyncCalibration):
    """The controller of a synchronous job, colocated or with separate pools."""

    def _try_first(self) -> None:
        """Both clocks reduced (paper, section 6.1), as far as the allowance bears at the very worst."""
        allowance = self._allowance()
        fraction = first_fraction(allowance, self._learner.outlook.total_s, self._settings.start_fraction)
        mhz: list[int | None] = []
        for ceiling in self._learner.ceilings_mhz:
            below = first_below(self._clocks, ceiling, allowance, self._learner.outlook.total_s)
            mhz.append(snap(fraction * ceiling, below) if below else None)
        pair = Pair(mhz[0], mhz[1], self._idle_mhz)
        if pair.is_governor or fraction >= 0.99 or allowance.left < 4.0 * BLOCK_UPDATES:
            self._nothing_pays(Reason.NEAR_END if not pair.is_governor else Reason.NOTHING_PAYS)
        else:
            self._enter(State.SEARCH, pair, Reason.TRIAL, f"first trial: {pair}")

    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""
        learner, menu = self._learner, self._menu
        if menu is None or not learner.known:
            return
        if learner.alarm.raised:
            self._alarm()
            return
        if self.book.pair.is_governor and max(learner.reach) == 0.0:
            self._try_first()
            return
        self._next(
            lambda hope: Table(menu, learner, hope),
            probing=self._probing or not self.book.pair.is_lowered,
        )
