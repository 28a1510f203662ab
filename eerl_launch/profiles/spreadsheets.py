"""The profiles as CSV files: phases, runs with their axes, GPUs, nodes; empty for unknown, units in the headers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eerl_launch.report.spreadsheets import csv_text
from eerl_launch.whole_file import write_whole

_SPREADS = (
    "responses_per_update",
    "mean_tokens",
    "valid_tokens_per_response",
    "longest_tokens",
    "longest_over_mean",
    "empty_places_fraction",
    "tail_fraction",
)
_PARTS = ("mean", "p10", "median", "p90")
_REWARD = (
    "paradigm",
    "mean_elapsed_s",
    "mean_energy_j",
    "elapsed_fraction",
    "energy_fraction",
    "energy_j_per_valid_token",
    "energy_j_per_response",
    "busy_fraction",
)


def write_tables(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """The files in ``folder``, which is made if need be. Raises :class:`OSError` when one cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in tables(document).items():
        path = folder / name
        columns = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[row.get(column) for column in columns] for row in rows]
        write_whole(path, csv_text(columns, cells))
        written.append(path)
    return written


def tables(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each file by its name."""
    runs = document["runs"]
    found = {
        "profile_phases.csv": [{"run": run["run"], **row} for run in runs for row in run["signature"]],
        "profile_runs.csv": [_run(run) for run in runs],
        "profile_gpus.csv": [
            {"run": run["run"], **row} for run in runs for row in run["imbalance"]["by_gpu"]
        ],
        "profile_nodes.csv": [
            {"run": run["run"], **row} for run in runs for row in run["imbalance"]["by_node"]
        ],
    }
    return {name: rows for name, rows in found.items() if rows}


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        key: run[key] for key in ("run", "simulated", "gpus", "updates", "lowered_updates")
    }
    row |= {f"axis_{axis}": told["value"] for axis, told in run["axes"].items()}
    for key in _SPREADS:
        found = run["responses"][key] or {}
        row |= {f"{part}_{key.removeprefix('mean_')}": found.get(part) for part in _PARTS}
    for name in run["responses"]["quantiles_tokens"] or {}:
        known = run["responses"]["quantiles_tokens"][name] or {}
        row[f"mean_response_length_{name}_tokens"] = known.get("mean")
    imbalance = run["imbalance"]
    row |= {f"generation_{key}": imbalance[key] for key in ("waiting_fraction", "power_unevenness_fraction")}
    return row | {f"reward_{key}": run["reward"][key] for key in _REWARD}
