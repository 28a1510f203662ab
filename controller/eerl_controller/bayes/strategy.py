"""Policy ``eerl`` in the synchronous modes: learn from every usable update, decide by one rule.

Lowered clocks alternate with governor blocks in the share that the plan for the rest of the run gives the governor
(``table``, ``decision``). What the states mean here: ``SEARCH`` until lowered clocks were compared with the
governor a few times; ``CONFIRMATION`` while a setting is held that may be better, on the evidence of the next
block; ``LOCKED`` while the best one known is held; ``REMEASURE`` while the governor is, for comparison. Every
change of state goes through :meth:`_enter`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from eerl_controller.bayes.decision import COMMITTED_UPDATES, choose, find_hope
from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Axis, Menu
from eerl_controller.bayes.sample import GENERATION, TRAINING, parts_of
from eerl_controller.bayes.table import Allowance, Choice, Table
from eerl_controller.clocks import GOVERNOR, Pair, idle_clock, snap
from eerl_controller.colocated import ColocatedSync
from eerl_controller.controlled import Controlled
from eerl_controller.disaggregated import DisaggregatedSync
from eerl_controller.horizon import remaining_updates
from eerl_controller.records import ClockGrid, ExecutionMode
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.situation import REACHED, ceilings_mhz
from eerl_controller.stateful import HOLDING, Stateful
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation, Unusable

#: Usable governor updates before the first trial: their median stands two slow ones that warm-up left over.
FIRST_UPDATES = 6
#: Usable updates of a block, lowered or governor: with one, a single straggler would be all that is known.
BLOCK_UPDATES = 2
#: A lock that was just found good is not looked at again sooner, but for an alarm: half of Table 3's "every 10".
HOLD_UPDATES = 5
#: Clocks nearer than this (a log) are not worth telling apart.
LEAST_STEP = 0.02
#: A trial goes no deeper than this many times what was tried: beyond lies extrapolation.
DEEPER = 1.5
#: A change of clocks must repay as many updates: the first one after it is no evidence, and the job feels it.
CHANGE_UPDATES = 2.0
#: Alternations of lowered clocks and governor that make a search.
SEARCH_CONTRASTS = 3
#: Nothing is tried or compared any more when fewer blocks than this are left to make use of it.
LAST_PROBE_BLOCKS = 3.0
#: Updates that are left at least when nobody says how many: a fifth of the paper's runs of 500.
SHORT_RUN = 100.0
#: Share of the allowance that the first trial may take at the very worst.
FIRST_SHARE = 0.5


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
        self._first: list[Observation] = []
        self._left: float | None = None
        #: Usable updates under the clocks in force since they were wished for.
        self._usable = 0
        #: Usable updates after which something may be decided again.
        self._wanted = BLOCK_UPDATES
        #: Alternations so far.
        self._contrasts = 0
        #: The lowered clocks that a governor block interrupts.
        self._held = GOVERNOR
        #: Updates since the governor's last turn.
        self._since = 0
        #: Clocks that the governor reached in its block.
        self._reached: list[tuple[float, float]] = []
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
        elif evidence.in_force and self._usable >= (BLOCK_UPDATES if self._learner.alarmed else self._wanted):
            self._decide()

    def _count(self, evidence: Evidence, learnt: bool) -> None:
        observation = evidence.observation
        self._usable += learnt and evidence.in_force
        self._since += not self.book.pair.is_governor
        if observation is None:
            return
        self._blind = 0 if parts_of(observation) is not None else self._blind + 1
        achieved = observation.generation_achieved_mhz, observation.training_achieved_mhz
        if evidence.is_reference and achieved[0] and achieved[1]:
            self._reached = [*self._reached, (achieved[0], achieved[1])][-FIRST_UPDATES:]

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._usable = self._blind = 0
        self._wanted, self._reached = BLOCK_UPDATES, []

    # -- calibration -------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        if self._menu is not None:
            self._decide()
            return
        if self._blind >= FIRST_UPDATES:
            self._fall_back(evidence)
            return
        observation = evidence.observation
        if observation is not None and evidence.is_reference and parts_of(observation) is not None:
            self._first = [*self._first, observation][-2 * FIRST_UPDATES :]
        powered = [item for item in self._first if (p := parts_of(item)) is not None and p.joules is not None]
        if len(powered) < FIRST_UPDATES:
            reason, note = Reason.CALIBRATING, f"{len(powered)} of {FIRST_UPDATES} usable governor updates"
            if evidence.unusable is Unusable.MISSING_COUNTS:
                reason = Reason.MISSING_COUNTS
                note += "; markers bring no valid_tokens: send them to have clocks controlled"
            elif len(self._first) >= FIRST_UPDATES:
                reason, note = Reason.MISSING_ENERGY, "energy of the job, or of its phases, is not known"
            self._enter(State.CALIBRATION, GOVERNOR, reason, note)
            return
        model = self._references.model
        self._learner.begin(powered, ceilings_mhz(model, self._grid) if model else self._learner.ceilings_mhz)
        self._first = []
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
        """The settings to choose among, for the clocks that the governor reaches.

        Both axes choose among the same clocks: where they take the same one, one pool need not switch.
        """
        ceilings = self._learner.ceilings_mhz
        clocks = thinned(self._clocks, max(ceilings))
        generation, training = (
            Axis(part, clocks, mhz) for part, mhz in zip((GENERATION, TRAINING), ceilings, strict=True)
        )
        return Menu((generation, training), self._idle_mhz, one_pool=self._one_pool)

    def _governor_moved(self) -> bool:
        """Whether the governor no longer reaches the clocks that all settings are measured from."""
        if not self.book.pair.is_governor or len(self._reached) < BLOCK_UPDATES:
            return False
        for axis, ceiling in enumerate(self._learner.ceilings_mhz):
            seen = min(median(item[axis] for item in self._reached), float(self._grid.governor_mhz))
            near = seen >= REACHED * self._grid.governor_mhz and ceiling == self._grid.governor_mhz
            if not near and not REACHED <= seen / ceiling <= 1.0 / REACHED:
                return True
        return False

    def _calibrate_again(self) -> None:
        """Another governor: everything is measured anew; what the run has lost so far stays lost."""
        self._menu, self._first, self._contrasts, self._held = None, [], 0, GOVERNOR
        self._references.keep_last(BLOCK_UPDATES)
        reached = ", ".join(f"{mhz:.0f}" for mhz in self._reached[-1])
        if self.state is not State.REMEASURE:
            self._enter(State.REMEASURE, GOVERNOR, Reason.DRIFT, "the governor has changed")
        self._enter(
            State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, f"the governor now reaches {reached} MHz"
        )

    def _try_first(self) -> None:
        """Both clocks reduced (paper, section 6.1), as far as the allowance bears at the very worst."""
        fraction = self._settings.start_fraction
        allowance = self._allowance()
        budget = allowance.limit * (allowance.past_s / self._learner.outlook.total_s + allowance.left)
        while 2.0 * BLOCK_UPDATES * (1.0 / fraction - 1.0) > FIRST_SHARE * budget and fraction < 0.99:
            fraction = 1.0 - 0.7 * (1.0 - fraction)
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
        limit, past_s, left = self._settings.max_throughput_loss, self._learner.past_s, self._left
        if left is not None:
            return Allowance(limit, past_s, left, (left,))
        left = max(float(self._learner.seen), SHORT_RUN)
        return Allowance(limit, past_s, left, (COMMITTED_UPDATES, left))

    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""
        learner, menu = self._learner, self._menu
        if menu is None or not learner.known:
            return
        if learner.alarmed:
            self._alarm()
            return
        governed = self.book.pair.is_governor
        if governed and max(learner.reach) == 0.0:
            self._try_first()
            return
        allowance = self._allowance()
        reach = self._reach(menu)
        current = self._held if governed else self.book.pair
        table = Table(menu, learner)
        decided = choose(table, allowance, reach, current)
        best, here = decided.best, decided.here
        # What a change must bring: enough to be seen at all, and its toll over what is left.
        toll = CHANGE_UPDATES * best.worth
        least = max(self._settings.min_gain, toll / max(allowance.left, 1.0))
        if here is not None and best.worth - here.worth < least:
            best = here
        hope: Choice | None = None
        ending = allowance.left < LAST_PROBE_BLOCKS * (BLOCK_UPDATES + 1.0)
        probe = not governed and self._should_probe(best, ending=ending)
        if not probe and not ending:
            hope = find_hope(
                menu,
                learner,
                table,
                allowance,
                reach=reach,
                decided=decided,
                best=best,
                trial=BLOCK_UPDATES + 1.0,
                least=2.0 * toll,
            )
        if hope is not None and hope.pair == self.book.pair:
            # What it has shown is only known beside the governor.
            probe, best = True, hope
        if probe:
            self._probe(best)
        elif hope is not None:
            self._explore(hope)
        elif best.pair.is_governor or best.saving <= 0.0:
            self._nothing_pays(Reason.NOTHING_PAYS)
        else:
            self._hold(best)

    def _reach(self, menu: Menu) -> tuple[float, float]:
        """How deep either clock may go: some way beyond what was tried, and always to the next clock there is."""
        found = []
        for axis, deepest in zip(menu.axes, self._learner.reach, strict=True):
            deeper = axis.depths[axis.depths > deepest + 1e-9]
            following = float(deeper.min()) if len(deeper) else deepest
            found.append(max(DEEPER * deepest, -math.log(self._settings.start_fraction), following))
        return found[0], found[1]

    def _should_probe(self, best: Choice, *, ending: bool) -> bool:
        """Whether it is the governor's turn, by the share that the plan gives it."""
        if self._contrasts == 0:
            return True
        return not ending and best.saving > 0.0 and self._since >= turn_updates(best.governed)

    def _probe(self, best: Choice) -> None:
        note = (
            f"{BLOCK_UPDATES} governor updates: loss of {best.pair} known to {100 * best.loss_sd:.2f} points"
        )
        self._held = self.book.pair
        self._contrasts += 1
        self._since = 0
        if self.state is State.SEARCH:
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, GOVERNOR, Reason.REFERENCE_AGE, note)

    def _explore(self, hope: Choice) -> None:
        note = f"may be better; {hope}"
        if self._contrasts < SEARCH_CONTRASTS and self.state is not State.LOCKED:
            self._enter(State.SEARCH, hope.pair, Reason.TRIAL, note)
        else:
            self._enter(State.CONFIRMATION, hope.pair, Reason.MARGIN, note)
        self._next_block(hope)

    def _hold(self, best: Choice) -> None:
        note = f"{best}; {100 * self._learner.lost_share:.2f} % lost so far"
        searching = self._contrasts < SEARCH_CONTRASTS
        if searching and self.state in (State.SEARCH, State.REMEASURE):
            self._enter(State.SEARCH, best.pair, Reason.TRIAL, note)
        elif self.state in (State.CALIBRATION, State.SEARCH):
            self._enter(State.CONFIRMATION, best.pair, Reason.CONFIRMING, note)
        else:
            self._suspension.forgive()
            self._enter(State.LOCKED, best.pair, Reason.CONFIRMED, note)
        self._next_block(best)

    def _next_block(self, choice: Choice) -> None:
        rests = self.state is State.LOCKED and choice.pair == self._held
        due = math.ceil(turn_updates(choice.governed)) - self._since
        self._wanted = min(HOLD_UPDATES, max(due, 1)) if rests else BLOCK_UPDATES
        self._held, self._usable = choice.pair, 0

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
        self._held = pair
        note = "updates are not what they were: the governor tells whether it is the clocks"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.DRIFT, note)

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
            "first": [item.to_dict() for item in self._first],
            "left": self._left,
            "usable": self._usable,
            "wanted": self._wanted,
            "contrasts": self._contrasts,
            "since": self._since,
            "held": list(self._held),
            "reached": [list(item) for item in self._reached],
            "blind": self._blind,
            "fallback": self._fallback.to_dict() if self._fallback is not None else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._learner.load(values["learner"])
        self._menu = self._make_menu() if values["began"] else None
        self._first = [Observation.from_dict(item) for item in values["first"]]
        self._left, self._usable, self._wanted = values["left"], values["usable"], values["wanted"]
        self._contrasts, self._blind = values["contrasts"], values["blind"]
        self._since = values["since"]
        self._held = Pair(*values["held"])
        self._reached = [(generation, training) for generation, training in values["reached"]]
        if values["fallback"] is not None:
            self._fallback = self._trials()
            self._fallback.load(values["fallback"])
            self.book = self._fallback.book


def turn_updates(governed: float) -> float:
    """Lowered updates between two blocks of the governor's, when it has this share of all updates."""
    return (BLOCK_UPDATES + 1.0) * (1.0 - governed) / max(governed, 1e-3)


def thinned(clocks: tuple[int, ...], ceiling_mhz: float) -> list[int]:
    """The clocks below the ceiling, from the top, no nearer to each other than is worth telling apart."""
    kept: list[int] = []
    last = ceiling_mhz
    for mhz in sorted((clock for clock in clocks if clock < ceiling_mhz), reverse=True):
        if math.log(last / mhz) >= LEAST_STEP - 1e-9:
            kept.append(mhz)
            last = float(mhz)
    return kept
