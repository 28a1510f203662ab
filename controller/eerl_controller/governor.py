"""What the governor would have done with the same work: fitted from governor updates only (paper, section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, pstdev

from eerl_controller.overlap import fit_overlap
from eerl_controller.quantity import (
    MIN_REFERENCES,
    WHOLE,
    QuantityModel,
    expected_phases,
    features,
    fit_overlapping,
    fit_quantity,
    has_phases,
)
from eerl_controller.records import ExecutionMode, PhaseRecord, UpdateRecord
from eerl_controller.regression import OBSERVATIONS_PER_FEATURE, robust_residuals, robust_sd
from eerl_controller.work import (
    BEFORE,
    Observation,
    counts_of,
    observe_work,
    phase_totals,
    unusable_reason,
    valid_before,
    visitors,
)

#: A straggler is further from the fit than 3.5 robust standard deviations (Iglewicz and Hoaglin) ...
STRAGGLER_SD = 3.5
#: ... and by at least 5 %: in a very quiet job, being slightly slower is no reason to be left out.
STRAGGLER_FLOOR = 0.05
#: While updates are too few to account for their work, only one that is twice as far as the others is strange.
UNEXPLAINED_FLOOR = math.log(2.0)
#: Work is covered within the range of the references, widened by a quarter of it or by 10 %, whichever is more.
COVERAGE_WIDENING = 0.25
COVERAGE_FLOOR = 0.10


@dataclass(frozen=True, slots=True)
class GovernorPrediction:
    """An update as the governor would have run it: seconds, joules (None: no reference knows its energy).

    ``inside_coverage`` is False when its work lies outside what the references have seen; ``references`` is
    how many governor updates the prediction rests on.
    """

    elapsed_s: float
    energy_j: float | None
    phases: Mapping[str, PhaseRecord]
    inside_coverage: bool
    references: int


def stragglers(observations: Sequence[Observation], mode: ExecutionMode) -> list[bool]:
    """Which of these governor updates are far from what their work explains, in time or in energy.

    Warm-up updates show as stragglers too: they are slow for their work.
    """
    rows = [item.counts for item in observations]
    names = features(WHOLE, mode, rows)
    out = [False] * len(observations)
    for energy in (False, True):
        index = [i for i, item in enumerate(observations) if not energy or item.energy_j is not None]
        if len(index) < MIN_REFERENCES:
            continue
        values = [_whole(observations[i], energy) for i in index]
        residuals = robust_residuals(names, [rows[i] for i in index], values)
        explained = len(index) >= 2 * OBSERVATIONS_PER_FEATURE
        floor = STRAGGLER_FLOOR if explained else UNEXPLAINED_FLOOR
        spread = _clipped_sd(residuals) if mode is ExecutionMode.ASYNC_INFLIGHT else robust_sd(residuals)
        limit = max(STRAGGLER_SD * spread, floor)
        for i, residual in zip(index, residuals, strict=True):
            out[i] = out[i] or abs(residual) > limit
    return out


def _clipped_sd(residuals: Sequence[float]) -> float:
    """Standard deviation of what lies within ``STRAGGLER_SD`` of it.

    In-flight, an update that took longer is made up for by the next ones, and extra generation rounds are frequent
    without being told: a spread blind to a large minority would cut them off, and with them what clocks cost.
    """
    kept = list(residuals)
    while len(kept) >= MIN_REFERENCES:
        spread = pstdev(kept)
        inside = [value for value in kept if abs(value) <= STRAGGLER_SD * spread]
        if len(inside) == len(kept) or not inside:
            return spread
        kept = inside
    return robust_sd(residuals)


def _whole(observation: Observation, energy: bool) -> float:
    return observation.energy_j if energy and observation.energy_j is not None else observation.elapsed_s


class GovernorModel:
    """The governor's time and energy as a function of an update's token counts."""

    def __init__(
        self,
        mode: ExecutionMode,
        references: Sequence[Observation],
        phases: tuple[str, ...],
        time: QuantityModel,
        energy: QuantityModel | None,
    ) -> None:
        self.mode = mode
        #: The governor updates the model rests on, stragglers left out.
        self.references = tuple(references)
        #: The phases that an update must have run to be compared phase by phase.
        self.phases = phases
        self.time = time
        self.energy = energy
        #: Asynchronous updates: what a slower pool would have cost them; None where that is not known.
        self.overlap = fit_overlap(self.references, mode)
        self._ranges = _ranges(self.references, mode)
        self._other = _other_phases(self.references, phases)

    @classmethod
    def fit(cls, records: Sequence[UpdateRecord], mode: ExecutionMode) -> GovernorModel | None:
        """The model from governor records; unusable ones, warm-up and stragglers are left out.

        None when fewer than three usable records remain.
        """
        found = [
            observe_work(record, valid_before(record, previous))
            for record, previous in zip(records, [None, *records], strict=False)
            if unusable_reason(record) is None
        ]
        return cls.fit_observations(found, mode)

    @classmethod
    def fit_observations(
        cls, observations: Sequence[Observation], mode: ExecutionMode
    ) -> GovernorModel | None:
        """As :meth:`fit`, from observations that are known to be usable governor updates."""
        phases = expected_phases(observations, mode)
        whole = [item for item in observations if has_phases(item, phases)]
        if len(whole) < MIN_REFERENCES:
            return None
        kept = [item for item, out in zip(whole, stragglers(whole, mode), strict=True) if not out]
        time = fit_overlapping(kept, mode) if mode is ExecutionMode.ASYNC_DRAINED else None
        time = time or fit_quantity(kept, phases, mode, energy=False)
        if time is None:
            return None
        return cls(mode, kept, phases, time, fit_quantity(kept, phases, mode, energy=True))

    def covers(self, counts: Mapping[str, float]) -> bool:
        """Whether work like this lies within what the references have seen (module constants say how near)."""
        for name, (low, high) in self._ranges.items():
            count = counts.get(name)
            if count is None and name == BEFORE:
                continue
            if count is None:
                return False
            room = max(COVERAGE_FLOOR, COVERAGE_WIDENING * (high - low))
            if not low - room <= math.log1p(count) <= high + room:
                return False
        return True

    def slower_than_clocks_explain(self, record: UpdateRecord, slowdown: float) -> bool:
        """Whether an update took longer than its work and its clocks can explain: a straggler.

        ``slowdown`` is the governor's clock over the lowest clock in force: no work is slowed by more than that.
        """
        if record.elapsed_s is None:
            return False
        limit = slowdown * (1.0 + max(STRAGGLER_SD * self.time.residual_sd, STRAGGLER_FLOOR))
        return record.elapsed_s > limit * self.predict(record).elapsed_s

    def predict(self, record: UpdateRecord, before: UpdateRecord | None = None) -> GovernorPrediction:
        """The record's update as the governor would have run it; ``before`` is the one that came before, if known.

        Validation and checkpoint are taken as they were measured: no saving and no loss is claimed for them.
        """
        counts = counts_of(record, valid_before(record, before))
        seconds = self.time.by_term(counts)
        joules = self.energy.by_term(counts) if self.energy else {}
        totals = phase_totals(record)
        phases = {
            name: PhaseRecord(elapsed_s=value, energy_j=joules.get(name))
            for name, value in seconds.items()
            if name != WHOLE and not self.time.overlapping
        }
        phases.update({name: item for name, item in self._other.items() if name in totals})
        for name in ("checkpoint", "validation"):
            if name in totals:
                phases[name] = PhaseRecord(elapsed_s=totals[name][0], energy_j=totals[name][1])
        visit_s, visit_j = visitors(record)
        energy_j = self.energy.total(counts) + visit_j if self.energy else None
        return GovernorPrediction(
            elapsed_s=self.time.total(counts) + visit_s,
            energy_j=energy_j,
            phases=phases,
            inside_coverage=self.covers(counts),
            references=len(self.references),
        )


def _ranges(references: Sequence[Observation], mode: ExecutionMode) -> dict[str, tuple[float, float]]:
    """Lowest and highest log(1 + count) by feature of the mode, for features that every reference knows."""
    wanted = features(WHOLE, mode, [item.counts for item in references])
    names = [name for name in wanted if all(name in item.counts for item in references)]
    logs = {name: [math.log1p(item.counts[name]) for item in references] for name in names}
    return {name: (min(values), max(values)) for name, values in logs.items()}


def _other_phases(references: Sequence[Observation], fitted: Sequence[str]) -> dict[str, PhaseRecord]:
    """The governor median of every phase without a fitted term (refit, reward, ...): part of the rest."""
    names = sorted({name for item in references for name in item.phases} - set(fitted))
    found: dict[str, PhaseRecord] = {}
    for name in names:
        seconds = [item.phases[name][0] for item in references if name in item.phases]
        joules = [item.phases[name][1] for item in references if name in item.phases]
        known = [value for value in joules if value is not None]
        found[name] = PhaseRecord(elapsed_s=median(seconds), energy_j=median(known) if known else None)
    return found
