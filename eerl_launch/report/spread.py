"""95 % intervals by moving-block bootstrap over the governor updates, the model refitted each time.

Blocks keep the drift between neighbouring updates. The limits lie around the estimate as the replicates lie
around their median: a refit on fewer distinct updates is shrunk more, which is no uncertainty of the estimate.
The noise that single updates have around the model is drawn as well, so that an interval over three updates is
wider than one over three hundred. The seed is fixed: the same ledger gives the same report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eerl_launch.report.intervals import Interval
from eerl_launch.report.works import Work

if TYPE_CHECKING:
    from eerl_controller import ExecutionMode, GovernorModel

#: Enough for the 2.5 and 97.5 % points of an interval that is shown with one decimal.
REPLICATES = 300

#: Updates predicted again in each replicate, by interval, evenly spread: the uncertainty of a total over
#: hundreds of updates is that of the model, which a few dozen of them show as well.
SPREAD_OVER = 40

#: At most so many references are drawn in a replicate; more would only cost time.
MOST_REFERENCES = 200

#: Equation 2 has an intercept and at most two slopes by phase in the synchronous modes.
FITTED = 3


def add_spread(
    intervals: Mapping[str, Interval], parts: Mapping[str, Sequence[Work]], mode: ExecutionMode
) -> None:
    """Give every interval its 95 % limits. ``parts`` has the updates of each by name, ``whole`` among them."""
    import numpy as np

    from eerl_controller import GovernorModel

    references = [work for work in parts["whole"] if work.reference]
    references = references[:: -(-len(references) // MOST_REFERENCES)]
    count = len(references)
    block = max(2, round(count ** (1 / 3)))  # the usual rate for block lengths
    rng = np.random.default_rng(0)
    residuals = np.array(
        [
            (work.elapsed_s / work.governor_elapsed_s, work.energy_j / work.governor_energy_j)
            for work in references
        ]
    )
    residuals /= residuals.mean(axis=0)
    widening = _widening(count)

    def draw(length: int) -> Any:
        starts = rng.integers(0, count - block + 1, size=-(-length // block))
        return (starts[:, None] + np.arange(block)).ravel()[:length]

    # The whole is the sum of its parts, so the parts are drawn and the whole follows from them.
    leaves = [name for name in ("before_lock", "after_lock") if parts.get(name)] or ["whole"]
    claimed = {name: [work for work in parts[name] if not work.neutral] for name in leaves}
    sample = {name: works[:: -(-len(works) // SPREAD_OVER) or 1] for name, works in claimed.items()}
    draws: dict[str, list[tuple[float, float]]] = {name: [] for name in leaves}
    for _ in range(REPLICATES):
        chosen = [references[place] for place in draw(count)]
        model = GovernorModel.fit([work.record for work in chosen], mode)
        fitted = None if model is None else _predicted(model, chosen)
        if model is None or fitted is None:
            continue
        scale_s = sum(work.elapsed_s for work in chosen) / fitted[0]
        scale_j = sum(work.energy_j for work in chosen) / fitted[1]
        for name in leaves:
            again = _predicted(model, sample[name])
            if again is None:
                draws[name].append((0.0, 0.0))
                continue
            noise = residuals[draw(len(claimed[name]))].mean(axis=0)
            whole, shown = _governor(claimed[name]), _governor(sample[name])
            draws[name].append(
                (
                    whole[0] * again[0] * scale_s / shown[0] * float(noise[0]),
                    whole[1] * again[1] * scale_j / shown[1] * float(noise[1]),
                )
            )
    for name, interval in intervals.items():
        used = [name] if name in leaves else leaves
        total = np.sum([np.array(draws[leaf]).reshape(-1, 2) for leaf in used], axis=0)
        held = [work for work in parts[name] if work.neutral]
        if len(total) < REPLICATES // 2 or len(held) == len(parts[name]):
            continue
        governor_s = total[:, 0] + sum(work.elapsed_s for work in held)
        governor_j = total[:, 1] + sum(work.energy_j for work in held)
        savings = 100.0 * (1.0 - interval.measured_energy_j / governor_j)
        changes = 100.0 * (governor_s / interval.measured_s - 1.0)
        limits = [
            middle + widening * (np.percentile(drawn, point) - np.median(drawn))
            for middle, drawn in ((interval.saving_percent, savings), (interval.throughput_percent, changes))
            for point in (2.5, 97.5)
        ]
        (
            interval.saving_low_percent,
            interval.saving_high_percent,
            interval.throughput_change_low_percent,
            interval.throughput_change_high_percent,
        ) = map(float, limits)


def _widening(count: int) -> float:
    """How much wider than the bootstrap's an interval from ``count`` references must be.

    Resampling shows the scatter of the fit without the degrees of freedom that it took, and normal percentiles
    where Student's are due (Cornish and Fisher's expansion at 97.5 %).
    """
    freedom = max(count - FITTED, 1)
    student = 1.96 + 2.37 / freedom + 2.82 / freedom**2
    return student / 1.96 * math.sqrt(count / freedom)


def _governor(works: Sequence[Work]) -> tuple[float, float]:
    return sum(work.governor_elapsed_s for work in works), sum(work.governor_energy_j for work in works)


def _predicted(model: GovernorModel, works: Sequence[Work]) -> tuple[float, float] | None:
    """The governor's seconds and joules for these updates; None when its energy is not known."""
    total_s = total_j = 0.0
    for work in works:
        found = model.predict(work.record)
        if found.energy_j is None:
            return None
        total_s += found.elapsed_s
        total_j += found.energy_j
    return (total_s, total_j) if total_s > 0 and total_j > 0 else None
