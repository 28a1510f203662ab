"""The comparison as text for a terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eerl_launch.errors import OptionError
from eerl_launch.evidence.figures import draw, prediction_errors
from eerl_launch.evidence.picture_page import render_page
from eerl_launch.report import units
from eerl_launch.whole_file import write_asked

CSV_COLUMNS = (
    "table",
    "run",
    "governor",
    "interval",
    "first_update",
    "last_update",
    "clocks_mhz",
    "energy_saving_percent",
    "energy_saving_low_percent",
    "energy_saving_high_percent",
    "throughput_change_percent",
    "throughput_change_low_percent",
    "throughput_change_high_percent",
    "governor_time_spread_percent",
    "governor_energy_spread_percent",
    "reason",
)


def render_csv(document: Mapping[str, Any]) -> str:
    """A row per run and interval, paired totals first, then those at equal work."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for table in ("paired", "normalized"):
        writer.writerows({"table": table, **row} for row in document[table])
    return out.getvalue()


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table; the first ``left`` columns are words, the others numbers."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def change(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A percentage with its interval where there is one; a dash without a value."""
    value = row.get(f"{name}_percent")
    low, high = row.get(f"{name}_low_percent"), row.get(f"{name}_high_percent")
    shown = units.signed(value, digits)
    if value is None or low is None or high is None:
        return shown
    return f"{shown} ({units.signed(low, digits)} to {units.signed(high, digits)})"


def render_text(document: Mapping[str, Any]) -> str:
    """The tables, with what to know about them."""
    lines = []
    if document["simulated"]:
        lines += [f"SIMULATED GPUs ({document['simulated']}): no number here is of real hardware", ""]
    lines += [document["configuration"]["words"], ""]
    lines += aligned(
        ("run", "role", "policy", "updates", "usable", "locked at"),
        [
            (
                row["run"],
                row["role"],
                row["policy"],
                units.plain(row["updates"]),
                units.plain(row["usable_updates"]),
                units.plain(row["locked_at_update"]),
            )
            for row in document["runs"]
        ],
        left=3,
    )
    lines += _table("Paired totals (tables 4 and 5)", document["paired"])
    if document["paired_mean"] is not None:
        mean = document["paired_mean"]
        lines += [
            f"mean of {mean['pairs']} pairs: energy saving {change(mean, 'energy_saving')} %, "
            f"throughput {change(mean, 'throughput_change')} %"
        ]
    elif document["paired"]:
        lines += ["One pair tells no spread: work differs between runs, and nothing here corrects for it."]
    lines += _table("At equal work (appendix E)", document["normalized"])
    lines += _noise(document)
    lines += _predictor(document["predictor"])
    lines += ["", *(f"note: {note}" for note in document["notes"])] if document["notes"] else []
    return "\n".join(lines).rstrip() + "\n"


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    shown = [
        (
            row["run"],
            row["interval"],
            f"{row['first_update']}–{row['last_update']}",
            row["clocks_mhz"],
            change(row, "energy_saving"),
            change(row, "throughput_change"),
        )
        for row in rows
    ]
    head = ("run", "interval", "updates", "gen/train MHz", "energy saving %", "throughput %")
    reasons = [f"{row['run']}, {row['interval']}: {row['reason']}" for row in rows if row["reason"]]
    return ["", title, *aligned(head, shown, left=2), *reasons]


def _noise(document: Mapping[str, Any]) -> list[str]:
    if document["normalized_reason"]:
        return ["", f"No comparison at equal work: {document['normalized_reason']}"]
    rows = [row for row in document["normalized"] if row["reason"] is None]
    if not rows:
        return []
    model = document["normalized_model"]
    time = max(row["governor_time_spread_percent"] for row in rows if row["interval"] == "whole run")
    energy = max(row["governor_energy_spread_percent"] for row in rows if row["interval"] == "whole run")
    return [
        f"Over the whole run the governors lie within {units.plain(time, 2)} % of their mean in time and "
        f"{units.plain(energy, 2)} % in energy; parentheses: {document['confidence_percent']} % intervals.",
        f"The model rests on {model['governor_updates']} governor updates and {', '.join(model['features'])}.",
    ]


def _predictor(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["", "No forward test of the predictor: a governor run needs 18 usable updates for one block."]
    head = ("", "constant", "token work")
    rows = [
        (
            name,
            units.plain(found[f"{key}_constant_percent"], 2),
            units.plain(found[f"{key}_token_work_percent"], 2),
        )
        for name, key in (("throughput error %", "throughput"), ("energy error %", "energy"))
    ]
    blocks = f"{units.count(found['blocks'], 'block')} of {units.count(found['runs'], 'governor run')}"
    return ["", f"Foretelling the governor (appendix B), medians over {blocks}", *aligned(head, rows)]


def write_picture(document: Mapping[str, Any], path: Path) -> None:
    """Figure 3 of the governor runs, as a page with its table where ``path`` ends in ``.html``, else as SVG.

    Raises :class:`OptionError` when they are too short for it, or the file cannot be written.
    """
    if document["predictor"] is None:
        raise OptionError(f"--picture {path}: a governor run needs 18 usable updates for it")
    picture = prediction_errors(
        document["configuration"]["words"], document["predictor"], document["simulated"]
    )
    page = path.suffix.lower() in (".html", ".htm")
    write_asked("--picture", path, render_page(picture) if page else draw(picture))
