"""A setting against the governor at equal work (paper, section 6.1).

Each phase's measured time and energy is divided by its governor prediction at the observed token counts. These
ratios are applied to the governor reference updates, so that every setting is judged on the same work, however
few its updates were. What has no fitted phase (refit, reward, waits, switches) enters as its measured mean:
the judgement is on whole-update time and energy.

Where pools overlap, the whole update is divided by its prediction. With drained updates and only training slowed
(section 6.2), training's measured slowdown is applied to the governor references instead, and their time is
worked out anew from their recorded arrivals: lengths that vary in generation then hide nothing. A monitoring window
is replayed on itself: it is as long as a calibration, and tells of the balance between the pools as it is now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD, GovernorModel
from eerl_controller.overlap import Overlap
from eerl_controller.quantity import QuantityModel, has_phases
from eerl_controller.work import GENERATION_PHASES, TRAINING_PHASES, Observation

#: Updates of one setting that are replayed on themselves: as many as a calibration has (Table 3).
OWN_REPLAY_UPDATES = 15


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a quantity as fractions of the governor's whole update: added by each clock and by the rest."""

    generation: float
    training: float
    rest: float

    @property
    def total(self) -> float:
        """The whole update's change; 0.02 means 2 % more than the governor."""
        return self.generation + self.training + self.rest


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting's time and energy relative to the governor, and how far noise alone could have moved them."""

    added_time: Change
    added_energy: Change
    time_se: float
    energy_se: float
    updates: int
    #: Drained updates: how many times as long as the governor's generation and training took to arrive.
    slowdowns: tuple[float | None, float | None] = (None, None)

    @property
    def throughput_change(self) -> float:
        """Change of valid training tokens per second, as a fraction; negative is slower."""
        return 1.0 / max(1.0 + self.added_time.total, 1e-9) - 1.0

    @property
    def loss(self) -> float:
        """Lost throughput as a fraction of the governor's; negative is a gain."""
        return -self.throughput_change

    @property
    def energy_change(self) -> float:
        """Change of energy per valid training token, as a fraction; negative is a saving."""
        return self.added_energy.total

    def passes(self, allowed_loss: float) -> bool:
        """Algorithm 1's rule: the throughput is kept and energy per valid token is lower."""
        return self.loss <= allowed_loss and self.energy_change < 0.0

    def __str__(self) -> str:
        return (
            f"throughput {100 * self.throughput_change:+.1f} %, energy per token {100 * self.energy_change:+.1f} % "
            f"against the governor at equal work ({self.updates} updates)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """What :meth:`to_dict` wrote."""
        return cls(
            added_time=Change(**values["added_time"]),
            added_energy=Change(**values["added_energy"]),
            time_se=values["time_se"],
            energy_se=values["energy_se"],
            updates=values["updates"],
            slowdowns=(values["slowdowns"][0], values["slowdowns"][1]),
        )


def pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """Several judgements of one setting as one, weighted by their updates. Raises ValueError for none."""
    updates = sum(item.updates for item in comparisons)
    if updates == 0:
        raise ValueError("nothing to pool")

    def mean(changes: Sequence[Change]) -> Change:
        weighted = [
            (item.updates / updates, change) for item, change in zip(comparisons, changes, strict=True)
        ]
        return Change(
            generation=sum(weight * change.generation for weight, change in weighted),
            training=sum(weight * change.training for weight, change in weighted),
            rest=sum(weight * change.rest for weight, change in weighted),
        )

    def error(values: Sequence[float]) -> float:
        squares = [(i.updates / updates * value) ** 2 for i, value in zip(comparisons, values, strict=True)]
        return math.sqrt(sum(squares))

    def slowdown(axis: int) -> float | None:
        known = [(item.updates, item.slowdowns[axis]) for item in comparisons]
        values = [(weight, value) for weight, value in known if value is not None]
        total = sum(weight for weight, _ in values)
        return sum(weight * value for weight, value in values) / total if values else None

    return Comparison(
        added_time=mean([item.added_time for item in comparisons]),
        added_energy=mean([item.added_energy for item in comparisons]),
        time_se=error([item.time_se for item in comparisons]),
        energy_se=error([item.energy_se for item in comparisons]),
        updates=updates,
        slowdowns=(slowdown(0), slowdown(1)),
    )


def comparable(model: GovernorModel, observation: Observation) -> bool:
    """Whether this update ran the phases that the model knows."""
    return has_phases(observation, model.phases)


def without_stragglers(model: GovernorModel, observations: Sequence[Observation]) -> list[Observation]:
    """The observations that are not far slower or faster, for their work, than the others of the same setting.

    The spread is the governor's own, known from many more updates than a trial has.
    """
    if len(observations) < 3:
        return list(observations)
    logs = [math.log(item.elapsed_s / model.time.total(item.counts)) for item in observations]
    middle = median(logs)
    limit = max(STRAGGLER_SD * model.time.residual_sd, STRAGGLER_FLOOR)
    return [item for item, value in zip(observations, logs, strict=True) if abs(value - middle) <= limit]


def _change(
    quantity: QuantityModel,
    model: GovernorModel,
    whole: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    counts: Sequence[Mapping[str, float]],
) -> Change:
    """The ratios of one quantity applied to the governor references."""
    reference_terms = {
        name: sum(term.predict(item.counts) for item in model.references)
        for name, term in quantity.terms.items()
    }
    n = len(model.references)
    reference_total = sum(reference_terms.values()) + n * quantity.rest
    if not parts:
        predicted = sum(quantity.total(row) for row in counts)
        return Change(0.0, 0.0, sum(whole) / predicted - 1.0)
    added = {}
    for name, term in quantity.terms.items():
        ratio = sum(parts[name]) / sum(term.predict(row) for row in counts)
        added[name] = (ratio - 1.0) * reference_terms[name] / reference_total
    rest = (sum(whole) - sum(sum(values) for values in parts.values())) / len(whole)
    return Change(
        generation=sum(added.get(name, 0.0) for name in GENERATION_PHASES),
        training=sum(added.get(name, 0.0) for name in TRAINING_PHASES),
        rest=n * (rest - quantity.rest) / reference_total,
    )


def _overlapping_change(
    overlap: Overlap, timed: Sequence[Observation], pair: Pair, whole: Change, whole_se: float
) -> tuple[Change, float, tuple[float | None, float | None]]:
    """Added time of drained updates by pool, its standard error, and the pools' slowdowns.

    ``whole`` is the change of the whole update against its prediction; only what training alone slowed is
    replayed instead.
    """
    generation, training = (overlap.slowdown(axis, timed) for axis in (0, 1))
    if generation is None or training is None:
        return whole, whole_se, (None, None)
    if pair.generation_mhz is None and pair.training_mhz is not None:
        added = overlap.added_time(1.0, training.ratio)
        if len(timed) >= OWN_REPLAY_UPDATES:
            now = overlap.added_now(training.ratio, timed)
            added = added if now is None else now
        later = overlap.added_time(1.0, training.ratio + training.se)
        change = Change(0.0, added, overlap.added_rest(timed))
        return change, max(later - added, training.se / len(timed)), (1.0, training.ratio)
    # What the pools' own slowdowns do not explain is the rest.
    parts = overlap.parts(generation.ratio, training.ratio)
    change = Change(*parts, whole.total - sum(parts))
    return change, whole_se, (generation.ratio, training.ratio)


def compare(
    model: GovernorModel, observations: Sequence[Observation], pair: Pair = GOVERNOR
) -> Comparison | None:
    """The setting under which these updates ran, against the governor; None without time or energy evidence.

    Updates of unknown energy count for time only. ``pair`` is the setting, where the mode judges by it.
    """
    timed = [item for item in observations if comparable(model, item)]
    powered = [item for item in timed if item.energy_j is not None]
    if model.energy is None or not powered:
        return None
    time_parts = {name: [item.phases[name][0] for item in timed] for name in model.phases}
    added_time = _change(
        model.time,
        model,
        [item.elapsed_s for item in timed],
        time_parts,
        [item.counts for item in timed],
    )
    energy_parts: dict[str, list[float]] = {}
    for name in model.energy.terms:
        values = [item.phases.get(name, (0.0, None))[1] for item in powered]
        energy_parts[name] = [value for value in values if value is not None]
    if any(len(values) < len(powered) for values in energy_parts.values()):
        energy_parts = {}
    added_energy = _change(
        model.energy,
        model,
        [item.energy_j for item in powered if item.energy_j is not None],
        energy_parts,
        [item.counts for item in powered],
    )
    n = len(model.references)
    time_se = model.time.residual_sd * math.sqrt(1.0 / len(timed) + 1.0 / n)
    slowdowns: tuple[float | None, float | None] = (None, None)
    if model.overlap is not None:
        added_time, time_se, slowdowns = _overlapping_change(model.overlap, timed, pair, added_time, time_se)
    return Comparison(
        added_time=added_time,
        added_energy=added_energy,
        time_se=time_se,
        energy_se=model.energy.residual_sd * math.sqrt(1.0 / len(powered) + 1.0 / n),
        updates=len(timed),
        slowdowns=slowdowns,
    )
