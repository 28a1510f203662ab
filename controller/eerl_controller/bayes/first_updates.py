"""The governor updates that a model begins with: how many are enough, and what is typical of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from eerl_controller.bayes.sample import GENERATION, TRAINING, Parts, Three, parts_of
from eerl_controller.bayes.time_prior import WORK
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.regression import robust_sd
from eerl_controller.states import Reason
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation, Unusable

#: Usable governor updates before the first trial: their median stands two slow ones that warm-up left over.
FIRST_UPDATES = 6


class FirstUpdates:
    """Usable governor updates, until there are enough of them with the energy of their phases."""

    def __init__(self) -> None:
        self._items: list[Observation] = []

    def add(self, evidence: Evidence) -> None:
        """One update of the governor's."""
        observation = evidence.observation
        if observation is not None and evidence.is_reference and parts_of(observation) is not None:
            self._items = [*self._items, observation][-2 * FIRST_UPDATES :]

    def forget(self) -> None:
        """Begin again."""
        self._items = []

    @property
    def enough(self) -> list[Observation]:
        """Those with energy, when they are enough to begin with; else none."""
        powered = self._powered()
        return powered if len(powered) >= FIRST_UPDATES else []

    def missing(self, evidence: Evidence) -> tuple[Reason, str]:
        """Why there are not enough, and what would help."""
        note = f"{len(self._powered())} of {FIRST_UPDATES} usable governor updates"
        if len(self._items) >= FIRST_UPDATES:
            return Reason.MISSING_ENERGY, "energy of the job, or of its phases, is not known"
        if evidence.unusable is Unusable.MISSING_COUNTS:
            return (
                Reason.MISSING_COUNTS,
                f"{note}; markers bring no valid_tokens: send them to have clocks controlled",
            )
        return Reason.CALIBRATING, note

    def _powered(self) -> list[Observation]:
        return [item for item in self._items if (p := parts_of(item)) is not None and p.joules is not None]

    def to_list(self) -> list[Any]:
        """Ready for JSON."""
        return [item.to_dict() for item in self._items]

    def load(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._items = [Observation.from_dict(item) for item in values]


@dataclass(frozen=True, slots=True)
class Typical:
    """Medians of updates: seconds and watts by part, and their work."""

    seconds: Three
    watts: Three
    work: Mapping[str, float]


def typical(parts: Sequence[Parts], work: Sequence[Mapping[str, float]]) -> Typical:
    """What is typical of these updates; of their work, what all of them tell."""
    names = [name for name in work[0] if all(name in row for row in work)]
    powered = [(found.joules, found.seconds) for found in parts if found.joules is not None]
    seconds = [median(found.seconds[part] for found in parts) for part in range(3)]
    watts = [median(j[part] / max(s[part], 1e-9) for j, s in powered) for part in range(3)]
    return Typical(
        (seconds[0], seconds[1], seconds[2]),
        (watts[0], watts[1], watts[2]),
        {name: median(row[name] for row in work) for name in names},
    )


def usual(
    parts: Sequence[tuple[Mapping[str, float], Parts]], counts: Mapping[str, float]
) -> list[tuple[Mapping[str, float], Parts]]:
    """The first updates that are near the others at equal work: the very first are slow for theirs."""
    kept = list(range(len(parts)))
    for part in (GENERATION, TRAINING):
        logs = []
        for work, found in parts:
            log = math.log(found.seconds[part])
            for name, slope, _ in WORK[part]:
                if name in counts and name in work:
                    log -= slope * (math.log1p(work[name]) - math.log1p(counts[name]))
            logs.append(log)
        middle = median(logs)
        limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
        kept = [i for i in kept if abs(logs[i] - middle) <= limit]
    return [parts[i] for i in kept] or list(parts)
