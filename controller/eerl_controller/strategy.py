"""What every execution mode's strategy has in common, and the two that need no evidence.

A strategy turns evidence into plans for one execution mode. Those with a life are built on ``stateful``: the trials
of policy ``paper`` on ``controlled``, one module a mode, and the model of policy ``eerl`` in ``bayes``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair, PlanBook, allowed_clocks, idle_clock, snap
from eerl_controller.records import ClockGrid, UpdateRecord
from eerl_controller.settings import Settings
from eerl_controller.states import Reason, State
from eerl_controller.work import Observation, Unusable


@dataclass(frozen=True, slots=True)
class Evidence:
    """A record made ready: whose plan it ran under and what it can be used for."""

    record: UpdateRecord
    #: The update's own work; None when ``unusable`` says why not.
    observation: Observation | None
    unusable: Unusable | None
    #: The clocks it ran under; None when mixed.
    pair: Pair | None
    #: Whether it ran under the plan that is wished for now.
    in_force: bool
    #: Whether clocks had not just changed (``Settings.settle_updates``).
    settled: bool
    #: Whether its time tells of its clocks: settled, or so long that it does all the same (``settling``).
    timed: bool
    #: Whether updates were lost just before it.
    after_gap: bool
    #: How many were, as far as update numbers tell.
    lost: int
    #: Whether it has just become a governor reference.
    is_reference: bool


class Strategy(ABC):
    """Decides the next plan; its state and its plan book are all it remembers."""

    def __init__(self, state: State, book: PlanBook) -> None:
        self.state = state
        self.book = book

    @abstractmethod
    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""

    @abstractmethod
    def summary(self) -> str:
        """What is going on, in a few words for one line of progress."""

    def posterior(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this run knows of its clocks, for a later one with this key (``bayes.warm``), if anything."""
        return None

    def from_posterior(self, posterior: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
        """Start from an earlier run's posterior, before the first record; False, changing nothing, if it is unfit."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"state": self.state.value, "book": self.book.to_dict()}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.state = State(values["state"])
        self.book.load(values["book"])


class Constant(Strategy):
    """Keeps its first plan: measuring only, or fixed clocks."""

    def observe(self, evidence: Evidence) -> None:
        """Nothing an update could show changes the plan."""

    def summary(self) -> str:
        """The plan and why."""
        return f"{self.state.value}: {self.book.pair}, {self.book.plan.note}"


def measure_only(reason: Reason, note: str) -> Constant:
    """A strategy that leaves every clock to the governor."""
    return Constant(State.MEASURE_ONLY, PlanBook(reason, note))


def fixed(settings: Settings, grid: ClockGrid, *, pools_wait: bool = False) -> Strategy:
    """A strategy that holds the settings' fixed clocks, snapped to supported ones and clamped to the limits.

    ``pools_wait``: pools wait for each other, so the idle clock belongs to the plan.
    """
    clocks = allowed_clocks(grid, settings)
    wanted = Pair(settings.fixed_generation_mhz, settings.fixed_training_mhz)
    if not clocks and wanted != GOVERNOR:
        return Constant(State.FAILED, PlanBook(Reason.NO_CLOCKS, no_clocks_note(settings, grid)))
    generation_mhz, training_mhz = (None if mhz is None else snap(mhz, clocks) for mhz in wanted.phases)
    pair = Pair(generation_mhz, training_mhz, idle_clock(grid, settings) if pools_wait else None)
    changed = [
        f"{name} {asked} MHz became {given} MHz"
        for name, asked, given in zip(("generation", "training"), wanted.phases, pair.phases, strict=True)
        if asked != given
    ]
    note = "clocks of the policy file" + (f"; {', '.join(changed)}, the nearest allowed" if changed else "")
    return Constant(State.FIXED, PlanBook(Reason.POLICY_FIXED, note, pair))


def no_clocks_note(settings: Settings, grid: ClockGrid) -> str:
    """Why there is no clock to choose."""
    low, high = grid.supported_mhz[0], grid.supported_mhz[-1]
    return (
        f"no supported clock ({low} to {high} MHz) lies within min_mhz {settings.min_mhz} and "
        f"max_mhz {settings.max_mhz} and below the governor's {grid.governor_mhz} MHz"
    )
