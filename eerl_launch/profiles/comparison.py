"""Runs side by side: their axes, what they took, and that against the first run with the chance within runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eerl_launch.profiles.axes import Told, differences, words
from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.noise import log_error, ratio_interval
from eerl_launch.profiles.signatures import UPDATE
from eerl_launch.profiles.spread import Values

#: What runs are held against each other by: key, the row and key of the signature where it is.
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
_LENGTHS = (
    "mean_tokens",
    "valid_tokens_per_response",
    "longest_over_mean",
    "empty_places_fraction",
    "tail_fraction",
)
_WAITING = ("waiting_fraction", "power_unevenness_fraction")


def compare_profiles(
    profiles: Sequence[Mapping[str, Any]], runs: Sequence[Gathered], described: Sequence[Mapping[str, Told]]
) -> dict[str, Any]:
    """The comparison of the runs, of which ``profiles`` are what is shown and ``described`` the axes."""
    rows = differences(described)
    notes = words(rows)
    versions = list(dict.fromkeys(str(one["eerl_version"]) for one in profiles))
    if len(versions) > 1:
        notes.append(f"the ledgers were written by different versions of eerl: {', '.join(versions)}")
    errors = [_errors(run) for run in runs]
    values = [(key, [_value(one, *where) for one in profiles]) for key, where in COMPARED]
    values += [(key, [_mean(one["responses"][key]) for one in profiles]) for key in _LENGTHS]
    values += [(key, [one["imbalance"][key] for one in profiles]) for key in _WAITING]
    return {
        "runs": [one["run"] for one in profiles],
        "axes": rows,
        "differing_axes": [row["axis"] for row in rows if row["differs"]],
        "notes": notes,
        "quantities": [_quantity(key, found, [error.get(key) for error in errors]) for key, found in values],
    }


def _quantity(key: str, values: Sequence[float | None], errors: Sequence[float | None]) -> dict[str, Any]:
    first = values[0]
    relative = [None if value is None or not first else value / first for value in values]
    intervals = [
        None if place == 0 else ratio_interval(ratio, errors[0], errors[place])
        for place, ratio in enumerate(relative)
    ]
    return {
        "quantity": key,
        "values": list(values),
        "relative_to_first": relative,
        "relative_low": [None if interval is None else interval[0] for interval in intervals],
        "relative_high": [None if interval is None else interval[1] for interval in intervals],
    }


def _errors(run: Gathered) -> dict[str, float | None]:
    """Log errors of the quantities that are ratios of sums over updates; a constant factor does not change them."""
    seconds, joules, tokens = run.values("elapsed_s"), run.energy_j, run.values("valid_tokens")
    ones: Values = np.ones(len(run.updates))
    per_token = log_error(seconds, tokens)
    per_update = log_error(joules, ones)
    return {
        "elapsed_s_per_update": log_error(seconds, ones),
        "energy_j_per_update": per_update,
        "energy_j_per_gpu_and_update": per_update,
        "power_w_per_gpu": log_error(joules, seconds),
        "energy_j_per_valid_token": log_error(joules, tokens),
        "elapsed_s_per_million_valid_tokens": per_token,
        "gpu_s_per_million_valid_tokens": per_token,
    }


def _value(one: Mapping[str, Any], phase: str, key: str) -> float | None:
    row = next((row for row in one["signature"] if row["phase"] == phase), None)
    value: float | None = None if row is None else row[key]
    return value


def _mean(found: Mapping[str, Any] | None) -> float | None:
    return None if found is None else float(found["mean"])
