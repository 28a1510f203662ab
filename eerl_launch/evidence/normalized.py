"""Appendix E of the paper: a run against the governor at equal work.

A run's ratio is its measured total over the total that the model of the governor gives for the same updates; the
reference is the mean of the governor ratios, and their spread is the noise that is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import fdtri

from eerl_launch.evidence.estimator import Ratio, student_t
from eerl_launch.evidence.pooled import FIRST_POSITION, UNITS, Array, PooledModel, with_previous
from eerl_launch.evidence.runs import EvidenceError

#: Governors differ by more than the noise within them when chance would do it in fewer than one in ten cases.
POOLING_LEVEL = 0.10
#: Stretches of a run whose mean residuals tell how far noise moves a sum; neighbouring updates share work.
STRETCHES = 12


@dataclass(frozen=True, slots=True)
class Normalized:
    """A run against the governor at equal work; ``governor_ratios`` are measured over predicted, by run."""

    updates: int
    energy: Ratio
    time: Ratio
    governor_time_ratios: tuple[float, ...]
    governor_energy_ratios: tuple[float, ...]

    @property
    def energy_saving_percent(self) -> float:
        """One minus the run's ratio over the governor's."""
        return self.energy.saving_percent

    @property
    def throughput(self) -> Ratio:
        """The governor's ratio of time over the run's."""
        low, high = self.time.low, self.time.high
        return Ratio(
            1.0 / self.time.ratio, None if high is None else 1.0 / high, None if low is None else 1.0 / low
        )


def normalized(
    run: pd.DataFrame,
    governors: Sequence[pd.DataFrame],
    model: PooledModel,
    first: int = FIRST_POSITION,
    last: int | None = None,
) -> Normalized:
    """The run's stretch of positions against the governors on the same positions.

    Raises :class:`EvidenceError` when a run has no update there that the model can predict.
    """
    stretches = [_stretch(frame, model, first, last) for frame in (run, *governors)]
    if any(not len(frame) for frame in stretches):
        raise EvidenceError(f"a run has no usable update from update {first} on")
    ratios, noise = {}, {}
    for unit in UNITS:
        predicted = [model.predict(frame, unit) for frame in stretches]
        measured = [frame[unit].to_numpy(dtype=float) for frame in stretches]
        if any(values.sum() <= 0 for values in predicted):
            raise EvidenceError("the governor model does not carry to the work of these updates")
        ratios[unit] = [
            float(seen.sum() / said.sum()) for seen, said in zip(measured, predicted, strict=True)
        ]
        noise[unit] = [_sum_noise(seen, said) for seen, said in zip(measured[1:], predicted[1:], strict=True)]
    found = {
        unit: Ratio.of_log(
            math.log(ratios[unit][0] / float(np.mean(ratios[unit][1:]))),
            _half_width(noise[unit], ratios[unit][1:]),
        )
        for unit in UNITS
    }
    return Normalized(
        len(stretches[0]),
        energy=found["energy_j"],
        time=found["elapsed_s"],
        governor_time_ratios=tuple(ratios["elapsed_s"][1:]),
        governor_energy_ratios=tuple(ratios["energy_j"][1:]),
    )


def _stretch(frame: pd.DataFrame, model: PooledModel, first: int, last: int | None) -> pd.DataFrame:
    rows = with_previous(frame)
    inside = (rows.index >= first) & (rows.index <= (len(rows) if last is None else last))
    known: pd.DataFrame = rows[inside & rows["usable"]].dropna(subset=list(model.features))
    return known


def _sum_noise(measured: Array, predicted: Array) -> tuple[float, int]:
    """Standard error of the log of a run's ratio and its degrees of freedom, from stretches of it."""
    count = min(STRETCHES, len(measured) // 2)
    if count < 2:
        return math.nan, 0
    pieces = np.array_split(np.arange(len(measured)), count)
    excess = np.array([(measured[piece] - predicted[piece]).sum() for piece in pieces])
    return float(np.std(excess, ddof=1) * math.sqrt(count) / measured.sum()), count - 1


def _half_width(noise: Sequence[tuple[float, int]], governor_ratios: Sequence[float]) -> float | None:
    """Half a 95 % interval of the log of the run's ratio over the mean of the governors'; ``noise`` is by governor.

    Noise within runs moves every ratio, the run's like a governor's: its own would take clocks that were tried
    for noise. Governors that differ by no more than that are further witnesses of it. Where they do, runs differ
    as wholes (nodes, temperature), which no run can tell of itself: then their spread alone is the noise, with
    the few degrees of freedom it has.
    """
    runs = len(governor_ratios)
    if any(not freedom for _, freedom in noise):
        return None
    within = float(np.mean([error**2 for error, _ in noise]))
    freedom = float(sum(free for _, free in noise))
    variance = within
    if runs > 1:
        between = float(np.var(np.log(governor_ratios), ddof=1))
        if between > within * float(fdtri(runs - 1, freedom, 1.0 - POOLING_LEVEL)):
            variance, freedom = between, runs - 1
        else:
            variance = (freedom * within + (runs - 1) * between) / (freedom + runs - 1)
            freedom += runs - 1
    return math.sqrt(variance * (1.0 + 1.0 / runs)) * student_t(freedom)
