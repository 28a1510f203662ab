"""Policy ``eerl`` where generation and training overlap on separate pools: drained and in-flight updates.

Learn from every usable update, decide by the same rule as where phases take turns (``plan``, ``decision``,
``turns``). A pool that waits for the other anyway is free by physics, down to the clock where it would become the
later one, and stays lowered while the other is compared.
"""

from __future__ import annotations

from eerl_controller.bayes.pool_calibration import PoolCalibration
from eerl_controller.bayes.pool_ground import PoolGround
from eerl_controller.bayes.pool_table import PoolTable
from eerl_controller.clocks import GOVERNOR
from eerl_controller.states import Reason, State


class BayesPools(PoolCalibration):
    """The controller of an asynchronous job."""

    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""
        learner, menu = self._learner, self._menu
        if menu is None or not learner.known:
            return
        if learner.alarmed:
            self._alarm()
            return
        learner.refresh()
        ground, barred = PoolGround(menu, learner), self._guard.barred(menu)
        self._next(
            lambda hope: PoolTable(ground, hope, barred),
            probing=self._probing or not self.book.pair.is_lowered,
        )

    def _fail_setting(self, word: str) -> None:
        """What training learns from has suffered: these clocks are left, and not chosen again."""
        self._guard.fail(self.book.pair)
        self._alternation.held = GOVERNOR
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.LEARNING, word)
