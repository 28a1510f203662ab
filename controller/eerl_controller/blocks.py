"""Blocks of updates against their neighbours: how long they must be, and what they show (paper, section 6.3).

In-flight, neighbouring updates share work, so a mean of n of them is less certain than n independent ones. With
the residuals of calibration (log of an update's time over its prediction) of standard deviation s and lag-one
autocorrelation r, taken as an AR(1) process,

    V(n) = s^2 / n * (1 + 2 * sum over k = 1 .. n - 1 of (1 - k / n) * r^k)

is the variance of a block's mean, and the comparison of a candidate block with the mean of the two governor blocks
around it has the standard error

    SE(n) = sqrt(V(n) + V(n) / 2).

Correlation between the blocks would only lower it. Within a block it is often negative: what one update leaves
undone the next has to do, so that a block varies less than its updates. The block length is the shortest of 3, 6
and 12 whose standard error, of time and of energy, is at most 2 %; 12 when none is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from eerl_controller.clocks import Pair
from eerl_controller.comparison import Change, Comparison, without_stragglers
from eerl_controller.governor import GovernorModel
from eerl_controller.quantity import QuantityModel
from eerl_controller.work import Observation

#: Block lengths in updates (Table 3).
BLOCK_UPDATES = (3, 6, 12)
#: Correlations beyond this, of either sign, are taken as this: 45 updates cannot tell them from a drift, or from
#: a perfect alternation that would make any two updates enough.
MOST_CORRELATION = 0.95


@dataclass(frozen=True, slots=True)
class Noise:
    """How the log of an update's time, or energy, scatters about its prediction, and remembers."""

    sd: float
    correlation: float

    def variance(self, updates: int) -> float:
        """V(n): of the mean of this many neighbouring updates."""
        n, r = updates, self.correlation
        shared = sum((1.0 - k / n) * r**k for k in range(1, n))
        return self.sd**2 / n * (1.0 + 2.0 * shared)

    def comparison_se(self, candidate: int, *governor: int) -> float:
        """The standard error of a block of ``candidate`` updates against the mean of these governor blocks."""
        around = sum(self.variance(updates) for updates in governor) / len(governor) ** 2
        return math.sqrt(self.variance(candidate) + around)


def estimate_noise(quantity: QuantityModel, values: Sequence[tuple[float, Observation]]) -> Noise:
    """The noise of a quantity from consecutive governor updates: its value and its work, oldest first."""
    residuals = [math.log(value / quantity.total(item.counts)) for value, item in values]
    middle = fmean(residuals)
    centred = [value - middle for value in residuals]
    square = sum(value * value for value in centred)
    n = len(centred)
    if square <= 0.0 or n < 4:
        return Noise(quantity.residual_sd, 0.0)
    lagged = sum(one * other for one, other in pairwise(centred))
    # A short series looks less correlated than it is, by (1 + 3 r) / n to first order (Kendall).
    correlation = lagged / square
    correlation += (1.0 + 3.0 * correlation) / n
    return Noise(quantity.residual_sd, min(max(correlation, -MOST_CORRELATION), MOST_CORRELATION))


@dataclass(frozen=True, slots=True)
class BlockDesign:
    """The noise that calibration found in time and energy, and the block length that follows from it."""

    time: Noise
    energy: Noise
    updates: int

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BlockDesign:
        """What :meth:`to_dict` wrote."""
        return cls(Noise(**values["time"]), Noise(**values["energy"]), values["updates"])

    def __str__(self) -> str:
        error = max(noise.comparison_se(self.updates, self.updates, self.updates) for noise in self.noises)
        return f"blocks of {self.updates} updates, standard error {100 * error:.1f} %"

    @property
    def noises(self) -> tuple[Noise, Noise]:
        """Of time and of energy."""
        return self.time, self.energy


def design_blocks(model: GovernorModel, target_se: float) -> BlockDesign | None:
    """The shortest block whose comparison is certain enough; None while the governor's energy is not known."""
    if model.energy is None:
        return None
    time = estimate_noise(model.time, [(item.elapsed_s, item) for item in model.references])
    powered = [(item.energy_j, item) for item in model.references if item.energy_j is not None]
    energy = estimate_noise(model.energy, powered)
    for updates in BLOCK_UPDATES:
        if all(noise.comparison_se(updates, updates, updates) <= target_se for noise in (time, energy)):
            return BlockDesign(time, energy, updates)
    return BlockDesign(time, energy, BLOCK_UPDATES[-1])


def _log_ratio(quantity: QuantityModel, block: Sequence[Observation], *, energy: bool) -> float | None:
    """Log of a block's total over its prediction; None when nothing of it is known."""
    known = [(item.energy_j if energy else item.elapsed_s, item.counts) for item in block]
    values = [(value, counts) for value, counts in known if value is not None]
    if not values:
        return None
    predicted = sum(quantity.total(counts) for _, counts in values)
    return math.log(sum(value for value, _ in values) / predicted)


def compare_blocks(
    model: GovernorModel,
    design: BlockDesign,
    candidate: Sequence[Observation],
    around: Sequence[Sequence[Observation]],
    pair: Pair,
) -> Comparison | None:
    """A candidate block against the mean of the governor blocks around it, at matched work; None without evidence.

    Both are divided by the prediction for their work, so what the model gets wrong in common cancels.
    """
    if model.energy is None:
        return None
    candidate = without_stragglers(model, candidate)
    blocks = [kept for block in around if (kept := without_stragglers(model, block))]
    added: list[float] = []
    for quantity, energy in ((model.time, False), (model.energy, True)):
        own = _log_ratio(quantity, candidate, energy=energy)
        found = [_log_ratio(quantity, block, energy=energy) for block in blocks]
        governor = [value for value in found if value is not None]
        if own is None or not governor:
            return None
        added.append(math.expm1(own - fmean(governor)))
    slowdowns: tuple[float | None, float | None] = (None, None)
    share = 0.5
    if model.overlap is not None:
        generation, training = (model.overlap.slowdown(axis, candidate) for axis in (0, 1))
        if generation is not None and training is not None:
            slowdowns = (generation.ratio, training.ratio)
            parts = model.overlap.parts(generation.ratio, training.ratio)
            share = parts[0] / sum(parts) if sum(parts) > 0.0 else 0.5
    # Whatever was added, only a lowered clock can have added it.
    if pair.training_mhz is None:
        share = 1.0
    elif pair.generation_mhz is None:
        share = 0.0
    lengths = [len(block) for block in blocks]
    return Comparison(
        added_time=Change(share * added[0], (1.0 - share) * added[0], 0.0),
        added_energy=Change(0.0, 0.0, added[1]),
        time_se=design.time.comparison_se(len(candidate), *lengths),
        energy_se=design.energy.comparison_se(len(candidate), *lengths),
        updates=len(candidate),
        slowdowns=slowdowns,
    )
