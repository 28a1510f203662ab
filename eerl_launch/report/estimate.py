"""What the lowered clocks saved against what the governor would have done with the same work.

The counterfactual (paper, section 5.1 and appendix E): a governor model, equation 2, fitted in hindsight on
every usable governor update of this run, predicts each update that ran under lowered clocks; the prediction is
scaled by measured over predicted of the governor updates themselves (the governor ratio of appendix E, which
removes the bias of a fit on logarithms). An update that ran under the governor is its own counterfactual, and so
is a straggler that took longer than its work and its clocks can explain: nothing is claimed for it.
Ratios are of sums, over every update with known time, energy and counts: trials that failed, confirmation and
switches are in (table 4); before and after the first lock stand beside it (table 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eerl_launch.report.intervals import Interval, make_interval
from eerl_launch.report.rows import Run
from eerl_launch.report.works import Work, comparable, has_counts, may_be_reference, without_stragglers

if TYPE_CHECKING:
    from eerl_controller import GovernorModel

#: Equation 2 has three coefficients for generation; fewer than eight references leave too little to tell noise
#: from work, and the report then claims nothing.
MIN_REFERENCES = 8


@dataclass(slots=True)
class Estimate:
    """The result, or the reason why there is none. Counts are of updates."""

    reason: str | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    references: int = 0
    compared: int = 0
    lowered: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    outside_coverage: int = 0
    stragglers: int = 0
    saving_with_stragglers_percent: float | None = None
    throughput_with_stragglers_percent: float | None = None
    #: Seconds and joules of the governor for the same work, by index of the update.
    predictions: dict[int, tuple[float, float]] = field(default_factory=dict)
    reference_indices: frozenset[int] = frozenset()


def estimate_saving(run: Run) -> Estimate:
    """The saving of the run against its governor model; ``Estimate.reason`` says why there is none."""
    reason = _no_question(run)
    if reason is not None:
        return Estimate(reason=reason)
    from eerl_controller import ExecutionMode, GovernorModel

    known = {mode.value: mode for mode in ExecutionMode}
    mode = known.get(run.mode or "", ExecutionMode.COLOCATED_SYNC)
    result = Estimate()
    works, result.left_out = comparable(run)
    references = [work for work in works if may_be_reference(work.row)]
    result.references = len(references)
    if all(work.row.governor is True for work in works):
        result.reason = "no update under lowered clocks has time, energy and token counts" + _why(result)
        return result
    model = GovernorModel.fit([work.record for work in references], mode)
    if model is not None:
        works = _predict(works, model, run, result)
        references = without_stragglers([work for work in works if may_be_reference(work.row)])
        result.references = len(references)
    if model is None or len(references) < MIN_REFERENCES:
        result.reason = (
            f"too few usable governor updates to compare with: {len(references)}, {MIN_REFERENCES} are needed"
            + _why(result)
        )
        return result
    for work in references:
        work.reference = True
    result.reference_indices = frozenset(work.row.index for work in references)
    _scale(works, references, result)
    _sum_up(works, run, result)
    parts = _parts(works, run)
    result.intervals = {name: make_interval(name, part) for name, part in parts.items() if part}
    from eerl_launch.report.spread import add_spread

    add_spread(result.intervals, parts, mode)
    return result


def _no_question(run: Run) -> str | None:
    if not run.updates:
        return "no update was marked, so only the energy of the whole job is known"
    if run.policy.get("policy") == "governor":
        return "the policy is governor (measure only): no clock was lowered, so there is nothing to compare"
    if all(row.governor is True for row in run.updates):
        return "no clock was lowered in this run, so there is nothing to compare"
    if not any(row.valid_tokens for row in run.updates):
        return "no token counts were sent, so updates cannot be compared at equal work"
    return None


def _why(result: Estimate) -> str:
    parts = [f"{count} {reason}" for reason, count in result.left_out.most_common()]
    return f" (left out: {', '.join(parts)})" if parts else ""


def _predict(works: Sequence[Work], model: GovernorModel, run: Run, result: Estimate) -> list[Work]:
    """The updates with the governor's time and energy; those that the model cannot predict are left out."""
    kept = []
    for work in works:
        found = model.predict(work.record) if has_counts(work.row) else None
        if found is not None and found.energy_j is not None and found.elapsed_s > 0 and found.energy_j > 0:
            work.governor_elapsed_s, work.governor_energy_j = found.elapsed_s, found.energy_j
            if work.row.governor is not True:
                result.outside_coverage += not found.inside_coverage
                work.neutral = model.slower_than_clocks_explain(work.record, _slowdown(work, run))
        elif work.row.governor is True:
            # Its own counterfactual: it needs no prediction to count in the totals.
            work.governor_elapsed_s, work.governor_energy_j = work.elapsed_s, work.energy_j
        else:
            result.left_out["that the governor model cannot predict"] += 1
            continue
        kept.append(work)
    return kept


def _slowdown(work: Work, run: Run) -> float:
    """The governor's clock over the lowest that was asked for: no work is slowed by more than that."""
    grid = run.controller.get("grid")
    governor_mhz = grid.get("governor_mhz") if isinstance(grid, dict) else None
    asked = [mhz for mhz in (work.row.generation_mhz, work.row.training_mhz) if mhz]
    if not asked or not isinstance(governor_mhz, (int, float)):
        return 1.0
    return max(1.0, governor_mhz / min(asked))


def _scale(works: Sequence[Work], references: Sequence[Work], result: Estimate) -> None:
    """Scale every prediction by the governor ratio: measured over predicted of the references."""
    ratio_s = sum(work.elapsed_s for work in references) / sum(work.governor_elapsed_s for work in references)
    ratio_j = sum(work.energy_j for work in references) / sum(work.governor_energy_j for work in references)
    for work in works:
        work.governor_elapsed_s *= ratio_s
        work.governor_energy_j *= ratio_j
        result.predictions[work.row.index] = (work.governor_elapsed_s, work.governor_energy_j)


def _parts(works: Sequence[Work], run: Run) -> dict[str, list[Work]]:
    parts = {"whole": list(works), "lowered": [work for work in works if work.row.governor is not True]}
    lock = next((row.index for row in run.updates if row.state == "locked"), None)
    if lock is not None:
        parts["before_lock"] = [work for work in works if work.row.index < lock]
        parts["after_lock"] = [work for work in works if work.row.index >= lock]
    return parts


def _sum_up(works: Sequence[Work], run: Run, result: Estimate) -> None:
    lowered = [work for work in works if work.row.governor is not True]
    result.compared = len(works)
    result.lowered = len(lowered)
    result.stragglers = sum(work.neutral for work in lowered)
    if result.stragglers:
        with_all = make_interval("whole", works, all_claimed=True)
        result.saving_with_stragglers_percent = with_all.saving_percent
        result.throughput_with_stragglers_percent = with_all.throughput_percent
