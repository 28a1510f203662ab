"""The clocks that the governor reaches in its present block, beside those that settings are measured from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from eerl_controller.clocks import Pair
from eerl_controller.situation import REACHED
from eerl_controller.work import Observation

#: Latest updates of the block that are kept: as many as a model begins with.
MEMORY_UPDATES = 6


class GovernorReach:
    """Achieved clocks of generation and of training in MHz, by update in which they were left to the governor."""

    def __init__(self) -> None:
        self._seen: list[list[float]] = [[], []]

    def forget(self) -> None:
        """Another block begins."""
        self._seen = [[], []]

    def add(self, pair: Pair, observation: Observation) -> None:
        """One update under these clocks; a lowered one tells nothing of the governor's."""
        reached = observation.generation_achieved_mhz, observation.training_achieved_mhz
        for axis, (asked, mhz) in enumerate(zip(pair.phases, reached, strict=True)):
            if asked is None and mhz:
                self._seen[axis] = [*self._seen[axis], mhz][-MEMORY_UPDATES:]

    def moved(self, ceilings_mhz: tuple[float, float], top_mhz: float, least: int) -> bool:
        """Whether at least ``least`` updates show that the governor no longer reaches what it did."""
        for reached, ceiling in zip(self._seen, ceilings_mhz, strict=True):
            if len(reached) < least:
                continue
            # Of two the higher one: the first may still hold some of the lowered clocks before.
            seen = min(median_high(reached), top_mhz)
            near = seen >= REACHED * top_mhz and ceiling == top_mhz
            if not near and not REACHED <= seen / ceiling <= 1.0 / REACHED:
                return True
        return False

    def __str__(self) -> str:
        return ", ".join(f"{seen[-1]:.0f} MHz" if seen else "unknown" for seen in self._seen)

    def to_list(self) -> list[list[float]]:
        """Ready for JSON."""
        return [list(reached) for reached in self._seen]

    def load(self, values: Sequence[Sequence[float]]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._seen = [list(reached) for reached in values]
