"""Appendix B: how well token counts foretell the governor.

A forward test on one run under the governor: fit the past 15 usable updates, foretell throughput and energy of
the next three, go on by three. The constant reference takes mean throughput and mean energy per update of the
same 15, whatever the work; the token-work reference is the controller's own governor model (equation 2). The
paper does not say what its constant is; throughput and update energy are what its two columns are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eerl_launch.evidence.runs import RunData
from eerl_launch.report.works import read_record

if TYPE_CHECKING:
    from eerl_controller import ExecutionMode, UpdateRecord

PAST = 15
AHEAD = 3
#: Of a long run so many blocks, evenly spread, tell the same median in a fraction of the time.
MOST_BLOCKS = 100


@dataclass(frozen=True, slots=True)
class Errors:
    """Median absolute errors in percent over all blocks of the runs of one configuration."""

    runs: int
    blocks: int
    throughput_constant_percent: float
    throughput_token_work_percent: float
    energy_constant_percent: float
    energy_token_work_percent: float


def forward_test(records: Sequence[UpdateRecord], mode: ExecutionMode) -> pd.DataFrame:
    """A row per block: relative errors of both references; empty for fewer than 18 usable governor updates."""
    from eerl_controller import GovernorModel, unusable_reason

    usable = [item for item in records if unusable_reason(item) is None and item.energy_j is not None]
    rows = []
    firsts = range(PAST, len(usable) - AHEAD + 1, AHEAD)
    for first in firsts[:: -(-len(firsts) // MOST_BLOCKS) or 1]:
        past, ahead = usable[first - PAST : first], usable[first : first + AHEAD]
        model = GovernorModel.fit(past, mode)
        tokens, seconds, joules = _sums(ahead)
        if model is None:
            continue
        foretold = [model.predict(item) for item in ahead]
        foretold_j = [item.energy_j for item in foretold if item.energy_j is not None]
        if len(foretold_j) < len(foretold):
            continue
        past_tokens, past_s, past_j = _sums(past)
        rows.append(
            {
                "throughput_constant": _error(past_tokens / past_s, tokens / seconds),
                "throughput_token_work": _error(
                    tokens / sum(item.elapsed_s for item in foretold), tokens / seconds
                ),
                "energy_constant": _error(past_j / PAST, joules / AHEAD),
                "energy_token_work": _error(sum(foretold_j), joules),
            }
        )
    return pd.DataFrame(rows)


def _sums(records: Iterable[UpdateRecord]) -> tuple[float, float, float]:
    """Valid tokens, seconds and joules of usable records."""
    sums = np.array([(item.valid_tokens, item.elapsed_s, item.energy_j) for item in records], dtype=float)
    tokens, seconds, joules = sums.sum(axis=0).tolist()
    return tokens, seconds, joules


def _error(foretold: float, seen: float) -> float:
    return abs(foretold / seen - 1.0)


def summarise(tests: Sequence[pd.DataFrame]) -> Errors | None:
    """The medians over the blocks of several runs; None without a block."""
    with_blocks = [test for test in tests if len(test)]
    if not with_blocks:
        return None
    blocks = pd.concat(with_blocks)
    medians = 100.0 * blocks.median()
    return Errors(
        runs=len(with_blocks),
        blocks=len(blocks),
        throughput_constant_percent=float(medians["throughput_constant"]),
        throughput_token_work_percent=float(medians["throughput_token_work"]),
        energy_constant_percent=float(medians["energy_constant"]),
        energy_token_work_percent=float(medians["energy_token_work"]),
    )


def evaluate_predictor(runs: Sequence[RunData]) -> Errors | None:
    """The forward test on governor runs of one configuration; None when they are too short for one block."""
    from eerl_controller import ExecutionMode

    known = {mode.value: mode for mode in ExecutionMode}
    tests = []
    for data in runs:
        mode = known.get(data.run.mode or "", ExecutionMode.COLOCATED_SYNC)
        rows = [row for row, good in zip(data.run.updates, data.frame["usable"], strict=True) if good]
        found = [record for row in rows if (record := read_record(row.record)) is not None]
        tests.append(forward_test(found, mode))
    return summarise(tests)
