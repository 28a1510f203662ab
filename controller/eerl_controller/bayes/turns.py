"""The life of policy ``eerl`` in every mode: lowered clocks and the governor take turns, as the plan gives them.

What the states mean: ``SEARCH`` until lowered clocks were compared with the governor a few times; ``CONFIRMATION``
while a setting is held that may be better, on the evidence of the next block; ``LOCKED`` while the best one known is
held; ``REMEASURE`` while the governor is, for comparison.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from eerl_controller.bayes.alternation import Alternation
from eerl_controller.bayes.decision import COMMITTED_UPDATES, Turn, next_step
from eerl_controller.bayes.outcomes import BLOCK_UPDATES, Hope, Outcomes
from eerl_controller.bayes.plan import Allowance, Choice
from eerl_controller.bayes.warm import Knowing, leave, take_up
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.stateful import Stateful
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence

#: Updates that are left at least when nobody says how many: a fifth of the paper's runs of 500.
SHORT_RUN = 100.0


class Known(Knowing, Protocol):
    """What a life needs of the model that it learns with."""

    @property
    def past_s(self) -> float:
        """Seconds that the run has taken."""

    @property
    def reach(self) -> Sequence[float]:
        """How deep either clock has been while it could be learnt from, as a log below the governor's."""

    @property
    def lost_share(self) -> float:
        """What lowered clocks are believed to have cost so far, as a share of the run's time."""

    def doubt(self, pair: Pair) -> None:
        """The machine, or what these clocks cost, may have changed."""


class Turns(Stateful):
    """Whose turn it is, and for how long."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(settings, grid, references)
        self._left: float | None = None
        #: Usable updates under the clocks in force since they were wished for.
        self._usable = 0
        #: Usable updates after which something may be decided again.
        self._wanted = BLOCK_UPDATES
        self._alternation = Alternation()
        #: Whether the wish is a probe: the governor's clocks, or some of them, for comparison.
        self._probing = False

    @property
    @abstractmethod
    def _known(self) -> Known:
        """The model."""

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._usable, self._wanted, self._probing = 0, BLOCK_UPDATES, False

    def _in_trouble(self, evidence: Evidence, blind: Reason | None) -> bool:
        """Whether evidence has been missing for so long that clocks go back to the governor for now, as they then do.

        ``blind``: what has been missing of the model's own too long, if anything.
        """
        if self.book.pair.is_governor:
            self._trouble.see_energy(evidence)
            return False
        reason = self._trouble.add(evidence) or blind
        if reason is not None:
            self._suspend(reason, "too many updates in a row; governor clocks for now")
        return reason is not None

    def _allowance(self) -> Allowance:
        """What may be lost. When nobody says how long the run will be, it is taken to last as long again as it has
        lasted, and no less than a short run does; what was lost must then be within the limit at any time.
        """
        limit, past_s, left = self._settings.allowed_loss, self._known.past_s, self._left
        if left is not None:
            return Allowance(limit, past_s, left, (left,))
        left = max(float(self._known.seen), SHORT_RUN)
        return Allowance(limit, past_s, left, (COMMITTED_UPDATES, left))

    def _next(self, outcomes: Callable[[Hope | None], Outcomes], *, probing: bool) -> None:
        """Decide by the plan for the rest of the run, and do it; the clocks in force are a probe if ``probing``."""
        step = next_step(
            outcomes,
            self._known.reach,
            self._alternation,
            self._allowance(),
            self.book.pair,
            self._settings,
            probing=probing,
        )
        if step.turn is Turn.PROBE:
            self._probe(step.choice)
        elif step.turn is Turn.EXPLORE:
            self._explore(step.choice)
        elif step.turn is Turn.HOLD:
            self._hold(step.choice)
        else:
            self._nothing_pays(Reason.NOTHING_PAYS)

    def _probe(self, best: Choice) -> None:
        probe = GOVERNOR if self._alternation.reference_due else best.probe
        known = f"loss of {best.pair} known to {100 * best.loss_sd:.2f} points"
        note = f"{BLOCK_UPDATES} updates at {probe}: {known}"
        self._alternation.interrupt(self._interrupted, probe)
        if self.state is State.SEARCH:
            self._enter(State.SEARCH, probe, Reason.BETWEEN_TRIALS, note)
        else:
            self._enter(State.REMEASURE, probe, Reason.REFERENCE_AGE, note)
        self._probing = True

    @property
    def _interrupted(self) -> Pair:
        """What a probe that begins now interrupts: a probe under way has interrupted it before."""
        return self._alternation.held if self._probing else self.book.pair

    def _explore(self, hope: Choice) -> None:
        note = f"may be better; {hope}"
        if self._alternation.searching and self.state is not State.LOCKED:
            self._enter(State.SEARCH, hope.pair, Reason.TRIAL, note)
        else:
            self._enter(State.CONFIRMATION, hope.pair, Reason.MARGIN, note)
        self._next_block(hope)

    def _hold(self, best: Choice) -> None:
        note = f"{best}; {100 * self._known.lost_share:.2f} % lost so far"
        # What is held again has been found, however few contrasts with the governor that took.
        again = best.pair == self._alternation.held
        searching = (
            self._alternation.searching and self.state in (State.SEARCH, State.REMEASURE) and not again
        )
        if searching or (self.state is State.CALIBRATION and self._alternation.untried):
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
        # A probe of one phase may prove the better setting: its clocks stay, and it is a probe no more.
        self._alternation.held, self._usable, self._probing = choice.pair, 0, False

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
        self._known.doubt(pair)
        if pair.is_governor:
            self._usable = 0
            return
        self._alternation.held = self._interrupted
        note = "updates are not what they were: the governor tells whether it is the clocks"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.DRIFT, note)
        self._probing = True

    # -- warm start ---------------------------------------------------------------------------------------------

    def posterior(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run knows of its clocks, for a later one with this key (``warm``); None if it knows nothing."""
        return leave(self._known, key)

    def from_posterior(self, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
        """Start from an earlier run's posterior, before the first record; False, changing nothing, if it is unfit."""
        return take_up(self._known, posterior, key)

    # -- memory -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "left": self._left,
            "usable": self._usable,
            "wanted": self._wanted,
            "probing": self._probing,
            "alternation": self._alternation.to_dict(),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._left, self._usable, self._wanted = values["left"], values["usable"], values["wanted"]
        self._probing = values["probing"]
        self._alternation.load(values["alternation"])
