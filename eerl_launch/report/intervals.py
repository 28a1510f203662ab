"""Saving and throughput change over a stretch of updates: ratios of sums, as in tables 4 and 5 of the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from eerl_launch.report.values import kwh
from eerl_launch.report.works import Work

if TYPE_CHECKING:
    from eerl_controller.hindsight.reckoning import Reckoning

#: A governor that needs no energy is none.
LEAST_J = 1e-9


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
    """The sums over ``works`` (not empty).

    ``all_claimed`` sets the excess of stragglers against the governor too, as if the clocks had made them slow.
    """
    lowered = [work for work in works if work.row.governor is not True]
    clocks = Counter((work.row.generation_mhz, work.row.training_mhz) for work in lowered)
    (generation_mhz, training_mhz), most = clocks.most_common(1)[0] if clocks else ((None, None), 0)
    blamed = works if all_claimed else []
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
        governor_energy_j=sum(work.governor_energy_j for work in works)
        - sum(work.excess_j for work in blamed),
        measured_s=sum(work.elapsed_s for work in works),
        governor_s=sum(work.governor_elapsed_s for work in works) - sum(work.excess_s for work in blamed),
        valid_tokens=sum(work.row.valid_tokens or 0.0 for work in works),
    )


def add_spread(
    intervals: Mapping[str, Interval], parts: Mapping[str, Sequence[Work]], reckoning: Reckoning
) -> None:
    """Give every interval its 95 % limits, from what the reckoning knows of its own errors."""
    import numpy as np

    wanted = np.zeros((len(parts), len(reckoning.entries)))
    for row, works in enumerate(parts.values()):
        for work in works:
            if work.entry is not None and reckoning.entries[work.entry].energy_j is not None:
                wanted[row, work.entry] += 1.0
    seconds, joules = (reckoning.totals(wanted, energy=energy) for energy in (False, True))
    for row, name in enumerate(parts):
        found = intervals[name]
        room_s, room_j = seconds[row].se * seconds[row].student, joules[row].se * joules[row].student
        change = 100.0 * room_s / found.measured_s
        # Not symmetric, as the saving is not linear in what the governor would have taken.
        low, high = (
            100.0 * (1.0 - found.measured_energy_j / max(found.governor_energy_j + sign * room_j, LEAST_J))
            for sign in (-1.0, 1.0)
        )
        found.saving_low_percent, found.saving_high_percent = low, high
        found.throughput_change_low_percent = found.throughput_percent - change
        found.throughput_change_high_percent = found.throughput_percent + change
