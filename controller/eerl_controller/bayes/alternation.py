"""Whose turn it is: lowered clocks alternate with governor blocks in the share that the plan gives the governor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eerl_controller.bayes.plan import Choice
from eerl_controller.clocks import GOVERNOR, Pair

#: A lock that was just found good is not looked at again sooner, but for an alarm: half of Table 3's "every 10".
HOLD_UPDATES = 5
#: However sure a plan is, the governor has a turn after so many updates: reward, policy age and what the report says
#: are compared with it. Two updates of 100 cost 2 % of what is saved.
REFERENCE_UPDATES = 100
#: Where phases take turns, so many turns in which one stays lowered are followed by one that is wholly the
#: governor's: power that drifts for a while is only seen for what it is where the governor is met again and again.
#: Where pools overlap that costs what is free, and is left to the updates above.
PARTIAL_TURNS = 2
#: Alternations of lowered clocks and governor that make a search.
SEARCH_CONTRASTS = 3


class Alternation:
    """What was held when the governor last had its turn, and since when it has not had one."""

    def __init__(self, partial_turns: float = math.inf) -> None:
        self._partial_turns = partial_turns
        #: The lowered clocks that a governor block interrupts.
        self.held = GOVERNOR
        self._contrasts = 0
        self._since = 0
        #: Updates since the latest one to learn from that was wholly the governor's.
        self._unreferenced = 0
        #: Turns since then in which a clock stayed lowered.
        self._partial = 0

    @property
    def searching(self) -> bool:
        """Whether lowered clocks were compared with the governor a few times only."""
        return self._contrasts < SEARCH_CONTRASTS

    @property
    def untried(self) -> bool:
        """Whether lowered clocks were never compared with the governor."""
        return self._contrasts == 0

    def restart(self) -> None:
        """Another governor: what was compared with the old one tells nothing."""
        self.held, self._contrasts = GOVERNOR, 0

    @property
    def reference_due(self) -> bool:
        """Whether the governor was last wholly seen too long ago."""
        return self._unreferenced >= REFERENCE_UPDATES or self._partial >= self._partial_turns

    def count(self, *, lowered: bool, reference: bool) -> None:
        """One more update, lowered or not; ``reference``: wholly the governor's, and usable."""
        self._since += lowered
        self._unreferenced = 0 if reference else self._unreferenced + 1

    def governors_turn(self, best: Choice, *, ending: bool) -> bool:
        """Whether it is the governor's turn, by the share that the plan gives it."""
        if self.untried:
            return True
        due = self._unreferenced >= REFERENCE_UPDATES or self._since >= lowered_updates(best)
        return not ending and best.saving > 0.0 and due

    def interrupt(self, held: Pair, probe: Pair) -> None:
        """The governor has its turn, wholly or, under ``probe``, in part; ``held`` comes back after it."""
        self.held = held
        self._partial = 0 if probe.is_governor else self._partial + 1
        self._contrasts += 1
        self._since = 0

    def rest_updates(self, choice: Choice) -> int:
        """Updates for which a lock goes on before it is looked at again."""
        due = math.ceil(lowered_updates(choice)) - self._since
        return min(HOLD_UPDATES, max(due, 1))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "held": list(self.held),
            "contrasts": self._contrasts,
            "since": self._since,
            "unreferenced": self._unreferenced,
            "partial": self._partial,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.held = Pair(*values["held"])
        self._contrasts, self._since = values["contrasts"], values["since"]
        self._unreferenced, self._partial = values["unreferenced"], values["partial"]


def lowered_updates(choice: Choice) -> float:
    """Lowered updates between two turns of the governor's, when it has the share that the plan gives it."""
    return choice.turn_updates * (1.0 - choice.governed) / max(choice.governed, 1e-3)
