"""What is sent: the report's numbers with plain names and units, and the updates, as JSON for another process.

Unknown numbers are left out, never sent as zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eerl_launch.report.document import Document, Report
from eerl_launch.report.rows import UpdateRow
from eerl_launch.report.values import ratio

#: Updates that are sent one by one; of a longer run blocks of equal size are, with their means.
MOST_ROWS = 1000
#: Of an update: what is sent. A block has the mean of what its updates have.
_MEANS = (
    "elapsed_s",
    "energy_j",
    "generated_tokens",
    "valid_tokens",
    "generation_mhz",
    "training_mhz",
    "generation_achieved_mhz",
    "training_achieved_mhz",
)

Parcel = dict[str, Any]


def pack(report: Report, folder: Path, metrics_folder: str | None = None) -> Parcel:
    """Everything that an outlet needs of a run; ``metrics_folder`` is where OpenMetrics files are wanted."""
    rows = report.run.updates
    size = max(1, -(-len(rows) // MOST_ROWS))
    return {
        "folder": str(folder),
        "metrics_folder": metrics_folder,
        "document": {key: value for key, value in report.document.items() if key not in ("events", "gpus")},
        "updates_per_row": size,
        "updates": [_block(rows[at : at + size]) for at in range(0, len(rows), size)],
    }


def _block(rows: Sequence[UpdateRow]) -> dict[str, float]:
    """The means over some updates, under the number of the last one."""
    found: dict[str, float] = {"update": rows[-1].index if rows[-1].update is None else rows[-1].update}
    for name in _MEANS:
        known = [value for row in rows if (value := getattr(row, name)) is not None]
        if len(known) == len(rows):
            found[name] = sum(known) / len(known)
    for name, above, below in (
        ("energy_j_per_valid_token", "energy_j", "valid_tokens"),
        ("valid_tokens_per_s", "valid_tokens", "elapsed_s"),
    ):
        value = ratio(found.get(above), found.get(below))
        if value is not None:
            found[name] = value
    return found


def totals(document: Document) -> dict[str, float]:
    """The numbers of the whole run by name, each with its unit at the end."""
    return {name: value for name, value in _named(document) if value is not None}


def _named(document: Document) -> Iterator[tuple[str, float | None]]:
    total, updates, result = document["allocation"], document["updates"], document["result"]
    for name in ("elapsed_s", "energy_j", "energy_kwh", "mean_power_w", "coverage_fraction"):
        yield name, total[name]
    for name in ("nodes_seen", "gpus_measured"):
        yield name, total[name]
    yield "updates", updates["updates"]
    for name in ("generated_tokens", "valid_tokens", "energy_j_per_valid_token", "valid_tokens_per_s"):
        yield name, updates[name]
    whole: Mapping[str, Any] = result["whole"] or {}
    for name in (
        *("saving_percent", "saving_low_percent", "saving_high_percent", "saved_energy_j"),
        "throughput_change_percent",
        *("throughput_change_low_percent", "throughput_change_high_percent"),
    ):
        yield name, whole.get(name)
    cost: Mapping[str, Any] = document["cost"] or {}
    for name in ("price", "saved_price", "carbon_g", "saved_carbon_g"):
        yield name, cost.get(name)
    for row in document["phases"]:
        if row["phase"] != "total":
            phase = re.sub(r"[^A-Za-z0-9_./ -]", "_", row["phase"])  # other letters are no tracker's
            phase = re.sub(
                r"(?<![^/])\.+(?![^/])", "_", phase
            )  # nor are names that would lead out of their folder
            for name in ("elapsed_s", "energy_j", "mean_power_w"):
                yield f"phase/{phase}/{name}", row[name]


def about(document: Document) -> dict[str, str]:
    """What the run was: to search and sort by."""
    run = document["run"]
    found = {
        name: run[name] for name in ("run_id", "job_id", "job_name", "cluster", "user", "policy", "mode")
    }
    found |= {"framework": run["framework"], "gpus": " ".join(run["gpu_names"]), "eerl": run["eerl_version"]}
    found["simulated"] = document["simulated"] or "no"
    found["incomplete"] = document["incomplete_reason"]
    found["no_estimate"] = document["result"]["no_estimate_reason"]
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def one_line(document: Document) -> str:
    """The run in one line of plain ASCII."""
    total, result = document["allocation"], document["result"]
    energy_kwh = total["energy_kwh"]
    parts = [
        "energy not measured" if energy_kwh is None else f"{energy_kwh:.4g} kWh in {total['elapsed_s']:.0f} s"
    ]
    whole = result["whole"]
    if whole:
        low, high = whole["saving_low_percent"], whole["saving_high_percent"]
        interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
        parts.append(f"saved {whole['saving_percent']:.1f} %{interval} per token")
        parts.append(f"throughput {whole['throughput_change_percent']:+.1f} %")
    if not document["complete"]:
        parts.append("incomplete")
    if total["nodes_expected"] and total["nodes_seen"] < total["nodes_expected"]:
        parts.append(f"{total['nodes_seen']} of {total['nodes_expected']} nodes")
    if document["simulated"]:
        parts.append("SIMULATED GPUs")
    text = f"eerl: {', '.join(parts)}"
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)
