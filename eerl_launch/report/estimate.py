"""What the lowered clocks saved against what the governor would have done with the same work.

The counterfactual is that of :mod:`eerl_controller.hindsight`: what every setting did to seconds and watts is
smoothed out of all updates of this run, settled governor updates being the reference before and after; an update
under lowered clocks would have taken the governor its measured seconds and joules, divided by that. An update that
ran under the governor is its own counterfactual. Of a straggler, the part beyond what work and clocks explain
stands on both sides. Ratios are of sums, over every update with known time, energy and counts: trials that failed,
confirmation and switches are in (table 4); before and after the first lock stand beside it (table 5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eerl_launch.report.intervals import Interval, add_spread, make_interval
from eerl_launch.report.rows import Run, UpdateRow
from eerl_launch.report.works import Work, comparable, read_record

if TYPE_CHECKING:
    from eerl_controller import ExecutionMode
    from eerl_controller.clocks import Pair
    from eerl_controller.hindsight.entries import Entry
    from eerl_controller.hindsight.history import History
    from eerl_controller.hindsight.reckoning import Reckoning

#: So many updates are reckoned with one by one: it takes a few seconds, and the run is over.
MOST_ENTRIES = 6000


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
    """The saving of the run against its governor; ``Estimate.reason`` says why there is none."""
    reason = _no_question(run)
    if reason is not None:
        return Estimate(reason=reason)
    from eerl_controller import ExecutionMode
    from eerl_controller.hindsight.reckoning import Reckoning
    from eerl_controller.saving import MIN_REFERENCES

    known = {mode.value: mode for mode in ExecutionMode}
    mode = known.get(run.mode or "", ExecutionMode.COLOCATED_SYNC)
    result = Estimate()
    works, result.left_out = comparable(run)
    if all(work.row.governor is True for work in works):
        result.reason = "no update under lowered clocks has time, energy and token counts" + _why(result)
        return result
    history, at = _read(run, works, mode)
    references = [work for work in works if work.reference]
    result.references = len(references)
    if len(references) < MIN_REFERENCES:
        result.reason = (
            f"too few usable governor updates to compare with: {len(references)}, {MIN_REFERENCES} are needed"
            + _why(result)
        )
        return result
    result.reference_indices = frozenset(work.row.index for work in references)
    reckoning = Reckoning(history.entries, mode, _top_mhz(run))
    _predict(works, at, reckoning, result)
    _cover(works, references, mode, result)
    _sum_up(works, result)
    parts = {name: part for name, part in _parts(works, run).items() if part}
    result.intervals = {name: make_interval(name, part) for name, part in parts.items()}
    add_spread(result.intervals, parts, reckoning)
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


def _read(run: Run, works: Sequence[Work], mode: ExecutionMode) -> tuple[History, list[int]]:
    """Every update as hindsight sees it, in order, and the entry of each; works learn their place among them."""
    from eerl_controller.hindsight.entries import Reader
    from eerl_controller.hindsight.history import History

    reader, history = Reader(mode), History(MOST_ENTRIES)
    seen: list[Entry] = []
    by_row = {id(work.row): work for work in works}
    for row in run.updates:
        work = by_row.get(id(row))
        record = work.record if work else read_record(row.record)
        entry = reader.read(record, _pair(run, row)) if record is not None else None
        if entry is None:
            continue
        if work is not None:
            work.place = len(seen)
            work.reference = entry.evidence and entry.pair.is_governor
        history.add(entry)
        seen.append(entry)
    return history, history.places(seen)


def _pair(run: Run, row: UpdateRow) -> Pair | None:
    from eerl_controller.clocks import GOVERNOR, Pair

    plan = None if row.plan_id is None else run.plans.get(row.plan_id)
    if plan is None:
        return GOVERNOR if row.governor is True else None
    clocks = (plan.generation_mhz, plan.training_mhz, plan.idle_mhz)
    return Pair(*(None if mhz is None else round(mhz) for mhz in clocks))


def _top_mhz(run: Run) -> float:
    """The governor's clock under load; where that is not known, the highest that was asked for."""
    grid = run.controller.get("grid")
    governor_mhz = grid.get("governor_mhz") if isinstance(grid, Mapping) else None
    if isinstance(governor_mhz, (int, float)) and governor_mhz > 0:
        return float(governor_mhz)
    asked = [mhz for row in run.updates for mhz in (row.generation_mhz, row.training_mhz) if mhz]
    return max(asked, default=1.0)


def _predict(works: Sequence[Work], at: Sequence[int], reckoning: Reckoning, result: Estimate) -> None:
    """Give every update the governor's seconds and joules, and the number of its entry."""
    for work in works:
        work.governor_elapsed_s, work.governor_energy_j = work.elapsed_s, work.energy_j
        if work.place >= 0:
            work.entry = i = at[work.place]
            # An entry may stand for several updates: what is said of it holds for each of them.
            entry = reckoning.entries[i]
            work.governor_elapsed_s *= float(reckoning.governor_s[i]) / entry.elapsed_s
            if entry.energy_j is not None and math.isfinite(reckoning.governor_j[i]):
                work.governor_energy_j *= float(reckoning.governor_j[i]) / entry.energy_j
            if work.row.governor is not True:
                work.excess_s, work.excess_j = float(reckoning.excess_s[i]), float(reckoning.excess_j[i])
                # Of several updates, those that are shorter than their mean have not made it too long.
                work.straggled = work.excess_s > 0.0 and work.elapsed_s >= entry.elapsed_s
        result.predictions[work.row.index] = (work.governor_elapsed_s, work.governor_energy_j)


def _cover(works: Sequence[Work], references: Sequence[Work], mode: ExecutionMode, result: Estimate) -> None:
    """Count lowered updates whose work lies outside what the governor was seen doing."""
    from eerl_controller import GovernorModel
    from eerl_controller.work import counts_of

    model = GovernorModel.fit([work.record for work in references], mode)
    if model is not None:
        lowered = [work for work in works if work.row.governor is not True]
        result.outside_coverage = sum(not model.covers(counts_of(work.record)) for work in lowered)


def _parts(works: Sequence[Work], run: Run) -> dict[str, list[Work]]:
    parts = {"whole": list(works), "lowered": [work for work in works if work.row.governor is not True]}
    lock = next((row.index for row in run.updates if row.state == "locked"), None)
    if lock is not None:
        parts["before_lock"] = [work for work in works if work.row.index < lock]
        parts["after_lock"] = [work for work in works if work.row.index >= lock]
    return parts


def _sum_up(works: Sequence[Work], result: Estimate) -> None:
    result.compared = len(works)
    result.lowered = sum(work.row.governor is not True for work in works)
    result.stragglers = sum(work.straggled for work in works)
    if result.stragglers:
        with_all = make_interval("whole", works, all_claimed=True)
        result.saving_with_stragglers_percent = with_all.saving_percent
        result.throughput_with_stragglers_percent = with_all.throughput_percent
