"""``eerl compare``: controller runs against governor runs, as one document that text, JSON and CSV show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from eerl_launch.evidence.comparable import check_comparable, notes
from eerl_launch.evidence.estimator import CONFIDENCE_PERCENT, Comparison
from eerl_launch.evidence.normalized import normalized
from eerl_launch.evidence.paired import Stretch, compare_pairs, stretches
from eerl_launch.evidence.pooled import FIRST_POSITION, PooledModel, fit_pooled
from eerl_launch.evidence.predictor import evaluate_predictor
from eerl_launch.evidence.runs import EvidenceError, RunData, load_run, one_line, same_folder
from eerl_launch.report.heap import collections_paused
from eerl_launch.report.values import text

SCHEMA = "eerl.compare"
SCHEMA_VERSION = 1

#: Numbers as measured, nothing rounded.
Document = dict[str, Any]


def compare(folders: Sequence[Path]) -> Document:
    """The comparison of the runs in ``folders``.

    A controller run is paired with the first governor run named after it, else with the first one named; all
    governor runs are pooled for the comparison at equal work. Raises :class:`EvidenceError` when the runs cannot
    be compared, :class:`LedgerError` for what is no ledger.
    """
    for one, other in combinations(folders, 2):
        if same_folder(one, other):
            raise EvidenceError(f"{other}: given twice")
    with collections_paused():
        runs = [load_run(folder) for folder in folders]
    _tell_apart(runs)
    governors = [data for data in runs if data.is_governor]
    controlled = [data for data in runs if not data.is_governor]
    if not governors:
        raise EvidenceError(
            "no governor run among these: make one with `policy: governor`, same job, same seed, and name it too"
        )
    shared = check_comparable(runs)
    common = min(len(data.frame) for data in runs)
    document: Document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "simulated": next((data.run.simulated for data in runs), None),
        "configuration": {"words": shared.words, **asdict(shared)},
        "confidence_percent": CONFIDENCE_PERCENT,
        "common_updates": common,
        "runs": [_head(data) for data in runs],
        "notes": notes(runs),
        "paired": [],
        "paired_mean": None,
        "normalized": [],
        "normalized_reason": None,
        "predictor": None,
    }
    if controlled:
        pairs = [(data, _partner(data, runs)) for data in controlled]
        document["paired"] = [row for pair in pairs for row in _paired(pair, common)]
        if len(pairs) > 1:
            mean = compare_pairs(pairs, FIRST_POSITION, common)
            document["paired_mean"] = {"pairs": len(pairs), **_changes(mean)}
        _normalize(document, controlled, governors, shared.mode, common)
    else:
        document["notes"].append("no controller run among these: only the governor's own tables are made")
    errors = evaluate_predictor(governors)
    document["predictor"] = None if errors is None else asdict(errors)
    return document


def _tell_apart(runs: Sequence[RunData]) -> None:
    """Runs whose folders are named alike are called by their paths."""
    names = [data.name for data in runs]
    for data in runs:
        if names.count(data.name) > 1:
            data.name = one_line(str(data.folder))


def _head(data: RunData) -> dict[str, Any]:
    return {
        "run": data.name,
        "folder": str(data.folder),
        "role": "governor" if data.is_governor else "controller",
        "policy": data.policy,
        "time_iso": text(data.run.start.get("time_iso")),
        "simulated": data.run.simulated,
        "updates": len(data.frame),
        "usable_updates": int(data.frame["usable"].sum()),
        "locked_at_update": data.lock_position,
        "problems": list(data.problems),
    }


def _partner(data: RunData, runs: Sequence[RunData]) -> RunData:
    """The first governor run named after this one, else the first named."""
    after = runs[[item is data for item in runs].index(True) + 1 :]
    return next(item for item in (*after, *runs) if item.is_governor)


def _span(data: RunData, stretch: Stretch) -> dict[str, Any]:
    return {
        "run": data.name,
        "interval": stretch.name,
        "first_update": stretch.first,
        "last_update": stretch.last,
        "clocks_mhz": stretch.clocks,
    }


def _changes(found: Comparison) -> dict[str, Any]:
    saving_low, saving_high = found.energy.saving_interval()
    change_low, change_high = found.throughput.change_interval()
    return {
        "energy_saving_percent": found.energy_saving_percent,
        "energy_saving_low_percent": saving_low,
        "energy_saving_high_percent": saving_high,
        "throughput_change_percent": found.throughput_change_percent,
        "throughput_change_low_percent": change_low,
        "throughput_change_high_percent": change_high,
        "power_change_percent": found.power.change_percent,
    }


def _paired(pair: tuple[RunData, RunData], common: int) -> list[dict[str, Any]]:
    data, governor = pair
    rows = []
    for stretch in stretches(data, common):
        row = {**_span(data, stretch), "governor": governor.name, "reason": None}
        try:
            rows.append(row | _changes(compare_pairs([pair], stretch.first, stretch.last)))
        except EvidenceError as error:
            rows.append(row | {"reason": str(error)})
    return rows


def _normalize(
    document: Document, controlled: Sequence[RunData], governors: Sequence[RunData], mode: str, common: int
) -> None:
    """Appendix E, where there are at least two governor runs to pool."""
    if len(governors) < 2:
        document["normalized_reason"] = (
            "one governor run: two or more are pooled for a model of the work, and tell the noise between runs"
        )
        return
    frames = [data.frame for data in governors]
    try:
        model = fit_pooled(frames, mode)
    except EvidenceError as error:
        document["normalized_reason"] = str(error)
        return
    document["normalized_model"] = {"features": list(model.features), "governor_updates": model.updates}
    for data in controlled:
        for stretch in stretches(data, common):
            document["normalized"].append(_normalized_row(data, stretch, frames, governors, model))


def _normalized_row(
    data: RunData,
    stretch: Stretch,
    frames: Sequence[Any],
    governors: Sequence[RunData],
    model: PooledModel,
) -> dict[str, Any]:
    row = {**_span(data, stretch), "reason": None}
    try:
        found = normalized(data.frame, frames, model, stretch.first, stretch.last)
    except EvidenceError as error:
        return row | {"reason": str(error)}
    saving_low, saving_high = found.energy.saving_interval()
    change_low, change_high = found.throughput.change_interval()
    names = [item.name for item in governors]
    return row | {
        "updates": found.updates,
        "energy_saving_percent": found.energy_saving_percent,
        "energy_saving_low_percent": saving_low,
        "energy_saving_high_percent": saving_high,
        "throughput_change_percent": found.throughput.change_percent,
        "throughput_change_low_percent": change_low,
        "throughput_change_high_percent": change_high,
        "governor_time_spread_percent": _spread(found.governor_time_ratios),
        "governor_energy_spread_percent": _spread(found.governor_energy_ratios),
        "governor_time_ratios": dict(zip(names, found.governor_time_ratios, strict=True)),
        "governor_energy_ratios": dict(zip(names, found.governor_energy_ratios, strict=True)),
    }


def _spread(ratios: Sequence[float]) -> float:
    """The farthest that a governor run lies from the mean of them, percent: the noise that is left."""
    mean = sum(ratios) / len(ratios)
    return 100.0 * max(abs(ratio / mean - 1.0) for ratio in ratios)
