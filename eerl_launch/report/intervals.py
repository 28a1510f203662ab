"""Saving and throughput change over a stretch of updates: ratios of sums, as in tables 4 and 5 of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from eerl_launch.report.values import kwh
from eerl_launch.report.works import Work


@dataclass(slots=True)
class Interval:
    """Saving and throughput change over some updates, in percent of the governor; low and high are 95 %."""

    name: str
    first_update: int | None
    last_update: int | None
    updates: int
    lowered_updates: int
    generation_mhz: float | None
    training_mhz: float | None
    clocks_vary: bool
    measured_energy_j: float
    governor_energy_j: float
    measured_s: float
    governor_s: float
    valid_tokens: float
    saving_low_percent: float | None = None
    saving_high_percent: float | None = None
    throughput_change_low_percent: float | None = None
    throughput_change_high_percent: float | None = None

    @property
    def saving_percent(self) -> float:
        """Energy saved per valid training token; positive means less energy than the governor."""
        return 100.0 * (1.0 - self.measured_energy_j / self.governor_energy_j)

    @property
    def throughput_percent(self) -> float:
        """Change of valid training tokens per second; positive means faster than the governor."""
        return 100.0 * (self.governor_s / self.measured_s - 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The interval with a unit in every key."""
        return {
            **{item.name: getattr(self, item.name) for item in fields(self)},
            "saving_percent": self.saving_percent,
            "throughput_change_percent": self.throughput_percent,
            "saved_energy_j": self.governor_energy_j - self.measured_energy_j,
            "saved_energy_kwh": kwh(self.governor_energy_j - self.measured_energy_j),
        }


def make_interval(name: str, works: Sequence[Work], *, all_claimed: bool = False) -> Interval:
    """The sums over ``works`` (not empty). Neutral updates stand as measured on both sides.

    ``all_claimed`` sets lowered stragglers against the governor too, as if the clocks had made them slow.
    """
    lowered = [work for work in works if work.row.governor is not True]
    claimed = [work for work in lowered if all_claimed or not work.neutral]
    settled = {id(work) for work in claimed}
    held = [work for work in works if id(work) not in settled]
    clocks = Counter((work.row.generation_mhz, work.row.training_mhz) for work in lowered)
    (generation_mhz, training_mhz), most = clocks.most_common(1)[0] if clocks else ((None, None), 0)
    return Interval(
        name=name,
        first_update=works[0].row.update,
        last_update=works[-1].row.update,
        updates=len(works),
        lowered_updates=len(lowered),
        generation_mhz=generation_mhz,
        training_mhz=training_mhz,
        clocks_vary=most < len(works),
        measured_energy_j=sum(work.energy_j for work in works),
        governor_energy_j=sum(work.governor_energy_j for work in claimed)
        + sum(work.energy_j for work in held),
        measured_s=sum(work.elapsed_s for work in works),
        governor_s=sum(work.governor_elapsed_s for work in claimed) + sum(work.elapsed_s for work in held),
        valid_tokens=sum(work.row.valid_tokens or 0.0 for work in works),
    )
