"""For frameworks with named timers: their labels → our phases, and the counts of an update as they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .. import mark


class Labels:
    """Marks phases from a framework's own labels by the table at the head of an adapter.

    Labels that are not in the table are passed over. Labels of one phase may nest: the outermost counts.
    """

    def __init__(self, phases: Mapping[str, str]) -> None:
        self._phases = phases
        self._depth: Counter[str] = Counter()

    def begin(self, label: str, update: int | None = None) -> None:
        """A timer starts."""
        phase = self._phases.get(label)
        if phase is None:
            return
        self._depth[phase] += 1
        if self._depth[phase] == 1:
            mark.begin(phase, update)

    def end(self, label: str, update: int | None = None, **counts: int | None) -> None:
        """A timer stops; one that was never started is no end of a phase."""
        phase = self._phases.get(label)
        if phase is None or not self._depth[phase]:
            return
        self._depth[phase] -= 1
        if not self._depth[phase]:
            mark.end(phase, update, **counts)

    def reset(self) -> None:
        """Forget what is open: the framework has begun anew after an exception, say."""
        self._depth.clear()


class Counts:
    """The counts of one update; rounds of generation add up, and what was unknown once stays unknown."""

    def __init__(self) -> None:
        self._sums: dict[str, int | None] = {}
        self._longest: int | None = None
        self._longest_known = True

    def add(self, **counts: int | None) -> None:
        """Sums over responses, such as ``generated_tokens``, ``valid_tokens``, ``responses``."""
        for name, value in counts.items():
            known = self._sums.get(name, 0)
            self._sums[name] = None if value is None or known is None else known + int(value)

    def longest(self, tokens: int | None) -> None:
        """The longest response of a round, in tokens."""
        if tokens is None:
            self._longest_known = False
        else:
            self._longest = max(int(tokens), self._longest or 0)

    def responses(self, lengths: Iterable[int]) -> None:
        """A round of generation by the lengths of its responses, in tokens."""
        known = [int(length) for length in lengths]
        self.add(generated_tokens=sum(known), responses=len(known))
        self.longest(max(known, default=0))

    def fields(self) -> dict[str, int]:
        """What is known, for ``mark.update``; what is not is left out and so null in the report."""
        found = {name: value for name, value in self._sums.items() if value is not None}
        if self._longest is not None and self._longest_known:
            found["longest_response_tokens"] = self._longest
        return found
