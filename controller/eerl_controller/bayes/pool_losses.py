"""What lowered clocks cost a run whose pools overlap, update by update, as far as that is known at the time."""

from __future__ import annotations

import math

from eerl_controller.bayes.paces import Paces
from eerl_controller.bayes.recent import Latest, Recent
from eerl_controller.bayes.sides import GENERATION, REST, Lowered, Sides, Two
from eerl_controller.records import ExecutionMode


class Losses:
    """Accounts for updates with the model of time, which corrects them by what it learns later."""

    def __init__(self, mode: ExecutionMode, paces: Paces, recent: Recent) -> None:
        self._mode, self._paces, self._recent = mode, paces, recent

    def account(self, sides: Sides, setting: Lowered, validation_s: float, newest: Latest | None) -> None:
        """What an update's clocks cost, whether it is evidence or not."""
        slow = self._paces.slow(setting)
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            generation_s, training_s = (sides.seconds[axis] * math.exp(-slow[axis]) for axis in (0, 1))
            governor_s = max(generation_s, training_s)
            critical = (governor_s, 0.0) if generation_s >= training_s else (0.0, governor_s)
        else:
            knee = self._recent.knee
            scale = sides.running_s / float(knee.at(slow[0], slow[1]).running_s)
            own, other = knee.governed.critical_s
            critical = (scale * float(own), scale * float(other))
            governor_s = sum(critical)
            if newest is not None:
                newest.accounted = (slow[0], slow[1], sides.running_s - governor_s)
        self._account(critical, sides.running_s - governor_s, sides.seconds[REST], setting, validation_s)

    def account_typically(self, updates: float, setting: Lowered, validation_s: float) -> None:
        """The same for updates of which nothing is known but their setting."""
        if setting.is_governor:
            return
        knee, slow = self._recent.knee, self._paces.slow(setting)
        own, other = knee.governed.critical_s
        more_s = float(knee.at(slow[0], slow[1]).running_s - knee.governed.running_s)
        rest_s = self._recent.rest_s * math.exp(slow[REST])
        critical = (updates * float(own), updates * float(other))
        self._account(critical, updates * more_s, updates * rest_s, setting, validation_s)

    def _account(
        self, critical_s: Two, more_s: float, rest_s: float, setting: Lowered, validation_s: float
    ) -> None:
        slow = self._paces.slow(setting)
        rest_governor_s = rest_s * math.exp(-slow[REST])
        validated_s = validation_s * math.exp(-slow[GENERATION])
        more_s += (rest_s - rest_governor_s) + (validation_s - validated_s)
        governor_s = (critical_s[0] + validated_s, critical_s[1], rest_governor_s)
        self._paces.lose(governor_s, more_s, setting)
