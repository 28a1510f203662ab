"""Governor for now: for how long, and when for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.settings import Settings
from eerl_controller.states import Reason

#: A search that found nothing took longer than a hiccup, about this many times: wait as long as it took.
NOTHING_PAYS_FACTOR = 3
#: Someone who overrules the clocks this many times will go on doing so.
NOT_HONOURED_LIMIT = 3
#: The wait no longer doubles beyond this many doublings.
MAX_DOUBLINGS = 5


class Suspension:
    """Counts suspensions and the updates until the next attempt."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begun = 0
        self._not_honoured = 0
        #: Updates until the next attempt.
        self.left = 0

    def begin(self, reason: Reason) -> bool:
        """Start waiting; False when another attempt would be in vain."""
        if reason is Reason.NOT_HONOURED:
            self._not_honoured += 1
            if self._not_honoured >= NOT_HONOURED_LIMIT:
                return False
        wait = self._settings.suspend_updates * 2 ** min(self._begun, MAX_DOUBLINGS)
        self.left = wait * (NOTHING_PAYS_FACTOR if reason is Reason.NOTHING_PAYS else 1)
        self._begun += 1
        return True

    def count_down(self) -> bool:
        """One more update under the governor; True when it is time for another attempt."""
        self.left = max(self.left - 1, 0)
        return self.left == 0

    def forgive(self) -> None:
        """A lock was reached: the next trouble is a new one. Overruled clocks are not forgotten."""
        self._begun = 0

    def to_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return {"begun": self._begun, "not_honoured": self._not_honoured, "left": self.left}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._begun = values["begun"]
        self._not_honoured = values["not_honoured"]
        self.left = values["left"]
