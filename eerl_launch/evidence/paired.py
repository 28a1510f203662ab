"""Tables 4 and 5: a controller's run against one governor run over the same updates, as ratios of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from eerl_launch.evidence.estimator import GOVERNOR, Cell, Comparison, Totals, compare_settings
from eerl_launch.evidence.pooled import FIRST_POSITION
from eerl_launch.evidence.runs import EvidenceError, RunData

#: Of the updates of a stretch, the share that both runs must have measured.
LEAST_SHARE = 0.8
#: The controller as a "setting" of Appendix A; clocks of 0 MHz are no GPU's.
CONTROLLED = (0, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions of a run, both included; the clocks that were in force throughout, or ``varies``."""

    name: str
    first: int
    last: int
    clocks: str


def stretches(data: RunData, common: int) -> list[Stretch]:
    """The whole run from its second update, and what lies before and after the lock, up to ``common``."""
    lock = data.lock_position
    found = [("whole run", FIRST_POSITION, common)]
    if lock is not None and FIRST_POSITION < lock <= common:
        found += [("before lock", FIRST_POSITION, lock - 1), ("after lock", lock, common)]
    return [Stretch(name, first, last, _clocks(data.frame, first, last)) for name, first, last in found]


def _clocks(frame: pd.DataFrame, first: int, last: int) -> str:
    words = []
    for column in ("generation_mhz", "training_mhz"):
        values = frame.loc[first:last, column]
        kinds = values.fillna(0.0).unique()
        words.append("varies" if len(kinds) > 1 else (f"{kinds[0]:.0f}" if kinds[0] else "governor"))
    return "varies" if words == ["varies", "varies"] else "/".join(words)


def totals(frame: pd.DataFrame) -> Totals:
    """The sums of a frame of usable updates."""
    sums = frame[["valid_tokens", "elapsed_s", "energy_j"]].sum()
    return Totals(float(sums["valid_tokens"]), float(sums["elapsed_s"]), float(sums["energy_j"]))


def matched_totals(
    one: pd.DataFrame, other: pd.DataFrame, first: int, last: int
) -> tuple[Totals, Totals, int]:
    """Sums of two runs over the positions that both have measured, and how many those are.

    Raises :class:`EvidenceError` when less than 80 % of the positions are left.
    """
    wanted = last - first + 1
    left, right = one.loc[first:last], other.loc[first:last]
    both = left.index[left["usable"]].intersection(right.index[right["usable"]])
    if len(both) < LEAST_SHARE * wanted:
        raise EvidenceError(
            f"of updates {first}–{last} only {len(both)} of {wanted} were measured in both runs"
        )
    return totals(left.loc[both]), totals(right.loc[both]), len(both)


def paired_cells(pairs: Sequence[tuple[RunData, RunData]], first: int, last: int) -> list[Cell]:
    """The pairs as blocks of Appendix A, each its own seed."""
    cells = []
    for seed, (controlled, governor) in enumerate(pairs):
        one, other, _ = matched_totals(controlled.frame, governor.frame, first, last)
        cells += [
            Cell(seed, str(seed), CONTROLLED, one),
            Cell(seed, str(seed), GOVERNOR, other),
        ]
    return cells


def compare_pairs(pairs: Sequence[tuple[RunData, RunData]], first: int, last: int) -> Comparison:
    """The controller against the governor, a geometric mean over pairs. Raises :class:`EvidenceError`."""
    return compare_settings(paired_cells(pairs, first, last))[0]
