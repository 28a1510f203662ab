"""What an update's counts mean as work: rounds of generation that training never saw are told apart.

Dynamic sampling generates again when too few responses are of use. Such an update holds a multiple of the usual
generated tokens beside its valid ones, waits for the longest response once a round, and trains no more than usual.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Updates over which it is known what is usual: a monitoring window (Table 3: 20).
MEMORY_UPDATES = 20


class Effort:
    """Turns token counts into work: ``generated`` (G), ``steps`` (longest response of all rounds), ``rounds``,
    ``consumed`` (tokens that training has seen, masked ones included) and ``valid`` (N).
    """

    def __init__(self) -> None:
        #: Generated tokens by valid one in the latest updates.
        self._ratios: list[float] = []

    def of(self, counts: Mapping[str, float]) -> dict[str, float]:
        """The work of an update with these counts; what is unknown is left out."""
        work = {name: counts[name] for name in ("generated", "valid") if name in counts}
        generated, valid, longest = counts.get("generated"), counts.get("valid"), counts.get("longest")
        rounds = 1.0
        if generated and valid:
            ratio = generated / valid
            self._ratios = [*self._ratios, ratio][-MEMORY_UPDATES:]
            # One round is the least there can be, and a quarter of updates need no more.
            single = sorted(self._ratios)[len(self._ratios) // 4]
            rounds = max(round(ratio / single), 1.0)
            work["rounds"] = rounds
        if generated is not None:
            work["consumed"] = generated / rounds
        if longest is not None:
            work["steps"] = longest * rounds
        return work

    def to_list(self) -> list[float]:
        """Ready for JSON."""
        return self._ratios

    def load(self, ratios: list[float]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._ratios = list(ratios)
