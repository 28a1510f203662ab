"""What policy ``eerl`` does with every update of two overlapping pools: count it, calibrate, and see when to decide.

What is decided is ``pool_strategy``'s to say. Every change of state goes through :meth:`Stateful._enter`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.governor_reach import GovernorReach
from eerl_controller.bayes.guard import Guard
from eerl_controller.bayes.look import Look
from eerl_controller.bayes.outcomes import BLOCK_UPDATES
from eerl_controller.bayes.pool_learner import PoolLearner
from eerl_controller.bayes.pool_menu import PoolMenu
from eerl_controller.bayes.turns import Turns
from eerl_controller.clocks import GOVERNOR, idle_clock
from eerl_controller.horizon import remaining_updates
from eerl_controller.records import ClockGrid, ExecutionMode
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.settling import tells_at_once
from eerl_controller.situation import ceilings_mhz
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable

#: Usable governor updates before the first trial: their median stands two slow ones that warm-up left over.
FIRST_UPDATES = 6


class PoolCalibration(Turns):
    """An asynchronous job's controller but for its decisions."""

    def __init__(
        self, settings: Settings, grid: ClockGrid, references: References, mode: ExecutionMode
    ) -> None:
        super().__init__(settings, grid, references)
        self._mode = mode
        # In-flight pools never wait long enough for an idle clock (paper, section 6.3).
        self._idle_mhz = idle_clock(grid, settings) if mode is ExecutionMode.ASYNC_DRAINED else None
        self._learner = PoolLearner(mode, float(grid.governor_mhz))
        self._menu: PoolMenu | None = None
        self._guard = Guard(float(grid.governor_mhz))
        self._first: list[Look] = []
        #: Updates in a row under the plan of the latest.
        self._run_length, self._run_plan = 0, -1
        self._governor_reach = GovernorReach()
        #: Updates in a row whose sides are not known.
        self._blind = 0

    @property
    def _known(self) -> PoolLearner:
        return self._learner

    # -- one way in --------------------------------------------------------------------------------------------

    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""
        settled = self._is_settled(evidence)
        timed = settled or (evidence.pair is not None and tells_at_once(evidence.record))
        learnt = self._learner.observe(evidence, self.book.pair, settled=settled, timed=timed)
        self._count(evidence, learnt=learnt, settled=settled)
        if evidence.unusable is Unusable.OPERATOR_HOLD or self.state is State.FAILED:
            return
        blind = self._blind >= self._settings.give_up_updates
        if self._in_trouble(evidence, self._blind_reason if blind else None):
            return
        typical_s = self._learner.recent.total_s if self._learner.known else 0.0
        self._left = remaining_updates(evidence.record, typical_s)
        if self.state is State.CALIBRATION:
            self._on_calibration(evidence)
        elif self.state is State.SUSPENDED:
            self._on_suspended(evidence)
        elif evidence.in_force and self._governor_moved():
            self._calibrate_again()
        elif self._menu is not None and (word := self._guard.verdict(self.book.pair)) is not None:
            self._fail_setting(word)
        elif evidence.in_force and self._usable >= (BLOCK_UPDATES if self._learner.alarmed else self._wanted):
            self._decide()

    @property
    def _blind_reason(self) -> Reason:
        drained = self._mode is ExecutionMode.ASYNC_DRAINED
        return Reason.MISSING_ARRIVALS if drained else Reason.MISSING_BUSY

    def _is_settled(self, evidence: Evidence) -> bool:
        """Whether the update ran wholly under its plan's clocks.

        In-flight, requests of an earlier plan do no harm: what is learnt from is a pool's pace under its clock, and
        that belongs to the update, whenever its requests began.
        """
        plan_id = evidence.record.plan_id
        if evidence.pair is None or plan_id is None or plan_id != self._run_plan:
            self._run_length = 0
        self._run_plan = -1 if plan_id is None or evidence.pair is None else int(plan_id)
        self._run_length += 1
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            return evidence.settled
        return evidence.pair is not None and self._run_length > self._settings.settle_updates

    def _count(self, evidence: Evidence, *, learnt: bool, settled: bool) -> None:
        observation = evidence.observation
        self._usable += learnt and evidence.in_force
        governed = evidence.pair is not None and evidence.pair.is_governor
        lowered = self.book.pair.is_lowered and not self._probing
        self._alternation.count(lowered=lowered, reference=governed and learnt)
        if observation is None:
            return
        self._blind = 0 if self._learner.look is not None else self._blind + 1
        if evidence.pair is not None and ((learnt and settled) or (governed and evidence.settled)):
            self._guard.add(evidence.pair, evidence.record)
        if learnt and evidence.in_force and evidence.pair is not None:
            self._governor_reach.add(evidence.pair, observation)

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._blind = 0
        self._governor_reach.forget()

    # -- calibration -------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        if self._menu is not None:
            self._decide()
            return
        observation, look = evidence.observation, self._learner.look
        powered = look is not None and look.sides.busy_j is not None
        governed = evidence.pair is not None and evidence.pair.is_governor
        warm = self._run_length > (self._settings.warmup_updates if evidence.record.plan_id == 0 else 1)
        if look is not None and powered and governed and warm:
            self._first = [*self._first, look][-2 * FIRST_UPDATES :]
        if len(self._first) < FIRST_UPDATES:
            reason, note = (
                Reason.CALIBRATING,
                f"{len(self._first)} of {FIRST_UPDATES} usable governor updates",
            )
            if evidence.unusable is Unusable.MISSING_COUNTS:
                reason = Reason.MISSING_COUNTS
                note += "; markers bring no valid_tokens: send them to have clocks controlled"
            elif observation is not None and observation.energy_j is None:
                reason, note = Reason.MISSING_ENERGY, "energy of the job is not known"
            elif self._blind >= FIRST_UPDATES:
                reason, note = self._blind_reason, self._blind_note
            elif look is not None and not powered:
                reason, note = Reason.MISSING_ENERGY, "energy of the pools, or of their phases, is not known"
            self._enter(State.CALIBRATION, GOVERNOR, reason, note)
            return
        self._learner.begin(self._first, self._ceilings())
        self._first = []
        self._menu = self._make_menu()
        self._decide()

    @property
    def _blind_note(self) -> str:
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            return (
                f"{self._blind} updates do not tell when both pools arrived, within the update; phases of both "
                "pools are needed to have clocks controlled"
            )
        return (
            "busy fractions of both pools are not known: markers of both are needed to have clocks controlled"
        )

    def _ceilings(self) -> tuple[float, float]:
        """The clocks that the governor really reaches, from the references or else its latest updates."""
        model = self._references.model
        return ceilings_mhz(model, self._grid) if model is not None else self._learner.ceilings_mhz

    def _make_menu(self) -> PoolMenu:
        """The settings to choose among, for the clocks that the governor reaches."""
        ceilings = self._learner.ceilings_mhz
        top_mhz = float(self._grid.governor_mhz)
        return PoolMenu(self._clocks, ceilings, top_mhz, self._idle_mhz)

    def _governor_moved(self) -> bool:
        """Whether the governor no longer reaches the clocks, or the pace, that all settings are measured from."""
        governed = self.book.pair.is_governor and self._usable >= BLOCK_UPDATES
        if governed and self._learner.known and self._learner.outdated:
            return True
        top_mhz = float(self._grid.governor_mhz)
        return self._governor_reach.moved(self._learner.ceilings_mhz, top_mhz, BLOCK_UPDATES)

    def _calibrate_again(self) -> None:
        """Another governor: everything is measured anew; what the run has lost so far stays lost."""
        self._menu, self._first = None, []
        self._alternation.restart()
        self._references.keep_last(BLOCK_UPDATES)
        note = f"the governor now reaches {self._governor_reach}"
        if self._learner.outdated:
            note = "updates take more than twice as long as before, under the governor too"
        if self.state is not State.REMEASURE:
            self._enter(State.REMEASURE, GOVERNOR, Reason.DRIFT, "the governor has changed")
        self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, note)

    @abstractmethod
    def _decide(self) -> None:
        """A block is over, or the governor has been long enough: what comes next."""

    @abstractmethod
    def _fail_setting(self, word: str) -> None:
        """What training learns from has suffered under the clocks in force."""

    # -- words and memory --------------------------------------------------------------------------------------

    def summary(self) -> str:
        """State, clocks and what is expected of them, in one line."""
        return f"{self.state.value}: {self.book.pair}, {self.book.plan.note}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "learner": self._learner.to_dict(),
            "guard": self._guard.to_dict(),
            "began": self._menu is not None,
            "first": [look.to_list() for look in self._first],
            "run_length": self._run_length,
            "run_plan": self._run_plan,
            "governor_reach": self._governor_reach.to_list(),
            "blind": self._blind,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._learner.load(values["learner"])
        self._guard.load(values["guard"])
        self._menu = self._make_menu() if values["began"] else None
        self._first = [Look.from_list(item) for item in values["first"]]
        self._run_length, self._run_plan = values["run_length"], values["run_plan"]
        self._blind = values["blind"]
        self._governor_reach.load(values["governor_reach"])
