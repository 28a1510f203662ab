"""Policy ``eerl`` where generation and training overlap on separate pools: drained and in-flight updates.

Learn from every usable update, decide by one rule (``pool_decision``). Blocks of lowered clocks alternate with
governor blocks as often as their evidence is worth it. What the states mean: ``SEARCH`` until lowered clocks were
compared with the governor a few times; ``CONFIRMATION`` while a setting is held that may be better, on the evidence
of the next block; ``LOCKED`` while the best one known is held; ``REMEASURE`` while the governor is, for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.pool_calibration import BLOCK_UPDATES, PoolCalibration
from eerl_controller.bayes.pool_decision import CHANGE_UPDATES, Probe, best_probe, choose, find_hope
from eerl_controller.bayes.pool_menu import Allowance, Choice, PoolMenu
from eerl_controller.bayes.pool_table import PoolTable
from eerl_controller.bayes.warm import leave, take_up
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.states import Reason, State

#: A lock that was just found good is not looked at again sooner, but for an alarm: half of Table 3's "every 10".
HOLD_UPDATES = 5
#: A trial goes no deeper than this many times what was tried: beyond lies extrapolation.
DEEPER = 2.0
#: Alternations of lowered clocks and governor that make a search.
SEARCH_CONTRASTS = 3
#: Nothing is tried or compared any more when fewer blocks than this are left to make use of it.
LAST_PROBE_BLOCKS = 3.0
#: Without a block that is wholly the governor's for so long, the next probe is one: it is what reward, policy age and
#: the report's reference are compared with. Three updates of 200 cost as much as a re-measurement (Table 3's 500).
REFERENCE_UPDATES = 200


class BayesPools(PoolCalibration):
    """The controller of an asynchronous job."""

    # -- deciding ----------------------------------------------------------------------------------------------

    def _allowance(self) -> Allowance:
        """What may be lost. When nobody says how long the run will be, it is taken to last as long again as it has
        lasted, and no less than a monitoring window, so that something may begin.
        """
        limit, past_s, left = self._settings.allowed_loss, self._learner.past_s, self._left
        told = left is not None
        if left is None:
            left = max(float(self._learner.seen), float(self._settings.monitor_window))
        probing = max(left - LAST_PROBE_BLOCKS * (BLOCK_UPDATES + 1.0), 0.0)
        return Allowance(limit, past_s, left, told, governed=self._governed * probing)

    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""
        learner, menu = self._learner, self._menu
        if menu is None or not learner.known:
            return
        if learner.alarmed:
            self._alarm()
            return
        learner.refresh()
        allowance = self._allowance()
        reach = self._reach(menu)
        current = self._held if self._probing else self.book.pair
        barred = self._guard.barred(menu)
        table = PoolTable(menu, learner, barred=barred)
        best, here = choose(table, menu, allowance, reach, current)
        # What a change must bring: enough to be seen at all, and its toll over what is left.
        toll = CHANGE_UPDATES * best.saving
        least = max(self._settings.min_gain, toll / max(allowance.left, 1.0))
        if here is not None and best.saving - here.saving < least:
            best = here
        hope: Choice | None = None
        goes_on = allowance.left >= LAST_PROBE_BLOCKS * (BLOCK_UPDATES + 1.0)
        probe = None
        if goes_on and best.pair.is_lowered:
            probe = best_probe(menu, learner, table, best, allowance.left, BLOCK_UPDATES)
        compares = self.book.pair.is_lowered and not self._probing
        pays = compares and probe is not None and probe.worth > probe.cost
        if compares and goes_on and self._since_governor >= REFERENCE_UPDATES:
            probe, pays = Probe(GOVERNOR, 0.0, 0.0), True
        if not pays and goes_on:
            hope = find_hope(
                (menu, self._coarse),
                learner,
                table,
                allowance,
                reach=reach,
                best=best,
                block=BLOCK_UPDATES,
                probe_cost=probe.cost if probe is not None else 0.0,
                least=toll,
                barred=(barred, self._guard.barred(self._coarse)),
            )
        if hope is not None and hope.pair == self.book.pair and goes_on:
            # What it has shown is only known beside the governor.
            best, probe = hope, best_probe(menu, learner, table, hope, allowance.left, BLOCK_UPDATES)
            pays = probe is not None
        if pays and probe is not None:
            self._probe(best, probe)
        elif hope is not None:
            self._explore(hope)
        elif best.pair.is_governor or best.saving <= 0.0:
            near_end = allowance.left < 4.0 * BLOCK_UPDATES
            # As long as something saved if the allowance were not spent yet, waiting for it is no reason to give up.
            affordable = table.saving[table.lost_s <= allowance.limit * table.total_s].max()
            hopeless = near_end or float(affordable) < self._settings.min_gain
            self._nothing_pays(Reason.NEAR_END if near_end else Reason.NOTHING_PAYS, hopeless=hopeless)
        else:
            self._hold(best)

    def _reach(self, menu: PoolMenu) -> tuple[float, float]:
        """How deep either clock may go: some way beyond what was tried, and always to the next clock there is."""
        found = []
        for depths, deepest in zip(menu.depths, self._learner.reach, strict=True):
            deeper = depths[depths > deepest + 1e-9]
            following = float(deeper.min()) if len(deeper) else deepest
            found.append(max(DEEPER * deepest, -math.log(self._settings.start_fraction), following))
        return found[0], found[1]

    def _probe(self, best: Choice, probe: Probe) -> None:
        known = f"loss of {best.pair} known to {100 * best.loss_sd:.2f} points"
        note = f"{BLOCK_UPDATES} updates at {probe.pair}: {known}"
        if not self._probing:
            self._held = self.book.pair
        self._contrasts += 1
        if self.state is State.SEARCH:
            self._enter(State.SEARCH, probe.pair, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, probe.pair, Reason.REFERENCE_AGE, note)
        self._probing = True

    def _explore(self, hope: Choice) -> None:
        note = f"may be better; {hope}"
        if self._contrasts < SEARCH_CONTRASTS and self.state is not State.LOCKED:
            self._enter(State.SEARCH, hope.pair, Reason.TRIAL, note)
        else:
            self._enter(State.CONFIRMATION, hope.pair, Reason.MARGIN, note)
        self._next_block(hope.pair)

    def _hold(self, best: Choice) -> None:
        note = f"{best}; {100 * self._learner.lost_share:.2f} % lost so far"
        searching = self._contrasts < SEARCH_CONTRASTS and best.pair != self._held
        if self.state is State.CALIBRATION or (searching and self.state in (State.SEARCH, State.REMEASURE)):
            self._enter(State.SEARCH, best.pair, Reason.TRIAL, note)
        elif self.state is State.SEARCH:
            self._enter(State.CONFIRMATION, best.pair, Reason.CONFIRMING, note)
        else:
            self._suspension.forgive()
            self._enter(State.LOCKED, best.pair, Reason.CONFIRMED, note)
        self._next_block(best.pair)

    def _next_block(self, pair: Pair) -> None:
        rests = self.state is State.LOCKED and pair == self._held
        self._wanted = HOLD_UPDATES if rests else BLOCK_UPDATES
        self._held, self._usable = pair, 0

    def _nothing_pays(self, reason: Reason, *, hopeless: bool) -> None:
        """The governor, and what it teaches; after a monitoring window of that, the governor for now."""
        note = "no setting saves within what is left of the allowance"
        if hopeless and self.book.pair.is_governor and self._usable >= self._settings.monitor_window:
            self._suspend(reason, note)
            return
        if self.state in (State.SEARCH, State.CALIBRATION):
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, GOVERNOR, Reason.DRIFT, note)
        if self.book.pair.is_governor:
            self._wanted = self._usable + BLOCK_UPDATES

    def _alarm(self) -> None:
        """Updates are not what they were: the governor tells whether it is the clocks or the machine."""
        pair = self.book.pair
        self._learner.doubt(pair)
        if pair.is_governor:
            self._usable = 0
            return
        self._held = pair
        note = "updates are not what they were: the governor tells whether it is the clocks"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.DRIFT, note)
        self._probing = True

    def _fail_setting(self, word: str) -> None:
        """What training learns from has suffered: these clocks are left, and not chosen again."""
        self._guard.fail(self.book.pair)
        self._held = GOVERNOR
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.LEARNING, word)

    # -- warm start ---------------------------------------------------------------------------------------------

    def posterior(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run knows of its clocks, for a later one with this key (``warm``); None if it knows nothing."""
        return leave(self._learner, key)

    def from_posterior(self, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
        """Start from an earlier run's posterior, before the first record; False, changing nothing, if it is unfit."""
        return take_up(self._learner, posterior, key)
