"""Phase signatures: time, power and energy of each phase and subphase, by update, by valid token and by GPU.

Means are over the updates in which a phase ran; what is said per token or of the whole is over all updates that
have both sides, so that parts add up. ``update`` is the row of whole updates, ``unattributed`` what no phase claims:
where pools work at the same time, what is left of the GPUs' seconds and joules, as seconds of the whole allocation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eerl_launch.profiles.gather import Gathered, Phase, empty_phase
from eerl_launch.profiles.spread import Spread, Values, quotient, ratio_of_sums, spread
from eerl_launch.report.totals import ASYNCHRONOUS

UPDATE, UNATTRIBUTED = "update", "unattributed"
NO_TOKENS = "no update has valid training tokens: the trainer sends no counts"

#: A row of the table, with the unit in every key.
SignatureRow = dict[str, Any]


def signature(run: Gathered) -> list[SignatureRow]:
    """The rows: phases in order with their subphases, ``unattributed``, and ``update``."""
    rows = [_row(run, phase) for phase in run.phases]
    rest = empty_phase(UNATTRIBUTED, True, len(run.updates))
    rest.elapsed_s, rest.energy_j = _rest_s(run), run.values("unattributed_j")
    whole = empty_phase(UPDATE, False, len(run.updates))
    whole.elapsed_s, whole.energy_j = run.values("elapsed_s"), run.energy_j
    for phase in (rest, whole):
        phase.gpus = run.gpus
        if np.isfinite(phase.elapsed_s).any():
            rows.append(_row(run, phase))
    return rows


def _rest_s(run: Gathered) -> Values:
    """Seconds of each update that no phase claims."""
    if run.run.mode not in ASYNCHRONOUS:
        return run.values("unattributed_s")
    gpus = max(run.gpus, 1)
    claimed_s = sum(
        (part(phase.elapsed_s, phase) * phase.gpus / gpus for phase in run.phases if phase.exclusive),
        np.zeros(len(run.updates)),
    )
    return np.maximum(run.values("elapsed_s") - claimed_s, 0.0)


def _row(run: Gathered, phase: Phase) -> SignatureRow:
    gpus = phase.gpus or None
    power_w = quotient(phase.energy_j, phase.elapsed_s)
    measured_s = np.where(np.isfinite(phase.energy_j), phase.elapsed_s, np.nan)
    mean_power_w = ratio_of_sums(phase.energy_j, measured_s)
    elapsed, energy, power = spread(phase.elapsed_s), spread(phase.energy_j), spread(power_w)
    ran = phase.ran
    unmeasured = int((ran & ~np.isfinite(phase.energy_j)).sum())
    return {
        "phase": phase.name,
        "subphase_of": phase.name.rsplit("/", 1)[0] if "/" in phase.name else None,
        "exclusive": phase.exclusive,
        "gpus": gpus,
        "updates": int(ran.sum()),
        "runs": phase.runs or None,
        "runs_without_end": phase.incomplete,
        **_spread("elapsed_s", elapsed),
        **_spread("energy_j", energy),
        "mean_power_w": mean_power_w,
        "mean_power_w_per_gpu": _by_gpu(mean_power_w, gpus),
        "p10_power_w_per_gpu": _by_gpu(None if power is None else power.p10, gpus),
        "p90_power_w_per_gpu": _by_gpu(None if power is None else power.p90, gpus),
        "mean_energy_j_per_gpu": _by_gpu(None if energy is None else energy.mean, gpus),
        **_of_whole(run, phase),
        "busy_fraction": ratio_of_sums(phase.busy_s, phase.busy_known_s),
        "capped_fraction": ratio_of_sums(phase.capped_s, phase.capped_known_s),
        "achieved_mhz": ratio_of_sums(phase.mhz_s, phase.mhz_known_s),
        "estimated_runs": phase.estimated,
        "energy_reason": _energy_reason(phase, unmeasured),
    }


def _spread(name: str, found: Spread | None) -> dict[str, float | None]:
    quantities = ("mean", "p10", "median", "p90")
    return {f"{part}_{name}": None if found is None else getattr(found, part) for part in quantities}


def _by_gpu(value: float | None, gpus: int | None) -> float | None:
    return None if value is None or gpus is None else value / gpus


def _energy_reason(phase: Phase, unmeasured: int) -> str | None:
    """Why joules are missing in some updates or of low confidence, None when they are neither."""
    if unmeasured:
        why = f": {phase.estimated_reason}" if phase.estimated_reason else ""
        return f"not known in {unmeasured} of {int(phase.ran.sum())} updates{why}"
    return phase.estimated_reason


def _of_whole(run: Gathered, phase: Phase) -> dict[str, float | int | None]:
    """The phase as a part: its share of updates, and what it takes per valid token; where it did not run, nothing."""
    seconds, joules = part(phase.elapsed_s, phase), part(phase.energy_j, phase)
    tokens = run.values("valid_tokens")
    tokens[tokens == 0] = np.nan
    gpus = phase.gpus or None
    seconds_per_million = ratio_of_sums(seconds, tokens / 1e6)
    return {
        "elapsed_fraction": ratio_of_sums(seconds, _where(run.values("elapsed_s"), seconds)),
        "energy_fraction": ratio_of_sums(joules, _where(run.energy_j, joules)),
        "mean_elapsed_s_of_all_updates": float(np.nanmean(seconds)) if np.isfinite(seconds).any() else None,
        "mean_energy_j_of_all_updates": float(np.nanmean(joules)) if np.isfinite(joules).any() else None,
        "updates_with_tokens": int((np.isfinite(joules) & np.isfinite(tokens)).sum()),
        "energy_j_per_valid_token": ratio_of_sums(joules, tokens),
        "elapsed_s_per_million_valid_tokens": seconds_per_million,
        "gpu_s_per_million_valid_tokens": None
        if seconds_per_million is None or gpus is None
        else seconds_per_million * gpus,
    }


def part(values: Values, phase: Phase) -> Values:
    """The values with nothing (0) for updates in which the phase did not run."""
    return np.where(phase.ran, values, 0.0)


def _where(whole: Values, known: Values) -> Values:
    return np.where(np.isfinite(known), whole, np.nan)
