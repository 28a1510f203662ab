"""Updates collected under one setting until there are enough to judge it, or it is plain that there will not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.clocks import Pair
from eerl_controller.comparison import comparable, without_stragglers
from eerl_controller.governor import GovernorModel
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation

#: An experiment that saw this many times the updates it wanted without getting them will not get them.
PATIENCE = 3


class Experiment:
    """A trial or a confirmation of ``pair``, wanting ``wanted`` usable updates."""

    def __init__(self, pair: Pair, wanted: int) -> None:
        self.pair = pair
        self.wanted = wanted
        self.observations: list[Observation] = []
        #: Updates that ran under the setting, and how many of them lay outside the references' range.
        self.seen = 0
        self.outside = 0

    def add(self, evidence: Evidence, model: GovernorModel) -> None:
        """Take in an update that ran under the setting. A gap before it breaks the series: it starts again."""
        if evidence.after_gap:
            self.observations.clear()
        self.seen += 1
        observation = evidence.observation
        if observation is None or not evidence.settled or not comparable(model, observation):
            return
        if not model.covers(observation.counts):
            self.outside += 1
            return
        self.observations.append(observation)

    def evidence(self, model: GovernorModel) -> list[Observation]:
        """The updates that count, stragglers left out."""
        return without_stragglers(model, self.observations)

    def is_complete(self, model: GovernorModel) -> bool:
        """Whether enough updates count, at least half of them with energy."""
        good = self.evidence(model)
        powered = sum(item.energy_j is not None for item in good)
        return len(good) >= self.wanted and 2 * powered >= self.wanted

    @property
    def is_hopeless(self) -> bool:
        """Whether the setting ran long enough for enough evidence, had there been any."""
        return self.seen >= PATIENCE * self.wanted + 2

    @property
    def is_powerless(self) -> bool:
        """Whether there are updates that would count, but the energy of none is known."""
        return bool(self.observations) and all(item.energy_j is None for item in self.observations)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pair": list(self.pair),
            "wanted": self.wanted,
            "observations": [item.to_dict() for item in self.observations],
            "seen": self.seen,
            "outside": self.outside,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """What :meth:`to_dict` wrote."""
        experiment = cls(Pair(*values["pair"]), values["wanted"])
        experiment.observations = [Observation.from_dict(item) for item in values["observations"]]
        experiment.seen, experiment.outside = values["seen"], values["outside"]
        return experiment
