"""The clocks that the governor reaches in its present block, beside those that settings are measured from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from eerl_controller.situation import REACHED
from eerl_controller.work import Observation

#: Latest updates of the block that are kept: as many as a model begins with.
MEMORY_UPDATES = 6


class GovernorReach:
    """Achieved clocks of generation and training in MHz, by governor update."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def forget(self) -> None:
        """Another block begins."""
        self._seen = []

    def add(self, observation: Observation) -> None:
        """One update of the governor's."""
        generation_mhz, training_mhz = observation.generation_achieved_mhz, observation.training_achieved_mhz
        if generation_mhz and training_mhz:
            self._seen = [*self._seen, (generation_mhz, training_mhz)][-MEMORY_UPDATES:]

    def __len__(self) -> int:
        return len(self._seen)

    def moved(self, ceilings_mhz: tuple[float, float], top_mhz: float, least: int) -> bool:
        """Whether at least ``least`` updates show that the governor no longer reaches what it did."""
        if len(self._seen) < least:
            return False
        for axis, ceiling in enumerate(ceilings_mhz):
            # Of two the higher one: the first may still hold some of the lowered clocks before.
            seen = min(median_high(item[axis] for item in self._seen), top_mhz)
            near = seen >= REACHED * top_mhz and ceiling == top_mhz
            if not near and not REACHED <= seen / ceiling <= 1.0 / REACHED:
                return True
        return False

    def __str__(self) -> str:
        return ", ".join(f"{mhz:.0f}" for mhz in self._seen[-1]) + " MHz" if self._seen else "unknown"

    def to_list(self) -> list[list[float]]:
        """Ready for JSON."""
        return [list(item) for item in self._seen]

    def load(self, values: Sequence[Sequence[float]]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._seen = [(generation, training) for generation, training in values]
