"""Policy ``eerl`` in the synchronous modes: learn from every usable update, decide by one rule.

Lowered clocks alternate with governor blocks in the share that the plan for the rest of the run gives the governor
(``plan``, ``decision``). What the states mean here: ``SEARCH`` until lowered clocks were compared with the
governor a few times; ``CONFIRMATION`` while a setting is held that may be better, on the evidence of the next
block; ``LOCKED`` while the best one known is held; ``REMEASURE`` while the governor is, for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.alternation import BLOCK_UPDATES
from eerl_controller.bayes.calibration import SyncCalibration
from eerl_controller.bayes.decision import COMMITTED_UPDATES, Turn, first_below, first_fraction, next_step
from eerl_controller.bayes.plan import Allowance, Choice
from eerl_controller.bayes.warm import leave, take_up
from eerl_controller.clocks import GOVERNOR, Pair, snap
from eerl_controller.states import Reason, State

#: Updates that are left at least when nobody says how many: a fifth of the paper's runs of 500.
SHORT_RUN = 100.0


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

    def _allowance(self) -> Allowance:
        """What may be lost. When nobody says how long the run will be, it is taken to last as long again as it has
        lasted, and no less than a short run does; what was lost must then be within the limit at any time.
        """
        limit, past_s, left = self._settings.allowed_loss, self._learner.past_s, self._left
        if left is not None:
            return Allowance(limit, past_s, left, (left,))
        left = max(float(self._learner.seen), SHORT_RUN)
        return Allowance(limit, past_s, left, (COMMITTED_UPDATES, left))

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
        allowance = self._allowance()
        step = next_step(menu, learner, self._alternation, allowance, self.book.pair, self._settings)
        if step.turn is Turn.PROBE:
            self._probe(step.choice)
        elif step.turn is Turn.EXPLORE:
            self._explore(step.choice)
        elif step.turn is Turn.HOLD:
            self._hold(step.choice)
        else:
            self._nothing_pays(Reason.NOTHING_PAYS)

    def _probe(self, best: Choice) -> None:
        note = (
            f"{BLOCK_UPDATES} governor updates: loss of {best.pair} known to {100 * best.loss_sd:.2f} points"
        )
        self._alternation.interrupt(self.book.pair)
        if self.state is State.SEARCH:
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, GOVERNOR, Reason.REFERENCE_AGE, note)

    def _explore(self, hope: Choice) -> None:
        note = f"may be better; {hope}"
        if self._alternation.searching and self.state is not State.LOCKED:
            self._enter(State.SEARCH, hope.pair, Reason.TRIAL, note)
        else:
            self._enter(State.CONFIRMATION, hope.pair, Reason.MARGIN, note)
        self._next_block(hope)

    def _hold(self, best: Choice) -> None:
        note = f"{best}; {100 * self._learner.lost_share:.2f} % lost so far"
        if self._alternation.searching and self.state in (State.SEARCH, State.REMEASURE):
            self._enter(State.SEARCH, best.pair, Reason.TRIAL, note)
        elif self.state in (State.CALIBRATION, State.SEARCH):
            self._enter(State.CONFIRMATION, best.pair, Reason.CONFIRMING, note)
        else:
            self._suspension.forgive()
            self._enter(State.LOCKED, best.pair, Reason.CONFIRMED, note)
        self._next_block(best)

    def _next_block(self, choice: Choice) -> None:
        rests = self.state is State.LOCKED and choice.pair == self._alternation.held
        self._wanted = self._alternation.rest_updates(choice) if rests else BLOCK_UPDATES
        self._alternation.held, self._usable = choice.pair, 0

    def _nothing_pays(self, reason: Reason) -> None:
        """The governor, and what it teaches; after a monitoring window of that, the governor for now."""
        note = "no setting saves within what is left of the allowance"
        if self.book.pair.is_governor and self._usable >= self._settings.monitor_window:
            self._suspend(reason, note)
            return
        if self.state in (State.SEARCH, State.CALIBRATION):
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, GOVERNOR, reason, note)

    def _alarm(self) -> None:
        """Updates are not what they were: the governor tells whether it is the clocks or the machine."""
        pair = self.book.pair
        self._learner.doubt(pair)
        if pair.is_governor:
            self._usable = 0
            return
        self._alternation.held = pair
        note = "updates are not what they were: the governor tells whether it is the clocks"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.DRIFT, note)

    # -- warm start ---------------------------------------------------------------------------------------------

    def posterior(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run knows of its clocks, for a later one with this key (``warm``); None if it knows nothing."""
        return leave(self._learner, key)

    def from_posterior(self, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
        """Start from an earlier run's posterior, before the first record; False, changing nothing, if it is unfit."""
        return take_up(self._learner, posterior, key)
