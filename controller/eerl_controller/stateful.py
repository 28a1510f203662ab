"""What every strategy with a life has in common: one door for changes of state, and the governor for now.

Every method named ``_on_<state>`` takes one update in; every change of state goes through :meth:`Stateful._enter`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair, PlanBook, allowed_clocks
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.states import TRANSITIONS, Reason, State
from eerl_controller.strategy import Evidence, Strategy, no_clocks_note
from eerl_controller.suspension import Suspension
from eerl_controller.trouble import Trouble

#: States in which clocks may be lowered.
HOLDING = (State.SEARCH, State.CONFIRMATION, State.LOCKED)


class Stateful(Strategy):
    """A strategy that begins with calibration; it fails at once when there is no clock to choose."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(State.CALIBRATION, PlanBook(Reason.CALIBRATING, "governor clocks until it is known"))
        self._settings = settings
        self._grid = grid
        self._clocks = tuple(mhz for mhz in allowed_clocks(grid, settings) if mhz < grid.governor_mhz)
        self._references = references
        self._trouble = Trouble(settings)
        self._suspension = Suspension(settings)
        if not self._clocks:
            self.state = State.FAILED
            self.book = PlanBook(Reason.NO_CLOCKS, no_clocks_note(settings, grid))

    def _clocks_change(self) -> None:
        """The clocks change hands: what was counted under the old ones is over."""
        self._trouble.reset()

    def _enter(self, state: State, pair: Pair, reason: Reason, note: str) -> None:
        """The only place where the state or the clocks change."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"no way from {self.state.value} to {state.value}: a bug in the controller")
        if pair != self.book.pair:
            self._clocks_change()
        self.state = state
        self.book.wish(pair, reason, note)

    @abstractmethod
    def _on_calibration(self, evidence: Evidence) -> None:
        """One update of the governor's, until enough is known of it."""

    def _let_go(self) -> None:
        """Clocks go back to the governor for a while: what was under way is over."""

    def _suspend(self, reason: Reason, note: str) -> None:
        self._let_go()
        self._trouble.forget()
        if self._suspension.begin(reason):
            self._enter(
                State.SUSPENDED, GOVERNOR, reason, f"{note}; again in {self._suspension.left} updates"
            )
        else:
            self._enter(State.FAILED, GOVERNOR, reason, f"{note}; given up after repeated attempts")

    def _on_suspended(self, evidence: Evidence) -> None:
        due = self._suspension.count_down()
        # What is still missing would only suspend again, under lowered clocks in the meantime.
        if due and evidence.observation is not None and evidence.observation.energy_j is not None:
            note = "another attempt after " + str(self.book.plan.reason.value).replace("_", " ")
            self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, note)
            self._on_calibration(evidence)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "trouble": self._trouble.to_dict(),
            "suspension": self._suspension.to_dict(),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._trouble.load(values["trouble"])
        self._suspension.load(values["suspension"])
