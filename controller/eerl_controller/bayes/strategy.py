"""Policy ``eerl`` in the synchronous modes: learn from every usable update, decide by one rule.

Lowered clocks alternate with governor blocks in the share that the plan for the rest of the run gives the governor
(``table``, ``decision``). What the states mean here: ``SEARCH`` until lowered clocks were compared with the
governor a few times; ``CONFIRMATION`` while a setting is held that may be better, on the evidence of the next
block; ``LOCKED`` while the best one known is held; ``REMEASURE`` while the governor is, for comparison. Every
change of state goes through :meth:`_enter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.alternation import BLOCK_UPDATES, Alternation
from eerl_controller.bayes.decision import COMMITTED_UPDATES, Turn, first_fraction, next_step
from eerl_controller.bayes.first_updates import FIRST_UPDATES, FirstUpdates
from eerl_controller.bayes.governor_reach import GovernorReach
from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Menu
from eerl_controller.bayes.plan import Allowance, Choice
from eerl_controller.bayes.sample import parts_of
from eerl_controller.bayes.warm import VERSION, fits
from eerl_controller.clocks import GOVERNOR, Pair, idle_clock, snap
from eerl_controller.colocated import ColocatedSync
from eerl_controller.controlled import Controlled
from eerl_controller.disaggregated import DisaggregatedSync
from eerl_controller.horizon import remaining_updates
from eerl_controller.records import ClockGrid, ExecutionMode
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.situation import ceilings_mhz
from eerl_controller.stateful import HOLDING, Stateful
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable

#: Updates that are left at least when nobody says how many: a fifth of the paper's runs of 500.
SHORT_RUN = 100.0


class BayesSync(Stateful):
    """The controller of a synchronous job, colocated or with separate pools."""

    def __init__(
        self, settings: Settings, grid: ClockGrid, references: References, mode: ExecutionMode
    ) -> None:
        super().__init__(settings, grid, references)
        self._one_pool = mode is ExecutionMode.COLOCATED_SYNC
        self._idle_mhz = None if self._one_pool else idle_clock(grid, settings)
        top = float(grid.governor_mhz)
        self._learner = Learner((top, top), one_pool=self._one_pool)
        self._menu: Menu | None = None
        self._first = FirstUpdates()
        self._left: float | None = None
        #: Usable updates under the clocks in force since they were wished for.
        self._usable = 0
        #: Usable updates after which something may be decided again.
        self._wanted = BLOCK_UPDATES
        self._alternation = Alternation()
        self._governor_reach = GovernorReach()
        #: Updates in a row whose phases are not known.
        self._blind = 0
        #: The policy of trials, which needs no phases; None as long as there are some.
        self._fallback: Controlled | None = None

    # -- one way in --------------------------------------------------------------------------------------------

    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""
        if self._fallback is not None:
            self._fallback.observe(evidence)
            self.state = self._fallback.state
            return
        learnt = self._learner.observe(evidence, self.book.pair)
        self._count(evidence, learnt)
        if evidence.unusable is Unusable.OPERATOR_HOLD or self.state is State.FAILED:
            return
        if self.state in HOLDING and not self.book.pair.is_governor:
            reason = self._trouble.add(evidence)
            if reason is None and self._blind >= self._settings.give_up_updates:
                reason = Reason.NO_EVIDENCE
            if reason is not None:
                self._suspend(reason, "too many updates in a row; governor clocks for now")
                return
        typical_s = self._learner.outlook.total_s if self._learner.known else 0.0
        self._left = remaining_updates(evidence.record, typical_s)
        if self.state is State.CALIBRATION:
            self._on_calibration(evidence)
        elif self.state is State.SUSPENDED:
            self._on_suspended(evidence)
        elif evidence.in_force and self._governor_moved():
            self._calibrate_again()
        elif evidence.in_force and self._usable >= (
            BLOCK_UPDATES if self._learner.alarm.raised else self._wanted
        ):
            self._decide()

    def _count(self, evidence: Evidence, learnt: bool) -> None:
        self._usable += learnt and evidence.in_force
        self._alternation.count(self.book.pair)
        self._governor_reach.add(evidence)
        if evidence.observation is not None:
            self._blind = 0 if parts_of(evidence.observation) is not None else self._blind + 1

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._usable = self._blind = 0
        self._wanted = BLOCK_UPDATES
        self._governor_reach.forget()

    # -- calibration -------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        if self._menu is not None:
            self._decide()
            return
        if self._blind >= FIRST_UPDATES:
            self._fall_back(evidence)
            return
        self._first.add(evidence)
        enough = self._first.enough
        if not enough:
            self._enter(State.CALIBRATION, GOVERNOR, *self._first.missing(evidence))
            return
        model = self._references.model
        self._learner.begin(enough, ceilings_mhz(model, self._grid) if model else self._learner.ceilings_mhz)
        self._first.forget()
        self._menu = self._make_menu()
        self._try_first()

    def _fall_back(self, evidence: Evidence) -> None:
        """Phases are not told apart: whole updates under both clocks are what trials can judge."""
        self._fallback = self._trials()
        self._fallback.book = self.book
        self._fallback.observe(evidence)
        self.state = self._fallback.state

    def _trials(self) -> Controlled:
        kind = ColocatedSync if self._one_pool else DisaggregatedSync
        return kind(self._settings, self._grid, self._references)

    def _make_menu(self) -> Menu:
        """The settings to choose among, for the clocks that the governor reaches."""
        return Menu.of(self._clocks, self._learner.ceilings_mhz, self._idle_mhz, one_pool=self._one_pool)

    def _governor_moved(self) -> bool:
        """Whether the governor no longer reaches the clocks that all settings are measured from."""
        if not self.book.pair.is_governor:
            return False
        top_mhz = float(self._grid.governor_mhz)
        return self._governor_reach.moved(self._learner.ceilings_mhz, top_mhz, BLOCK_UPDATES)

    def _calibrate_again(self) -> None:
        """Another governor: everything is measured anew; what the run has lost so far stays lost."""
        self._menu = None
        self._first.forget()
        self._alternation.restart()
        self._references.keep_last(BLOCK_UPDATES)
        note = f"the governor now reaches {self._governor_reach}"
        if self.state is not State.REMEASURE:
            self._enter(State.REMEASURE, GOVERNOR, Reason.DRIFT, "the governor has changed")
        self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, note)

    def _try_first(self) -> None:
        """Both clocks reduced (paper, section 6.1), as far as the allowance bears at the very worst."""
        allowance = self._allowance()
        fraction = first_fraction(allowance, self._learner.outlook.total_s, self._settings.start_fraction)
        mhz: list[int | None] = []
        for ceiling in self._learner.ceilings_mhz:
            below = [clock for clock in self._clocks if clock < ceiling]
            mhz.append(snap(fraction * ceiling, below) if below else None)
        pair = Pair(mhz[0], mhz[1], self._idle_mhz)
        if pair.is_governor or fraction >= 0.99 or allowance.left < 4.0 * BLOCK_UPDATES:
            self._nothing_pays(Reason.NEAR_END if not pair.is_governor else Reason.NOTHING_PAYS)
        else:
            self._enter(State.SEARCH, pair, Reason.TRIAL, f"first trial: {pair}")

    # -- deciding ----------------------------------------------------------------------------------------------

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
            self._enter(State.REMEASURE, GOVERNOR, Reason.DRIFT, note)

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
        known = self._learner.posterior()
        return {"version": VERSION, "key": dict(key), **known} if known is not None else None

    def from_posterior(self, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
        """Start from an earlier run's posterior, before the first record; False, changing nothing, if it is unfit."""
        if not fits(posterior, key) or self._learner.seen:
            return False
        self._learner.warm(posterior)
        return True

    # -- words and memory --------------------------------------------------------------------------------------

    def summary(self) -> str:
        """State, clocks and what is expected of them, in one line."""
        if self._fallback is not None:
            return self._fallback.summary()
        return f"{self.state.value}: {self.book.pair}, {self.book.plan.note}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "learner": self._learner.to_dict(),
            "began": self._menu is not None,
            "first": self._first.to_list(),
            "left": self._left,
            "usable": self._usable,
            "wanted": self._wanted,
            "alternation": self._alternation.to_dict(),
            "governor_reach": self._governor_reach.to_list(),
            "blind": self._blind,
            "fallback": self._fallback.to_dict() if self._fallback is not None else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._learner.load(values["learner"])
        self._menu = self._make_menu() if values["began"] else None
        self._first.load(values["first"])
        self._left, self._usable, self._wanted = values["left"], values["usable"], values["wanted"]
        self._blind = values["blind"]
        self._alternation.load(values["alternation"])
        self._governor_reach.load(values["governor_reach"])
        if values["fallback"] is not None:
            self._fallback = self._trials()
            self._fallback.load(values["fallback"])
            self.book = self._fallback.book
