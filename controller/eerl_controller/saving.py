"""The running estimate for the progress line: this run against the governor, every update so far counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eerl_controller.governor import GovernorPrediction
from eerl_controller.records import UpdateRecord


@dataclass(frozen=True, slots=True)
class Estimate:
    """The run so far against the governor prediction for the same work, search costs included.

    ``energy_saving`` and ``throughput_change`` are fractions (0.07 is 7 %; negative throughput is slower);
    ``energy_saving`` is None when energy is unknown. ``covered`` is the share of the controlled updates' time
    whose work the references cover; ``updates`` counts what was compared.
    """

    energy_saving: float | None
    throughput_change: float
    covered: float
    updates: int


class RunningSaving:
    """Sums of measured and predicted time and energy.

    A governor update is its own prediction. An update that cannot be predicted (no counts, nothing learnt), and
    a straggler slower than any clock explains, is taken as the governor's too: nothing is claimed for it, and it
    is in the totals on both sides.
    """

    def __init__(self) -> None:
        self._measured_s = 0.0
        self._governor_s = 0.0
        self._measured_j = 0.0
        self._governor_j = 0.0
        self._controlled_s = 0.0
        self._covered_s = 0.0
        self._updates = 0

    def add(self, record: UpdateRecord, prediction: GovernorPrediction | None) -> None:
        """Count one update, usable as evidence or not; ``prediction`` None means that nothing is claimed for it."""
        if record.elapsed_s is None:
            return
        self._updates += 1
        measured_s, measured_j = record.elapsed_s, record.energy_j
        self._measured_s += measured_s
        if prediction is None:
            self._governor_s += measured_s
            self._measured_j += measured_j or 0.0
            self._governor_j += measured_j or 0.0
            return
        self._governor_s += prediction.elapsed_s
        self._controlled_s += measured_s
        self._covered_s += measured_s if prediction.inside_coverage else 0.0
        if (
            measured_j is not None
            and "partial_energy" not in record.flags
            and prediction.energy_j is not None
        ):
            self._measured_j += measured_j
            self._governor_j += prediction.energy_j

    @property
    def estimate(self) -> Estimate | None:
        """The estimate so far; None before the first controlled update."""
        if self._controlled_s <= 0.0 or self._governor_s <= 0.0:
            return None
        known = self._governor_j > 0.0
        return Estimate(
            energy_saving=1.0 - self._measured_j / self._governor_j if known else None,
            throughput_change=self._governor_s / self._measured_s - 1.0,
            covered=self._covered_s / self._controlled_s,
            updates=self._updates,
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "measured_s": self._measured_s,
            "governor_s": self._governor_s,
            "measured_j": self._measured_j,
            "governor_j": self._governor_j,
            "controlled_s": self._controlled_s,
            "covered_s": self._covered_s,
            "updates": self._updates,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._measured_s = values["measured_s"]
        self._governor_s = values["governor_s"]
        self._measured_j = values["measured_j"]
        self._governor_j = values["governor_j"]
        self._controlled_s = values["controlled_s"]
        self._covered_s = values["covered_s"]
        self._updates = values["updates"]
