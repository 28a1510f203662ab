"""How many tokens the batch had that an update trained on, masked ones included, as far as records tell.

A record counts what was generated *during* its update. A drained update trains on what the one before it generated.
In-flight that is so only while generation waits: then it is exactly as many batches ahead as requests may be old, and
what it generates between two such moments is one batch, consumed as many updates later.
"""

from __future__ import annotations

from typing import Any

from eerl_controller.bayes.backlog import LEAST_WAIT, OLDEST
from eerl_controller.bayes.effort import Effort
from eerl_controller.bayes.sides import GENERATION, Sides
from eerl_controller.records import ExecutionMode


class Consumed:
    """Remembers what the latest updates generated."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._drained = mode is ExecutionMode.ASYNC_DRAINED
        #: By update: tokens generated, and whether generation was as far ahead as it may be at its end.
        self._latest: dict[int, tuple[float, bool]] = {}
        self._effort = Effort()

    def generated(self, update: int, tokens: float | None, sides: Sides | None) -> None:
        """Note what an update generated; updates come in order."""
        if tokens:
            ahead = sides is not None and sides.waits_s[GENERATION] > LEAST_WAIT * sides.running_s
            self._latest = {**self._latest, update: (tokens, ahead)}
            self._latest = {n: self._latest[n] for n in sorted(self._latest)[-OLDEST - 1 :]}

    def by(self, update: int, age: float, valid: float | None) -> float | None:
        """Tokens that an update trained on, with requests as old as ``age`` and so many valid tokens."""
        tokens = self._batch(update - max(round(min(age, OLDEST - 1)), 1))
        if not tokens or not valid:
            return None
        # Rounds of generation that training never saw are no part of the batch.
        return self._effort.of({"generated": tokens, "valid": valid})["consumed"]

    def _batch(self, update: int) -> float | None:
        """Tokens of the batch that this update generated; None when it was not just one."""
        tokens, ahead = self._latest.get(update, (None, False))
        _, before = self._latest.get(update - 1, (None, False))
        return tokens if self._drained or (ahead and before) else None

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        latest = [[update, tokens, ahead] for update, (tokens, ahead) in self._latest.items()]
        return [latest, self._effort.to_list()]

    def load(self, values: list[Any]) -> None:
        """Take over what :meth:`to_list` wrote."""
        latest, ratios = values
        self._latest = {int(update): (tokens, bool(ahead)) for update, tokens, ahead in latest}
        self._effort.load(ratios)
