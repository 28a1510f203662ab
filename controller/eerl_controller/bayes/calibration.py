"""What policy ``eerl`` does with every synchronous update: count it, calibrate, and see when to decide.

What is decided is ``strategy``'s to say. Every change of state goes through :meth:`Stateful._enter`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.alternation import PARTIAL_TURNS, Alternation
from eerl_controller.bayes.first_updates import FIRST_UPDATES, FirstUpdates
from eerl_controller.bayes.governor_reach import GovernorReach
from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Menu
from eerl_controller.bayes.outcomes import BLOCK_UPDATES
from eerl_controller.bayes.sample import parts_of
from eerl_controller.bayes.turns import Turns
from eerl_controller.clocks import GOVERNOR, idle_clock
from eerl_controller.colocated import ColocatedSync
from eerl_controller.controlled import Controlled
from eerl_controller.disaggregated import DisaggregatedSync
from eerl_controller.horizon import remaining_updates
from eerl_controller.records import ClockGrid, ExecutionMode
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.situation import ceilings_mhz
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable


class SyncCalibration(Turns):
    """A synchronous job's controller but for its decisions."""

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
        self._alternation = Alternation(PARTIAL_TURNS)
        self._governor_reach = GovernorReach()
        #: Updates in a row whose phases are not known.
        self._blind = 0
        #: The policy of trials, which needs no phases; None as long as there are some.
        self._fallback: Controlled | None = None

    @property
    def _known(self) -> Learner:
        return self._learner

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
        blind = self._blind >= self._settings.give_up_updates
        if self._in_trouble(evidence, Reason.NO_EVIDENCE if blind else None):
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
        governed = evidence.pair is not None and evidence.pair.is_governor
        lowered = self.book.pair.is_lowered and not self._probing
        self._alternation.count(lowered=lowered, reference=governed and learnt)
        if evidence.observation is not None:
            if learnt and evidence.in_force and evidence.pair is not None:
                self._governor_reach.add(evidence.pair, evidence.observation)
            self._blind = 0 if parts_of(evidence.observation) is not None else self._blind + 1

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._blind = 0
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

    @abstractmethod
    def _try_first(self) -> None:
        """Enough is known of the governor: the first trial."""

    @abstractmethod
    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""

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
        self._blind = values["blind"]
        self._governor_reach.load(values["governor_reach"])
        if values["fallback"] is not None:
            self._fallback = self._trials()
            self._fallback.load(values["fallback"])
            self.book = self._fallback.book
