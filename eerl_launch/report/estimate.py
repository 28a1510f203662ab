"""What the lowered clocks saved against what the governor would have done with the same work.

The counterfactual (paper, section 5.1 and appendix E): a governor model, equation 2, fitted in hindsight on
every usable governor update of this run, predicts each update that ran under lowered clocks; the prediction is
scaled by measured over predicted of the governor updates themselves (the governor ratio of appendix E, which
removes the bias of a fit on logarithms). An update that ran under the governor is its own counterfactual.
Ratios are of sums, over every update with known time, energy and counts: trials that failed, confirmation and
switches are in (table 4); before and after the first lock stand beside it (table 5).

The 95 % interval is by moving-block bootstrap over the governor updates, refitted each time, plus the noise
that single updates have around the model. Fixed seed: the same ledger gives the same report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from eerl_launch.report.rows import Run, UpdateRow
from eerl_launch.report.tables import number
from eerl_launch.report.totals import kwh

if TYPE_CHECKING:
    from eerl_controller.records import ExecutionMode, UpdateRecord

#: Equation 2 has at most three coefficients for generation; fewer than eight references leave too little
#: to tell noise from work, and the report then claims nothing.
MIN_REFERENCES = 8

#: Enough for the 2.5 and 97.5 % points of an interval that is shown with one decimal.
REPLICATES = 300

#: Updates predicted again in each replicate, by interval, evenly spread: the uncertainty of a total over
#: hundreds of updates is that of the model, which a few dozen of them show as well.
SPREAD_OVER = 40

#: Flags under which a governor update is no reference (contract 3.7).
UNFIT = frozenset({"hardware_slowdown", "partial_energy", "not_honoured"})

#: Phases that are not an update's own work; the model takes them as they were measured, on both sides.
VISITING = ("validation", "checkpoint")


class Prediction(Protocol):
    """What the governor would have needed: seconds and joules for one update."""

    @property
    def elapsed_s(self) -> float:
        """Seconds."""

    @property
    def energy_j(self) -> float | None:
        """Joules of the whole allocation; None when no reference knows its energy."""


class Model(Protocol):
    """A fitted governor model."""

    def predict(self, record: UpdateRecord, /) -> Prediction | None:
        """The governor's time and energy for the work of ``record``."""


Fit = Callable[[Sequence["UpdateRecord"], "ExecutionMode"], "Model | None"]


@dataclass(slots=True)
class Work:
    """One update as it is compared: measured, and predicted for the governor."""

    row: UpdateRow
    record: UpdateRecord
    elapsed_s: float
    energy_j: float
    governor_elapsed_s: float = math.nan
    governor_energy_j: float = math.nan
    reference: bool = False


@dataclass(slots=True)
class Interval:
    """Saving and throughput change over some updates, in percent of the governor; low and high are 95 %."""

    name: str
    first_update: int | None
    last_update: int | None
    updates: int
    lowered_updates: int
    generation_mhz: float | None
    training_mhz: float | None
    clocks_vary: bool
    measured_energy_j: float
    governor_energy_j: float
    measured_s: float
    governor_s: float
    valid_tokens: float
    saving_low_percent: float | None = None
    saving_high_percent: float | None = None
    throughput_change_low_percent: float | None = None
    throughput_change_high_percent: float | None = None

    @property
    def saving_percent(self) -> float:
        """Energy saved per valid training token; positive means less energy than the governor."""
        return 100.0 * (1.0 - self.measured_energy_j / self.governor_energy_j)

    @property
    def throughput_percent(self) -> float:
        """Change of valid training tokens per second; positive means faster than the governor."""
        return 100.0 * (self.governor_s / self.measured_s - 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The interval with a unit in every key."""
        return {
            **{item.name: getattr(self, item.name) for item in fields(self)},
            "saving_percent": self.saving_percent,
            "throughput_change_percent": self.throughput_percent,
            "saved_energy_j": self.governor_energy_j - self.measured_energy_j,
            "saved_energy_kwh": kwh(self.governor_energy_j - self.measured_energy_j),
        }


@dataclass(slots=True)
class Estimate:
    """The result, or why there is none."""

    reason: str | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    references: int = 0
    compared: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    outside_coverage: int = 0
    flagged: int = 0
    saving_without_flagged_percent: float | None = None
    predictions: dict[int, tuple[float, float]] = field(default_factory=dict)


def estimate_saving(run: Run, fit: Fit | None = None) -> Estimate:
    """The saving of the run against its governor model; ``Estimate.reason`` says why there is none."""
    reason = _no_question(run)
    if reason is not None:
        return Estimate(reason=reason)
    from eerl_controller.records import ExecutionMode

    try:
        mode = ExecutionMode(run.mode)
    except ValueError:
        mode = ExecutionMode.COLOCATED_SYNC
    fit = fit or _default_fit()
    result = Estimate()
    works = _comparable(run, result)
    references = [work for work in works if _is_reference(work.row)]
    if not any(work.row.governor is not True for work in works):
        result.reason = "no update under lowered clocks has time, energy and token counts" + _why(result)
        return result
    if len(references) < MIN_REFERENCES:
        result.reason = (
            f"{len(references)} usable governor updates to compare with; {MIN_REFERENCES} are needed"
            + _why(result)
        )
        return result
    model = fit([work.record for work in references], mode)
    if model is None:
        result.reason = f"the governor model cannot be fitted on these {len(references)} governor updates"
        return result
    works = _predict(works, model, result)
    references = _without_stragglers([work for work in works if _is_reference(work.row)])
    for work in references:
        work.reference = True
    result.references = len(references)
    scale_s, scale_j = _governor_ratio(references)
    for work in works:
        work.governor_elapsed_s *= scale_s
        work.governor_energy_j *= scale_j
        result.predictions[work.row.index] = (work.governor_elapsed_s, work.governor_energy_j)
    lock = next((row.index for row in run.updates if row.state == "locked"), None)
    parts = {"whole": works, "lowered": [work for work in works if work.row.governor is not True]}
    if lock is not None:
        parts["before_lock"] = [work for work in works if work.row.index < lock]
        parts["after_lock"] = [work for work in works if work.row.index >= lock]
    result.intervals = {name: _interval(name, part) for name, part in parts.items() if part}
    result.compared = len(works)
    _without_flagged(works, result)
    _add_spread(result, parts, fit, mode)
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


def _default_fit() -> Fit:
    from eerl_controller.governor import GovernorModel

    return GovernorModel.fit


def _why(result: Estimate) -> str:
    parts = [f"{count} {reason}" for reason, count in result.left_out.most_common()]
    return f" (left out: {', '.join(parts)})" if parts else ""


def _comparable(run: Run, result: Estimate) -> list[Work]:
    works = []
    for row in run.updates:
        work = _work(row)
        if isinstance(work, str):
            result.left_out[work] += 1
        else:
            works.append(work)
    return works


def _work(row: UpdateRow) -> Work | str:
    """The update as it is compared, or why it cannot be."""
    visits = {name: entry for name, entry in _tables(row.record.get("phases")).items() if name in VISITING}
    if row.elapsed_s is None or row.energy_j is None or row.energy_j <= 0:
        return "without measured time or energy"
    if "partial_energy" in row.flags:
        return "with partly measured energy"
    if row.governor is not True:
        if not (row.valid_tokens and row.generated_tokens):
            return "without token counts"
        if any(name in row.flags and name not in visits for name in VISITING):
            return "with validation or checkpoint inside another phase"
        if any(number(entry.get("energy_j")) is None for entry in visits.values()):
            return "with validation or checkpoint of unknown energy"
    record = read_record(row.record)
    if record is None:
        return "with a record that cannot be read"
    return Work(row, record, row.elapsed_s, row.energy_j)


def read_record(values: Mapping[str, Any]) -> UpdateRecord | None:
    """The controller's record from its line in the ledger; None when it is not one."""
    from eerl_controller.records import FLAGS, PhaseRecord, PoolRecord, RecordError, UpdateRecord

    known = {item.name for item in fields(UpdateRecord)} - {"phases", "pools", "flags"}
    flags = values.get("flags")
    try:
        return UpdateRecord(
            **{key: value for key, value in values.items() if key in known},
            phases={
                name: PhaseRecord(elapsed_s=entry.get("elapsed_s"), energy_j=entry.get("energy_j"))
                for name, entry in _tables(values.get("phases")).items()
            },
            pools={
                name: PoolRecord(**{item.name: entry.get(item.name) for item in fields(PoolRecord)})
                for name, entry in _tables(values.get("pools")).items()
            },
            flags=frozenset(flag for flag in flags if flag in FLAGS)
            if isinstance(flags, list)
            else frozenset(),
        )
    except (RecordError, TypeError):
        return None


def _tables(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): entry for name, entry in value.items() if isinstance(entry, Mapping)}


def _is_reference(row: UpdateRow) -> bool:
    return (
        row.governor is True
        and row.usable
        and bool(row.valid_tokens and row.generated_tokens)
        and not UNFIT.intersection(row.flags)
    )


def _predict(works: Sequence[Work], model: Model, result: Estimate) -> list[Work]:
    kept = []
    for work in works:
        has_counts = bool(work.row.valid_tokens and work.row.generated_tokens)
        found = model.predict(work.record) if has_counts else None
        if found is not None and found.energy_j is not None and found.elapsed_s > 0 and found.energy_j > 0:
            work.governor_elapsed_s, work.governor_energy_j = found.elapsed_s, found.energy_j
            if work.row.governor is not True and getattr(found, "inside_coverage", True) is False:
                result.outside_coverage += 1
            kept.append(work)
        elif work.row.governor is True:
            # Its own counterfactual: it needs no prediction to count in the totals.
            work.governor_elapsed_s, work.governor_energy_j = work.elapsed_s, work.energy_j
            kept.append(work)
        else:
            result.left_out["that the governor model cannot predict"] += 1
    return kept


def _without_stragglers(references: Sequence[Work]) -> list[Work]:
    """Governor updates without those the model's own rule calls stragglers (or warm-up).

    A rank that hung once must not become a saving: kept in, it would raise what the governor is said to need.
    """
    from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
    from eerl_controller.regression import robust_sd

    kept = list(references)
    for measured, predicted in (("elapsed_s", "governor_elapsed_s"), ("energy_j", "governor_energy_j")):
        logs = [math.log(getattr(work, measured) / getattr(work, predicted)) for work in references]
        limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
        middle = median(logs)
        out = {id(work) for work, value in zip(references, logs, strict=True) if abs(value - middle) > limit}
        kept = [work for work in kept if id(work) not in out]
    return kept


def _governor_ratio(references: Sequence[Work]) -> tuple[float, float]:
    """Measured over predicted of the references: (time, energy)."""
    return (
        sum(work.elapsed_s for work in references) / sum(work.governor_elapsed_s for work in references),
        sum(work.energy_j for work in references) / sum(work.governor_energy_j for work in references),
    )


def _interval(name: str, works: Sequence[Work]) -> Interval:
    lowered = [work for work in works if work.row.governor is not True]
    held = [work for work in works if work.row.governor is True]
    clocks = Counter((work.row.generation_mhz, work.row.training_mhz) for work in lowered)
    (generation_mhz, training_mhz), most = clocks.most_common(1)[0] if clocks else ((None, None), 0)
    return Interval(
        name=name,
        first_update=works[0].row.update,
        last_update=works[-1].row.update,
        updates=len(works),
        lowered_updates=len(lowered),
        generation_mhz=generation_mhz,
        training_mhz=training_mhz,
        clocks_vary=most < len(works),
        measured_energy_j=sum(work.energy_j for work in works),
        governor_energy_j=sum(work.governor_energy_j for work in lowered)
        + sum(work.energy_j for work in held),
        measured_s=sum(work.elapsed_s for work in works),
        governor_s=sum(work.governor_elapsed_s for work in lowered) + sum(work.elapsed_s for work in held),
        valid_tokens=sum(work.row.valid_tokens or 0.0 for work in works),
    )


def _without_flagged(works: Sequence[Work], result: Estimate) -> None:
    """How much the lowered updates that were flagged (stragglers and the like) weigh in the result."""
    flagged = [work for work in works if work.row.governor is not True and not work.row.usable]
    result.flagged = len(flagged)
    rest = [work for work in works if work.row.governor is True or work.row.usable]
    if flagged and any(work.row.governor is not True for work in rest):
        result.saving_without_flagged_percent = _interval("rest", rest).saving_percent


def _add_spread(result: Estimate, parts: Mapping[str, Sequence[Work]], fit: Fit, mode: ExecutionMode) -> None:
    """95 % intervals of every part, by moving-block bootstrap (blocks keep the drift between neighbours)."""
    import numpy as np

    references = [work for work in parts["whole"] if work.reference]
    count = len(references)
    block = max(2, round(count ** (1 / 3)))  # the usual rate for block lengths
    rng = np.random.default_rng(0)
    residuals = np.array(
        [
            (work.elapsed_s / work.governor_elapsed_s, work.energy_j / work.governor_energy_j)
            for work in references
        ]
    )
    # A fit hugs its own points: residuals are widened by the degrees of freedom it took (three at most).
    residuals = 1.0 + (residuals / residuals.mean(axis=0) - 1.0) * math.sqrt(count / max(count - 3, 1))

    def draw(length: int) -> list[int]:
        starts = rng.integers(0, count - block + 1, size=-(-length // block))
        return [int(start) + step for start in starts for step in range(block)][:length]

    # The whole is the sum of its parts, so the parts are drawn and the whole follows from them.
    leaves = [name for name in ("before_lock", "after_lock") if parts.get(name)] or ["whole"]
    lowered = {name: [work for work in parts[name] if work.row.governor is not True] for name in leaves}
    sample = {name: works[:: max(1, len(works) // SPREAD_OVER)] for name, works in lowered.items()}
    draws: dict[str, list[tuple[float, float]]] = {name: [] for name in leaves}
    for _ in range(REPLICATES):
        chosen = [references[place] for place in draw(count)]
        model = fit([work.record for work in chosen], mode)
        scale = None if model is None else _totals(model, chosen)
        if model is None or scale is None:
            continue
        scale_s = sum(work.elapsed_s for work in chosen) / scale[0]
        scale_j = sum(work.energy_j for work in chosen) / scale[1]
        for name in leaves:
            again = _totals(model, sample[name])
            if not lowered[name] or again is None:
                draws[name].append((0.0, 0.0))
                continue
            noise = residuals[draw(len(lowered[name]))].mean(axis=0)
            first_s = sum(work.governor_elapsed_s for work in sample[name])
            first_j = sum(work.governor_energy_j for work in sample[name])
            whole_s = sum(work.governor_elapsed_s for work in lowered[name])
            whole_j = sum(work.governor_energy_j for work in lowered[name])
            draws[name].append(
                (
                    whole_s * (again[0] * scale_s / first_s) * float(noise[0]),
                    whole_j * (again[1] * scale_j / first_j) * float(noise[1]),
                )
            )
    for name, interval in result.intervals.items():
        used = [name] if name in leaves else leaves
        total = np.sum([np.array(draws[leaf]).reshape(-1, 2) for leaf in used], axis=0)
        if len(total) < REPLICATES // 2 or interval.lowered_updates == 0:
            continue
        held = [work for work in parts[name] if work.row.governor is True]
        governor_s = total[:, 0] + sum(work.elapsed_s for work in held)
        governor_j = total[:, 1] + sum(work.energy_j for work in held)
        saving = 100.0 * (1.0 - interval.measured_energy_j / governor_j)
        throughput = 100.0 * (governor_s / interval.measured_s - 1.0)
        interval.saving_low_percent, interval.saving_high_percent = map(
            float, np.percentile(saving, (2.5, 97.5))
        )
        interval.throughput_change_low_percent, interval.throughput_change_high_percent = map(
            float, np.percentile(throughput, (2.5, 97.5))
        )


def _totals(model: Model, works: Sequence[Work]) -> tuple[float, float] | None:
    total_s = total_j = 0.0
    for work in works:
        found = model.predict(work.record)
        if found is None or found.energy_j is None:
            return None
        total_s += found.elapsed_s
        total_j += found.energy_j
    return (total_s, total_j) if total_s > 0 and total_j > 0 else None
