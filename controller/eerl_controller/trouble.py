"""Counts what stands in the way of control, and says when it has stood there too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.settings import Settings
from eerl_controller.states import Reason
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable

#: Updates in a row in which the hardware did not keep its clock: one may be a spike, three are someone's doing.
NOT_HONOURED_UPDATES = 3
#: Updates in a row that ran under another plan than the one wished for: late counts delay a plan by one or two.
NOT_APPLIED_UPDATES = 10


class Trouble:
    """Runs of updates with the same trouble while clocks are held; an operator's hold is no trouble."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Start counting again: it was acted upon."""
        self.reset()
        self.missing_energy = 0

    def reset(self) -> None:
        """The clocks have changed hands: what belonged to the old ones is over.

        Whether energy is known has nothing to do with clocks, and where they change often, nothing else would tell.
        """
        self.not_honoured = 0
        self.not_applied = 0
        self.unusable = 0
        self.missing_counts = 0

    def add(self, evidence: Evidence) -> Reason | None:
        """Count one update under held clocks; the reason to let go of them, if there is one now."""
        if evidence.unusable is Unusable.OPERATOR_HOLD:
            return None
        self.not_honoured = self.not_honoured + 1 if evidence.unusable is Unusable.NOT_HONOURED else 0
        self.not_applied = 0 if evidence.in_force else self.not_applied + 1
        self.unusable = self.unusable + 1 if evidence.observation is None else 0
        missing = evidence.unusable is Unusable.MISSING_COUNTS
        self.missing_counts = self.missing_counts + 1 if missing else 0
        self.see_energy(evidence)
        if self.not_honoured >= NOT_HONOURED_UPDATES:
            return Reason.NOT_HONOURED
        if self.not_applied >= NOT_APPLIED_UPDATES:
            return Reason.NOT_APPLIED
        limit = self._settings.give_up_updates
        if self.missing_energy >= limit:
            return Reason.MISSING_ENERGY
        if self.unusable >= limit:
            return Reason.MISSING_COUNTS if self.missing_counts >= limit else Reason.NO_EVIDENCE
        return None

    def see_energy(self, evidence: Evidence) -> None:
        """Count whether an update's energy is known; all that one under the governor's clocks tells of trouble."""
        if evidence.observation is not None:
            self.missing_energy = 0 if evidence.observation.energy_j is not None else self.missing_energy + 1

    def to_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return {
            "not_honoured": self.not_honoured,
            "not_applied": self.not_applied,
            "unusable": self.unusable,
            "missing_counts": self.missing_counts,
            "missing_energy": self.missing_energy,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.not_honoured = values["not_honoured"]
        self.not_applied = values["not_applied"]
        self.unusable = values["unusable"]
        self.missing_counts = values["missing_counts"]
        self.missing_energy = values["missing_energy"]
