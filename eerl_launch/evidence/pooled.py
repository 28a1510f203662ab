"""Appendix E's model of the governor, fitted offline by ordinary least squares on several governor runs.

Generation is fitted on G and L, training on N, and the rest is the governor's median (synchronous); the whole
update on L and G, or on G and N where nearly every update reaches the limit and L barely varies (drained); on N, the
longest response and the previous update's N of what training consumed (in-flight). Two things are added.
Where responses cut at the limit are masked, N stands still while training works on all of G; and joules of two
pools follow more than their common seconds do: a further count joins a part of which it explains a good deal more.
And updates far from the fit (warm-up, a node that hung) do not bend it; validation and checkpoint are no work of
an update's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_launch.evidence.runs import EvidenceError

Array = NDArray[np.float64]

#: The first update of a run is its warm-up (the paper starts at update 2).
FIRST_POSITION = 2
#: Governor updates for each coefficient of a fit.
UPDATES_PER_COEFFICIENT = 10
#: L barely varies when its coefficient of variation is below this.
LEAST_VARIATION = 0.02
#: Counts that may join a part, and the share of what was unexplained that one must explain to do so.
FURTHER = {"training": ("generated_tokens",), "whole": ("generated_tokens", "valid_tokens", "longest_tokens")}
FURTHER_SHARE = 0.10
#: Fits after which the set of stragglers is taken as it is.
STRAGGLER_ROUNDS = 5

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

    fits: Mapping[str, tuple[Fit, ...]]
    rest: Mapping[str, float]
    updates: int

    @property
    def features(self) -> tuple[str, ...]:
        """Every count that some part depends on."""
        return tuple(
            dict.fromkeys(name for fits in self.fits.values() for fit in fits for name in fit.features)
        )

    def predict(self, frame: pd.DataFrame, unit: str) -> Array:
        """What the governor needs for these updates, in ``unit``; visits are as they were measured."""
        total: Array = frame[f"visits_{unit}"].to_numpy(dtype=float) + self.rest[unit]
        for fit in self.fits[unit]:
            total = total + fit.total(frame)
        return total


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
    fits: dict[str, tuple[Fit, ...]] = {}
    rest: dict[str, float] = {}
    for unit in UNITS:
        columns = {part: f"{'own' if part == 'whole' else part}_{unit}" for part in parts}
        needed = {name for names in parts.values() for name in names}
        known = pooled.dropna(subset=[*needed, *columns.values()])
        least = UPDATES_PER_COEFFICIENT * (1 + max(len(names) for names in parts.values()))
        if len(known) < least:
            raise EvidenceError(
                f"too few governor updates with {', '.join(sorted(needed))} and {unit} for a model of the work: "
                f"{len(known)}, {least} are needed"
            )
        fits[unit] = tuple(_fit(part, parts[part], known, column) for part, column in columns.items())
        rest[unit] = 0.0 if "whole" in parts else float(known[f"rest_{unit}"].median())
    return PooledModel(fits, rest, len(pooled))


def _fit(part: str, features: tuple[str, ...], frame: pd.DataFrame, column: str) -> Fit:
    """The part with those further counts that it asks for."""
    chosen, kept = features, _without_stragglers(frame, features, column)
    for name in FURTHER.get(part, ()):
        more = (*chosen, name)
        if name in chosen or bool(kept[name].isna().any()):
            continue
        if len(kept) >= UPDATES_PER_COEFFICIENT * (1 + len(more)) and _unexplained(kept, more, column) < (
            1.0 - FURTHER_SHARE
        ) * _unexplained(kept, chosen, column):
            chosen, kept = more, _without_stragglers(frame, more, column)
    return Fit(part, chosen, _least_squares(kept, chosen, column))


def _without_stragglers(frame: pd.DataFrame, features: Sequence[str], column: str) -> pd.DataFrame:
    """The updates that lie near the fit by the controller's own rule; those that are far off (warm-up, a node
    that hung) count in every total, but must not bend what is said of the others."""
    kept = frame
    for _ in range(STRAGGLER_ROUNDS):
        fitted = _design(frame, features) @ np.array(_least_squares(kept, features, column))
        residuals = frame[column].to_numpy(dtype=float) - fitted
        distance = np.abs(residuals - np.median(residuals))
        limit = STRAGGLER_SD * 1.4826 * float(np.median(distance))
        near = frame[distance <= max(limit, STRAGGLER_FLOOR * float(np.median(fitted)))]
        if len(near) == len(kept):
            break
        kept = near
    return kept


def _unexplained(frame: pd.DataFrame, features: Sequence[str], column: str) -> float:
    fitted = _design(frame, features) @ np.array(_least_squares(frame, features, column))
    return float(((frame[column].to_numpy(dtype=float) - fitted) ** 2).sum())


def _design(frame: pd.DataFrame, features: Sequence[str]) -> Array:
    values = frame[list(features)].to_numpy(dtype=float)
    return np.column_stack([np.ones(len(frame)), values])


def _least_squares(frame: pd.DataFrame, features: Sequence[str], column: str) -> tuple[float, ...]:
    design = _design(frame, features)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)  # tokens by the million beside ones
    found, *_ = np.linalg.lstsq(design / scale, frame[column].to_numpy(dtype=float), rcond=None)
    return tuple((found / scale).tolist())
