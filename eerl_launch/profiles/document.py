"""Profiles of runs and the runs side by side as one JSON-able mapping, which text, page and CSV all show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eerl_launch.errors import LedgerError, OptionError
from eerl_launch.evidence.runs import same_folder
from eerl_launch.profiles.axes import Told, describe, differences, parse_labels, words
from eerl_launch.profiles.gather import Gathered, gather
from eerl_launch.profiles.imbalance import imbalance
from eerl_launch.profiles.responses import responses
from eerl_launch.profiles.rewards import reward_cost
from eerl_launch.profiles.signatures import NO_TOKENS, UPDATE, signature
from eerl_launch.report.totals import ASYNCHRONOUS

SCHEMA = "eerl.profile"
SCHEMA_VERSION = 1

#: Numbers as measured, nothing rounded.
Document = dict[str, Any]

#: What runs are held against each other by: key, where it is in a run's profile.
COMPARED = (
    ("elapsed_s_per_update", (UPDATE, "mean_elapsed_s")),
    ("energy_j_per_update", (UPDATE, "mean_energy_j")),
    ("energy_j_per_gpu_and_update", (UPDATE, "mean_energy_j_per_gpu")),
    ("power_w_per_gpu", (UPDATE, "mean_power_w_per_gpu")),
    ("energy_j_per_valid_token", (UPDATE, "energy_j_per_valid_token")),
    ("elapsed_s_per_million_valid_tokens", (UPDATE, "elapsed_s_per_million_valid_tokens")),
    ("gpu_s_per_million_valid_tokens", (UPDATE, "gpu_s_per_million_valid_tokens")),
    ("generation_elapsed_fraction", ("generation", "elapsed_fraction")),
    ("generation_energy_fraction", ("generation", "energy_fraction")),
    ("training_elapsed_fraction", ("training", "elapsed_fraction")),
    ("training_energy_fraction", ("training", "energy_fraction")),
    ("reward_elapsed_fraction", ("reward", "elapsed_fraction")),
    ("reward_energy_fraction", ("reward", "energy_fraction")),
)


@dataclass(slots=True)
class Profiles:
    """The document, and the runs it was made of for pictures over their updates."""

    document: Document
    runs: list[Gathered] = field(default_factory=list)


def profile(
    folders: Sequence[Path], labels: Sequence[str] = (), clocks: str = "all", skip: int = 0
) -> Profiles:
    """The profiles of the runs in ``folders``, of their updates under these ``clocks`` after the first ``skip``.

    A ledger that cannot be used is named under ``unreadable`` with the reason; with no usable one that reason is
    raised as :class:`LedgerError`. A label that cannot be one raises :class:`OptionError`.
    """
    for place, folder in enumerate(folders):
        if any(same_folder(folder, other) for other in folders[:place]):
            raise OptionError(f"{folder}: given twice")
    runs, places, unreadable, first = [], [], [], None
    for place, folder in enumerate(folders):
        try:
            runs.append(gather(folder, clocks, skip))
            places.append(place)
        except LedgerError as error:
            unreadable.append({"folder": str(folder), "reason": str(error)})
            first = first or error
    if first is not None and not runs:
        raise LedgerError("\n".join(row["reason"] for row in unreadable)) from first
    names = [folder.resolve().name or str(folder) for folder in folders]
    names = [
        name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)
    ]
    by_place = parse_labels(labels, names)
    described = []
    for place, run in zip(places, runs, strict=True):
        run.name = names[place]
        described.append(describe(run, by_place[place]))
    document: Document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "simulated": next((run.run.simulated for run in runs if run.run.simulated), None),
        "clocks": clocks,
        "runs": [_profile(run, axes) for run, axes in zip(runs, described, strict=True)],
        "unreadable": unreadable,
        "comparison": None,
    }
    if len(runs) > 1:
        document["comparison"] = _comparison(document["runs"], described)
    return Profiles(document, runs)


def _profile(run: Gathered, axes: Mapping[str, Told]) -> dict[str, Any]:
    rows = signature(run)
    problems = list(run.problems)
    if not any(row["updates_with_tokens"] for row in rows):
        problems.append(NO_TOKENS)
    if run.run.mode in ASYNCHRONOUS:
        problems.append(
            "generation and training run at the same time: shares of time add up to more than the whole"
        )
    return {
        "run": run.name,
        "folder": str(run.folder),
        "time_iso": run.run.start.get("time_iso"),
        "simulated": run.run.simulated,
        "eerl_version": (run.run.start.get("versions") or {}).get("eerl"),
        "axes": {axis: {"value": told.value, "origin": told.origin} for axis, told in axes.items()},
        "gpus": run.gpus,
        "updates": len(run.updates),
        "updates_in_ledger": len(run.run.updates),
        "lowered_updates": sum(row.governor is not True for row in run.updates),
        "problems": problems,
        "signature": rows,
        "responses": responses(run),
        "imbalance": imbalance(run),
        "reward": reward_cost(run, rows, axes["reward"].value),
    }


def _comparison(
    profiles: Sequence[Mapping[str, Any]], described: Sequence[Mapping[str, Told]]
) -> dict[str, Any]:
    rows = differences(described)
    notes = words(rows)
    versions = list(dict.fromkeys(str(one["eerl_version"]) for one in profiles))
    if len(versions) > 1:
        notes.append(f"the ledgers were written by different versions of eerl: {', '.join(versions)}")
    return {
        "runs": [one["run"] for one in profiles],
        "axes": rows,
        "differing_axes": [row["axis"] for row in rows if row["differs"]],
        "notes": notes,
        "quantities": [
            {"quantity": key, "values": values, "relative_to_first": _relative(values)}
            for key, where in COMPARED
            for values in [[_value(one, *where) for one in profiles]]
        ],
        "lengths": [
            {"quantity": key, "values": values, "relative_to_first": _relative(values)}
            for key in (
                "mean_tokens",
                "valid_tokens_per_response",
                "longest_over_mean",
                "empty_places_fraction",
                "tail_fraction",
            )
            for values in [[_mean(one["responses"][key]) for one in profiles]]
        ]
        + [
            {"quantity": key, "values": values, "relative_to_first": _relative(values)}
            for key in ("waiting_fraction", "power_unevenness_fraction")
            for values in [[one["imbalance"][key] for one in profiles]]
        ],
    }


def _value(one: Mapping[str, Any], phase: str, key: str) -> float | None:
    row = next((row for row in one["signature"] if row["phase"] == phase), None)
    value: float | None = None if row is None else row[key]
    return value


def _mean(found: Mapping[str, Any] | None) -> float | None:
    return None if found is None else float(found["mean"])


def _relative(values: Sequence[float | None]) -> list[float | None]:
    first = values[0]
    return [None if value is None or not first else value / first for value in values]
