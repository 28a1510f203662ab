"""What a round of the search is made of: its lattice of clocks, what it may change, and what its trials showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eerl_controller.clocks import GOVERNOR, Pair, snap
from eerl_controller.comparison import Comparison
from eerl_controller.settings import Settings


class Levels(NamedTuple):
    """Steps below the ceiling for generation and training; 0 is the governor."""

    generation: int
    training: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Each clock's phases as a share of the governor's update time and energy."""

    generation_time: float
    training_time: float
    generation_energy: float
    training_energy: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A tried setting; ``confirming`` marks evidence of a confirmation, which outranks the trial's."""

    levels: Levels
    comparison: Comparison
    confirming: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of the search may change, and on top of what (Algorithm 1, lines 2 and 11).

    ``steps_mhz`` is the nominal step for generation and training, None for a clock that is held as it is in
    ``held``. ``reference`` is what ``held`` showed when it was confirmed: a setting must use less energy (None:
    the governor is the reference). ``start`` is the first trial's clocks, as fractions of the ceilings.
    """

    steps_mhz: tuple[int | None, int | None]
    start: tuple[float, float]
    held: Pair = GOVERNOR
    reference: Comparison | None = None

    @classmethod
    def joint(cls, settings: Settings, idle_mhz: int | None = None) -> Round:
        """Both clocks together (section 6.1)."""
        step_mhz, start = settings.search_step_mhz, settings.start_fraction
        return cls((step_mhz, step_mhz), (start, start), Pair(None, None, idle_mhz))

    @property
    def tries_idle(self) -> bool:
        """Whether the idle clock is new in this round, so that it has to be tried alone first."""
        return self.held.idle_mhz is not None and self.reference is None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "steps_mhz": list(self.steps_mhz),
            "start": list(self.start),
            "held": list(self.held),
            "reference": self.reference.to_dict() if self.reference else None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Round:
        """What :meth:`to_dict` wrote."""
        (generation_step, training_step), (generation, training) = values["steps_mhz"], values["start"]
        reference = Comparison.from_dict(values["reference"]) if values["reference"] else None
        held = Pair(*values["held"])
        return cls((generation_step, training_step), (generation, training), held, reference)


def pool_round(
    axis: int, step_mhz: int, start: float, held: Pair, reference: Comparison | None = None
) -> Round:
    """A round over the clock of one pool, generation (axis 0) or training (axis 1), from this fraction on."""
    steps = (step_mhz, None) if axis == 0 else (None, step_mhz)
    return Round(steps, (start, start), held, reference)


#: The round's own setting: nothing changed but what is held.
HELD = Levels(0, 0)


def lattice(ceiling_mhz: float, clocks: Sequence[int], step_mhz: int) -> tuple[int, ...]:
    """Distinct supported clocks at nominal steps below the ceiling, descending in MHz."""
    lower = [clock for clock in clocks if clock < ceiling_mhz]
    found: list[int] = []
    nominal = ceiling_mhz - step_mhz
    while lower and nominal > lower[0] - step_mhz:
        clock = snap(nominal, lower)
        if not found or clock < found[-1]:
            found.append(clock)
        nominal -= step_mhz
    return tuple(found)
