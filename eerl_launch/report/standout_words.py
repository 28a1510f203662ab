"""Words on the GPUs and nodes that differ from the others, from the document."""

from __future__ import annotations

from typing import Any

from eerl_launch.report import units
from eerl_launch.report.document import Document

NOTE = (
    "Compared with the median of the same pool, of nodes by the mean of their GPUs. Something stands out when it is "
    "further off than four times the usual scatter and by more than matters (power 5 %, clock 2 %, idle 5, capped "
    "10, slowed 1 percentage points). Clock and shares are over the whole run. Temperatures are not measured: heat "
    "shows as the share of time in which protection held the clock down."
)


def rows(document: Document) -> list[tuple[str, ...]]:
    """What | median GPU | farthest GPU | its value | how many stand out | farthest node | its value | how many."""
    return [
        (entry["question"], *_cells(entry, "gpu"), *_cells(entry, "node")[1:])
        for entry in document["standouts"]
        if entry["gpu"] is not None or entry["node"] is not None
    ]


def sentence(document: Document) -> str:
    """Which GPUs differ from the others, if any; empty when there are too few to compare."""
    known = [entry for entry in document["standouts"] if entry["gpu"] is not None]
    if not known:
        return ""
    out = []
    for entry in known:
        middle, name, value, count = _cells(entry, "gpu")
        if entry["gpu"]["stands_out"]:
            more = f", as do {count}" if entry["gpu"]["standing_out"] > 1 else ""
            out.append(f"{name} ({entry['question']}: {value}, median {middle}{more})")
    if out:
        return f"GPUs that stand out: {'; '.join(out)}."
    return f"No GPU stands out among the {known[0]['gpu']['compared']:,} compared."


def unknown(document: Document) -> str:
    """Which questions this run has no answer to; empty when it has one to each."""
    missing = [entry["question"] for entry in document["standouts"] if entry["gpu"] is None]
    return f"Not known by GPU in this run, or of too few to compare: {', '.join(missing)}." if missing else ""


def _cells(entry: dict[str, Any], kind: str) -> tuple[str, str, str, str]:
    found = entry[kind]
    if found is None:
        return (units.UNKNOWN,) * 4
    name = str(found["node"] or units.UNKNOWN)
    if found["uuid"] is not None:
        name += f" GPU {units.plain(found['index'])}"
    if found["value"] == found["median"]:
        name = "none"
    count = f"{found['standing_out']:,} of {found['compared']:,}"
    return _value(entry["quantity"], found["median"]), name, _value(entry["quantity"], found["value"]), count


def _value(quantity: str, value: float) -> str:
    if quantity.endswith("_fraction"):
        return units.percent(value, 1)
    return f"{units.plain(value)} {'W' if quantity.endswith('_w') else 'MHz'}"
