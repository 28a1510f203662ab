"""The profiles as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from eerl_launch.compare_text import aligned
from eerl_launch.profiles.side_by_side import comparison_tables, reward_table
from eerl_launch.profiles.tables import Table, lengths_table, signature_table, waiting_tables
from eerl_launch.report import units
from eerl_launch.report.shown import printable

WIDTH = 118
#: GPUs shown in the terminal; JSON and CSV have them all.
SHOWN_GPUS = 16


def render_text(document: Mapping[str, Any]) -> str:
    """All tables with their notes; control characters in names are shown as "?"."""
    lines: list[str] = []
    if document["simulated"]:
        lines += [f"SIMULATED GPUs ({document['simulated']}): no number here is of real hardware", ""]
    for run in document["runs"]:
        lines += [*head_lines(run), ""]
        for table in (signature_table(run), lengths_table(run), *waiting_tables(run, SHOWN_GPUS)):
            lines += _table(table)
    lines += _table(reward_table(document["runs"]))
    if document["comparison"] is not None:
        for table in comparison_tables(document["comparison"]):
            lines += _table(table)
    return printable("\n".join(lines).rstrip() + "\n")


def head_lines(run: Mapping[str, Any]) -> list[str]:
    """What the run is, and what to know about its ledger."""
    axes = [f"{axis} {told['value']}" for axis, told in run["axes"].items() if told["value"]]
    unknown = [axis for axis, told in run["axes"].items() if not told["value"]]
    lowered = f", clocks lowered in {run['lowered_updates']}" if run["lowered_updates"] else ""
    lines = [
        f"{run['run']}: {units.count(run['updates'], 'update')} of {units.plain(run['updates_in_ledger'])}{lowered}"
    ]
    lines += _wrapped(" · ".join(axes))
    if unknown:
        lines.append(f"  not told: {', '.join(unknown)} (--label AXIS=VALUE)")
    return lines + [part for problem in run["problems"] for part in _wrapped(f"note: {problem}")]


def _table(table: Table) -> list[str]:
    lines = [table.title]
    if table.rows:
        lines += ["  " + line for line in aligned(table.head, table.rows)]
    return [*lines, *(part for note in table.notes for part in _wrapped(note)), ""]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
