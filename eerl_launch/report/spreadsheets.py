"""``updates.csv``, ``phases.csv`` and ``gpus.csv``: a header, a constant number of columns, empty for unknown.

Text fields that a spreadsheet would run as a formula are written with a leading apostrophe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from eerl_launch.report.document import Report

UPDATE_COLUMNS = (
    "index",
    "update",
    "begin_s",
    "end_s",
    "elapsed_s",
    "energy_j",
    "generated_tokens",
    "valid_tokens",
    "longest_response_tokens",
    "energy_j_per_valid_token",
    "valid_tokens_per_s",
    "state",
    "plan_id",
    "governor",
    "generation_requested_mhz",
    "training_requested_mhz",
    "generation_achieved_mhz",
    "training_achieved_mhz",
    "governor_elapsed_s",
    "governor_energy_j",
    "online_governor_elapsed_s",
    "online_governor_energy_j",
    "online_governor_inside_coverage",
    "unattributed_s",
    "unattributed_energy_j",
    "reward",
    "usable",
    "unusable_reason",
    "flags",
)

PHASE_COLUMNS = (
    "update",
    "phase",
    "exclusive",
    "complete",
    "begin_s",
    "end_s",
    "elapsed_s",
    "energy_j",
    "energy_kwh",
    "mean_power_w",
    "requested_mhz",
    "achieved_mhz",
    "idle_fraction",
    "capped_fraction",
    "energy_error_j",
    "energy_reason",
)

GPU_COLUMNS = (
    "node",
    "index",
    "uuid",
    "name",
    "pools",
    "elapsed_s",
    "energy_j",
    "energy_kwh",
    "mean_power_w",
    "requested_mhz",
    "achieved_mhz",
    "idle_fraction",
    "capped_fraction",
    "slowed_fraction",
    "coverage_fraction",
    "energy_method",
    "energy_scope",
    "gpu_only_power_w",
    "mig",
    "notes",
    "unattributed_energy_j",
)


def updates_csv(report: Report) -> str:
    """A row per update. ``governor_*`` is the hindsight prediction the result rests on."""
    rows = []
    for row in report.run.updates:
        predicted = report.estimate.predictions.get(row.index, (None, None))
        per_token = row.energy_j / row.valid_tokens if row.energy_j is not None and row.valid_tokens else None
        per_second = row.valid_tokens / row.elapsed_s if row.valid_tokens and row.elapsed_s else None
        rows.append(
            (
                row.index,
                row.update,
                row.begin_s,
                row.end_s,
                row.elapsed_s,
                row.energy_j,
                _whole(row.generated_tokens),
                _whole(row.valid_tokens),
                _whole(row.longest_response_tokens),
                per_token,
                per_second,
                row.state,
                row.plan_id,
                row.governor,
                row.generation_mhz,
                row.training_mhz,
                row.generation_achieved_mhz,
                row.training_achieved_mhz,
                *predicted,
                row.online_governor_elapsed_s,
                row.online_governor_energy_j,
                row.inside_coverage,
                row.unattributed_s,
                row.unattributed_j,
                row.reward,
                row.usable,
                row.unusable_reason,
                " ".join(row.flags),
            )
        )
    return csv_text(UPDATE_COLUMNS, rows)


def phases_csv(report: Report) -> str:
    """A row per run of a phase. Rows with ``exclusive`` true add up; subphases lie inside their phase."""
    return csv_text(
        PHASE_COLUMNS,
        (
            (
                row.update,
                row.phase,
                row.exclusive,
                row.complete,
                row.begin_s,
                row.end_s,
                row.elapsed_s,
                row.energy_j,
                None if row.energy_j is None else row.energy_j / 3.6e6,
                row.energy_j / row.elapsed_s if row.energy_j is not None and row.elapsed_s else None,
                row.requested_mhz,
                row.achieved_mhz,
                None if row.busy_fraction is None else 1.0 - row.busy_fraction,
                row.capped_fraction,
                row.energy_error_j,
                row.energy_reason,
            )
            for row in report.run.phases
        ),
    )


def gpus_csv(report: Report) -> str:
    """A row per GPU; the ``phase:…`` columns and ``unattributed_energy_j`` add up to ``energy_j``."""
    gpus = report.document["gpus"]
    names = list(dict.fromkeys(name for gpu in gpus for name in gpu["phase_energy_j"]))
    rows = [
        [
            *(" ".join(gpu[key]) if key == "pools" else gpu[key] for key in GPU_COLUMNS if key != "notes"),
            *(gpu["phase_energy_j"].get(name, 0.0) for name in names),
        ]
        for gpu in gpus
    ]
    place = GPU_COLUMNS.index("notes")
    for row, gpu in zip(rows, gpus, strict=True):
        row.insert(place, "; ".join(gpu["notes"]))
    return csv_text((*GPU_COLUMNS, *(f"phase:{name}_energy_j" for name in names)), rows)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _cell(value: Any) -> str:
    """A value as text: numbers to twelve digits, more than any counter has."""
    if value.__class__ is float:
        return f"{value:.12g}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text_cell(value) if isinstance(value, str) else str(value)


def _text_cell(value: str) -> str:
    """Text on one line, quoted where the format needs it; what a spreadsheet would run gets an apostrophe."""
    flat = " ".join(value.split())
    if flat[:1] in ("=", "+", "-", "@"):
        flat = "'" + flat
    return '"' + flat.replace('"', '""') + '"' if "," in flat or '"' in flat else flat


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and its rows, no cell of which a spreadsheet would run."""
    lines = [",".join(map(_cell, columns))]
    lines += [",".join(map(_cell, row)) for row in rows]
    lines.append("")
    return "\n".join(lines)
