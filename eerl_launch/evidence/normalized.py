"""Appendix E: a run against a governor model fitted offline on the updates of several governor runs.

Update time and energy are fitted by ordinary least squares on what sets them in each mode: generation on G and L,
training on N, the rest the governor's median (synchronous); the whole update on L and G, or on G and N where
nearly every update reaches the limit and L barely varies (drained); on N, the longest response and the previous
update's N of what training consumed (in-flight). A run's ratio is its measured total over the model's total for
the same updates; the reference is the mean of the governor ratios, and their spread is the noise that is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t as student

from eerl_launch.evidence.estimator import Ratio
from eerl_launch.evidence.runs import EvidenceError

Array = NDArray[np.float64]

#: The first update of a run is its warm-up (the paper starts at update 2).
FIRST_POSITION = 2
#: Governor updates for each coefficient of a fit.
UPDATES_PER_COEFFICIENT = 10
#: L barely varies when its coefficient of variation is below this.
LEAST_VARIATION = 0.02
#: Stretches of a run whose mean residuals tell how far noise moves a sum; neighbouring updates share work.
STRETCHES = 12

_SYNCHRONOUS = ("colocated_sync", "disaggregated_sync")
UNITS = ("elapsed_s", "energy_j")


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted part: its coefficients, the intercept first."""

    part: str
    features: tuple[str, ...]
    coefficients: tuple[float, ...]

    def total(self, frame: pd.DataFrame) -> Array:
        """What the part takes in each update."""
        taken: Array = _design(frame, self.features) @ np.array(self.coefficients)
        return taken


@dataclass(frozen=True, slots=True)
class PooledModel:
    """Seconds and joules of the governor by part; ``rest`` is what has no features."""

    features: tuple[str, ...]
    fits: Mapping[str, tuple[Fit, ...]]
    rest: Mapping[str, float]
    updates: int

    def predict(self, frame: pd.DataFrame, unit: str) -> Array:
        """What the governor needs for these updates, in ``unit``."""
        parts: Array = np.sum([fit.total(frame) for fit in self.fits[unit]], axis=0)
        return parts + self.rest[unit]


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


def with_previous(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the previous update's valid tokens, as in-flight work spills over."""
    return frame.assign(previous_valid_tokens=frame["valid_tokens"].shift())


def features_of(mode: str, pooled: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """The features of each fitted part (``whole``: the update as one)."""
    if mode in _SYNCHRONOUS and bool(
        pooled[["generation_elapsed_s", "training_elapsed_s"]].notna().all().all()
    ):
        return {"generation": ("generated_tokens", "longest_tokens"), "training": ("valid_tokens",)}
    if mode == "async_inflight":
        longest = "longest_consumed_tokens"
        if bool(pooled[longest].isna().any()):
            longest = "longest_tokens"
        return {"whole": ("valid_tokens", longest, "previous_valid_tokens")}
    longest_tokens = pooled["longest_tokens"]
    if bool(longest_tokens.std() < LEAST_VARIATION * longest_tokens.mean()):
        return {"whole": ("generated_tokens", "valid_tokens")}
    return {"whole": ("longest_tokens", "generated_tokens")}


def fit_pooled(governors: Sequence[pd.DataFrame], mode: str) -> PooledModel:
    """The model of the governor from the usable updates of its runs, from the second update on.

    Raises :class:`EvidenceError` when they are too few for the features of the mode.
    """
    frames = [with_previous(frame) for frame in governors]
    pooled = pd.concat([frame[frame["usable"] & (frame.index >= FIRST_POSITION)] for frame in frames])
    parts = features_of(mode, pooled)
    names = tuple(dict.fromkeys(name for part in parts.values() for name in part))
    known = pooled.dropna(subset=list(names))
    needed = UPDATES_PER_COEFFICIENT * (1 + max(len(part) for part in parts.values()))
    if len(known) < needed:
        raise EvidenceError(
            f"too few governor updates with {', '.join(names)} for a model of the work: {len(known)}, "
            f"{needed} are needed"
        )
    fits: dict[str, tuple[Fit, ...]] = {}
    rest: dict[str, float] = {}
    for unit in UNITS:
        columns = {part: unit if part == "whole" else f"{part}_{unit}" for part in parts}
        usable = known.dropna(subset=list(columns.values()))
        if len(usable) < needed:
            raise EvidenceError(
                f"too few governor updates whose phases have a measured {unit}: {len(usable)}"
            )
        fits[unit] = tuple(
            Fit(part, parts[part], _least_squares(usable, parts[part], usable[column]))
            for part, column in columns.items()
        )
        rest[unit] = 0.0 if "whole" in parts else float(usable[f"rest_{unit}"].median())
    return PooledModel(names, fits, rest, len(known))


def _design(frame: pd.DataFrame, features: Sequence[str]) -> Array:
    values = frame[list(features)].to_numpy(dtype=float)
    return np.column_stack([np.ones(len(frame)), values])


def _least_squares(frame: pd.DataFrame, features: Sequence[str], values: pd.Series) -> tuple[float, ...]:
    design = _design(frame, features)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)  # tokens by the million beside ones
    found, *_ = np.linalg.lstsq(design / scale, values.to_numpy(dtype=float), rcond=None)
    return tuple((found / scale).tolist())


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
        if any((values <= 0).any() for values in predicted):
            raise EvidenceError("the governor model does not carry to the work of these updates")
        ratios[unit] = [
            float(seen.sum() / said.sum()) for seen, said in zip(measured, predicted, strict=True)
        ]
        noise[unit] = [
            _sum_noise(seen / said, said) for seen, said in zip(measured[1:], predicted[1:], strict=True)
        ]
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


def _sum_noise(ratios: Array, weights: Array) -> tuple[float, int]:
    """Standard error of the log of a run's ratio and its degrees of freedom, from means over stretches of it."""
    count = min(STRETCHES, len(ratios) // 2)
    if count < 2:
        return math.nan, 0
    pieces = np.array_split(np.arange(len(ratios)), count)
    means = np.array([np.average(ratios[piece], weights=weights[piece]) for piece in pieces])
    return float(np.std(np.log(means), ddof=1) / math.sqrt(count)), count - 1


def _half_width(noise: Sequence[tuple[float, int]], governor_ratios: Sequence[float]) -> float | None:
    """Half a 95 % interval of the log of the run's ratio over the mean of the governors'; ``noise`` is by governor.

    Noise within runs moves every ratio, the run's like a governor's: its own would take clocks that were tried
    for noise. What the governors differ by beyond it is runs that differ as wholes (nodes, temperature), which no
    run can tell of itself: it counts with the few degrees of freedom it has.
    """
    runs = len(governor_ratios)
    if any(not freedom for _, freedom in noise):
        return None
    share = 1.0 + 1.0 / runs
    within = float(np.mean([error**2 for error, _ in noise]))
    variances = [(share * within, sum(freedom for _, freedom in noise))]
    if runs > 1:
        between = float(np.var(np.log(governor_ratios), ddof=1)) - within
        if between > 0:
            variances.append((share * between, runs - 1))
    total = sum(variance for variance, _ in variances)
    if total == 0.0:
        return 0.0
    freedom = total**2 / sum(variance**2 / free for variance, free in variances)
    return math.sqrt(total) * float(student.ppf(0.975, freedom))
