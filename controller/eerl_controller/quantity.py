"""A quantity of the governor, seconds or joules of an update, as a function of its work (paper, section 5.1).

Synchronous modes: each phase from token counts (generation: G and L; training, log-prob, critic: N), plus the
governor median of everything else. Drained updates: the longer of generation's and training's arrival, plus the
median of what follows the rendezvous. Other overlapping phases, energy of overlapping pools, and records without
phases: the whole update from its counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from eerl_controller.records import ExecutionMode
from eerl_controller.regression import LogLinear, fit_log_linear
from eerl_controller.work import BEFORE, GENERATION_PHASES, LEAST, TRAINING_PHASES, Observation

#: Fewer governor updates than this are no reference: a median of two is an accident.
MIN_REFERENCES = 3

_SYNCHRONOUS = (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC)


@dataclass(frozen=True, slots=True)
class QuantityModel:
    """Seconds (or joules) of the governor: fitted terms by phase, and the median of the rest.

    ``overlapping`` terms run side by side: the longest counts, not their sum. ``ratio`` makes the predicted total
    of the references the observed one: noise in either of two near terms lengthens the longer.
    """

    terms: Mapping[str, LogLinear]
    rest: float
    residual_sd: float
    overlapping: bool = False
    ratio: float = 1.0

    def by_term(self, counts: Mapping[str, float]) -> dict[str, float]:
        """What each fitted term predicts for this work."""
        return {name: term.predict(counts) for name, term in self.terms.items()}

    def total(self, counts: Mapping[str, float]) -> float:
        """What the whole update takes for this work."""
        values = self.by_term(counts).values()
        return self.ratio * ((max(values) if self.overlapping else sum(values)) + self.rest)


#: The term that stands for an update whose phases are unknown or overlap.
WHOLE = "update"


def features(term: str, mode: ExecutionMode, rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """The counts that a term depends on, most important first (paper, section 5.1 and appendix E)."""
    if term in TRAINING_PHASES:
        return ("valid",)
    if term in GENERATION_PHASES:
        # Without G the tokens that training uses are the nearest thing known about what was generated.
        return ("generated" if all("generated" in row for row in rows) else "valid", "longest")
    if mode is ExecutionMode.ASYNC_INFLIGHT:
        # Section 6.3: what training consumes; the longest generated only where consumption is not told apart.
        known = all("longest_consumed" in row for row in rows)
        return ("valid", BEFORE, "longest_consumed" if known else "longest")
    return ("generated", "longest", "valid")


def pool_features(term: str, mode: ExecutionMode, rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """The counts that a pool's seconds depend on: its phase's, but in-flight no response ends with the update."""
    names = features(term, mode, rows)
    return names[:1] if mode is ExecutionMode.ASYNC_INFLIGHT else names


def expected_phases(observations: Sequence[Observation], mode: ExecutionMode) -> tuple[str, ...]:
    """The phases with a fitted term: run in most governor updates, and not all of them unknown."""
    if mode not in _SYNCHRONOUS:
        return ()
    wanted = [*GENERATION_PHASES, *TRAINING_PHASES]
    ran = {
        name: sum(item.phases.get(name, (0.0, None))[0] >= LEAST for item in observations) for name in wanted
    }
    usual = tuple(name for name in wanted if 2 * ran[name] > len(observations))
    return usual if set(usual) & {"generation", "training"} else ()


def has_phases(observation: Observation, phases: Sequence[str]) -> bool:
    """Whether this update ran all these phases for a measured time."""
    return all(observation.phases.get(name, (0.0, None))[0] >= LEAST for name in phases)


def _seconds(observation: Observation, phase: str) -> float | None:
    return observation.phases[phase][0]


def _joules(observation: Observation, phase: str) -> float | None:
    joules = observation.phases[phase][1]
    return joules if joules is not None and joules >= LEAST else None


def fit_quantity(
    observations: Sequence[Observation], phases: Sequence[str], mode: ExecutionMode, *, energy: bool
) -> QuantityModel | None:
    """The model of seconds, or of joules, from governor observations; None when too few know the quantity."""
    part = _joules if energy else _seconds
    known = [item for item in observations if not energy or item.energy_j is not None]
    if len(known) < MIN_REFERENCES:
        return None
    whole = [item.energy_j if energy and item.energy_j is not None else item.elapsed_s for item in known]
    parts: dict[str, list[float]] = {}
    for name in phases:
        values = [part(item, name) for item in known]
        complete = [value for value in values if value is not None]
        if len(complete) < len(values):
            parts.clear()
            break
        parts[name] = complete
    rows = [item.counts for item in known]
    if parts:
        rests = [total - sum(parts[name][i] for name in parts) for i, total in enumerate(whole)]
        rest = max(median(rests), 0.0)
    else:
        parts, rest = {WHOLE: whole}, 0.0
    terms = {name: fit_log_linear(features(name, mode, rows), rows, values) for name, values in parts.items()}
    return _with_residuals(QuantityModel(terms, rest, 0.0), rows, whole)


def fit_overlapping(observations: Sequence[Observation], mode: ExecutionMode) -> QuantityModel | None:
    """The model of seconds of drained updates from the governor's arrivals; None when too few are known."""
    met = [(item, item.arrivals_s) for item in observations if item.arrivals_s is not None]
    if len(met) < MIN_REFERENCES:
        return None
    rows = [item.counts for item, _ in met]
    terms = {
        name: fit_log_linear(pool_features(name, mode, rows), rows, [arrivals[axis] for _, arrivals in met])
        for axis, name in enumerate(("generation", "training"))
    }
    rest = max(median(item.elapsed_s - max(arrivals) for item, arrivals in met), 0.0)
    model = QuantityModel(terms, rest, 0.0, overlapping=True)
    all_rows, whole = [item.counts for item in observations], [item.elapsed_s for item in observations]
    model = replace(model, ratio=sum(whole) / sum(model.total(row) for row in all_rows))
    return _with_residuals(model, all_rows, whole)


def _with_residuals(
    model: QuantityModel, rows: Sequence[Mapping[str, float]], whole: Sequence[float]
) -> QuantityModel:
    """The model with the spread of the log of what was observed about it."""
    residuals = [math.log(total / model.total(row)) for total, row in zip(whole, rows, strict=True)]
    used = max(len(term.names) for term in model.terms.values())
    freedom = max(len(residuals) - 1 - used, 1)
    return replace(model, residual_sd=math.sqrt(sum(value * value for value in residuals) / freedom))
