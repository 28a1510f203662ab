"""``report.txt``: the report for a terminal, 80 columns where tables allow, numbers from the document."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from eerl_launch.report import units, words
from eerl_launch.report.document import Document
from eerl_launch.report.shown import printable

WIDTH = 80

#: Longer lists are cut in the text; the CSV files have them whole.
LISTED = 20

SIGNATURE = "eerl report"


def render_text(document: Document) -> str:
    """The whole report as text; control characters in names are shown as "?"."""
    parts = [
        _head(document),
        _section("Result", result_lines(document)),
        _section("Phases", _phases(document)),
        _section("Pools", _pools(document)),
        _section("Nodes", _nodes(document)),
        _section("GPUs", _gpus(document)),
        _section("Updates", words.update_lines(document)),
        _section(
            "Controller", [part for line in words.controller_lines(document) for part in _wrapped(line)]
        ),
        _section("Cost and CO2", _cost(document)),
        _section("Can I trust this number?", _trust(document)),
        _section(
            "Clocks at the end",
            [
                part
                for outcome, names in words.clock_groups(document)
                for part in _wrapped(f"{names}: {outcome}")
            ],
        ),
        _section("Events", _events(document)),
    ]
    return printable("\n".join(part for part in parts if part)) + "\n"


def render_summary(document: Document) -> str:
    """A few lines for the end of the job's output."""
    total = document["allocation"]
    lines = []
    if document["simulated"]:
        lines.append(f"SIMULATED GPUs ({document['simulated']}): no number here is of real hardware")
    if not document["complete"]:
        lines.append(f"incomplete: {document['incomplete_reason']}")
    lines.append(_energy_line(total))
    lines += result_lines(document)[:2]
    return printable("\n".join(lines)) + "\n"


def _energy_line(total: dict[str, Any]) -> str:
    if not total["gpus_seen"]:
        return f"no GPU energy was measured in {units.duration(total['elapsed_s'])}"
    return (
        f"{units.energy_kwh(total['energy_j'])} ({units.energy_j(total['energy_j'])}) in "
        f"{units.duration(total['elapsed_s'])}, mean {units.power(total['mean_power_w'])}, {words.seen(total)}"
    )


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join(["", title, "-" * len(title), *lines]) if lines else ""


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark)) or [mark]


def _head(document: Document) -> str:
    run, total = document["run"], document["allocation"]
    lines = []
    if document["simulated"]:
        banner = f"SIMULATED GPUs ({document['simulated']}): no number here is of real hardware."
        lines += ["*" * WIDTH, banner, "*" * WIDTH]
    lines.append(f"{SIGNATURE}: {words.job_name(run)}")
    if not document["complete"]:
        lines += _wrapped(f"INCOMPLETE: {document['incomplete_reason']}.")
    for key, value in [("Energy", _energy_line(total)), *words.facts(document)]:
        lines += _wrapped(value, f"{key:<11} ")
    return "\n".join(lines)


def result_lines(document: Document) -> list[str]:
    """Saving and throughput in words, then the table before and after the lock."""
    result = document["result"]
    if not result["estimate"]:
        return _wrapped(f"No estimate: {result['no_estimate_reason']}.")
    whole = result["whole"]
    lines = [
        f"Energy saved  {units.plain(whole['saving_percent'], 1)} % per valid training token "
        f"(95 %: {units.interval(whole['saving_low_percent'], whole['saving_high_percent'])}), "
        f"{units.energy_kwh(whole['saved_energy_j'])}",
        f"Throughput    {units.signed_percent(whole['throughput_change_percent'])} valid training tokens/s "
        f"(95 %: {units.interval(whole['throughput_change_low_percent'], whole['throughput_change_high_percent'])})",
        "",
    ]
    rows = [["", "updates", "lowered", "gen/train MHz", "saving % (95 %)", "throughput % (95 %)"]]
    for key, name in words.INTERVALS.items():
        entry = result[key]
        if entry is not None:
            rows.append(
                [
                    name,
                    words.updates_range(entry),
                    units.plain(entry["lowered_updates"]),
                    words.clocks(entry),
                    words.saving(entry),
                    words.throughput(entry),
                ]
            )
    lines += _table(rows)
    return [*lines, "", *_wrapped(words.basis(result))]


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Columns aligned: the first ``left`` to the left, the others to the right."""
    if len(rows) < 2:
        return []
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _phases(document: Document) -> list[str]:
    rows = [["phase", "runs", "time", "J", "kWh", "share", "W", "asked MHz", "got MHz", "idle", "capped"]]
    rows += [
        [
            words.phase_name(row)[:28],
            units.plain(row["runs"]),
            units.duration(row["elapsed_s"]),
            units.significant(row["energy_j"], 4),
            units.significant(row["energy_kwh"]),
            units.percent(row["energy_fraction"]),
            units.plain(row["mean_power_w"]),
            words.requested(row),
            units.plain(row["achieved_mhz"]),
            units.percent(row["idle_fraction"]),
            units.percent(row["capped_fraction"]),
        ]
        for row in document["phases"]
    ]
    lines = _table(rows)
    if lines:
        lines += ["", *_wrapped(words.phases_note(document["run"]["mode"]))]
        lines += [line for remark in words.phase_remarks(document) for line in _wrapped(remark, "- ")]
    return lines


def _pools(document: Document) -> list[str]:
    rows = [["pool", "GPUs", "kWh", "own phases", "own J", "waiting J", "asked MHz", "got MHz", "idle"]]
    rows += [
        [
            row["pool"],
            units.plain(row["gpus"]) + ("" if row["separate"] else " (all)"),
            units.significant(row["energy_kwh"]),
            units.duration(row["own_phase_s"]),
            units.significant(row["own_phase_energy_j"], 4),
            units.significant(row["waiting_energy_j"], 4),
            "governor" if row["requested_mhz"] is None else units.plain(row["requested_mhz"]),
            units.plain(row["achieved_mhz"]),
            units.percent(row["idle_fraction"]),
        ]
        for row in document["pools"]
    ]
    return _table(rows)


def _nodes(document: Document) -> list[str]:
    rows = [["node", "state", "GPUs", "kWh", "W", "coverage", "clocks by", "scope"]]
    notes = []
    for row in document["nodes"]:
        rows.append(
            [
                row["node"],
                row["state"].replace("_", " "),
                units.plain(row["gpus"]),
                units.significant(row["energy_kwh"]),
                units.plain(row["mean_power_w"]),
                units.percent(row["coverage_fraction"], 1),
                row["clock_backend"] or units.UNKNOWN,
                "+".join(row["energy_scopes"]) or units.UNKNOWN,
            ]
        )
        for reason in (row["reason"], row["clock_backend_reason"]):
            if reason:
                notes += _wrapped(f"{row['node']}: {reason}", "  ")
    return _table(rows) + notes


def _gpus(document: Document) -> list[str]:
    rows = [["node", "GPU", "UUID", "kWh", "W", "got MHz", "idle", "coverage", "method", "notes"]]
    gpus = document["gpus"]
    rows += [
        [
            row["node"] or units.UNKNOWN,
            units.plain(row["index"]),
            row["uuid"][:12] + ("…" if len(row["uuid"]) > 12 else ""),
            units.significant(row["energy_kwh"]),
            units.plain(row["mean_power_w"]),
            units.plain(row["achieved_mhz"]),
            units.percent(row["idle_fraction"]),
            units.percent(row["coverage_fraction"], 1),
            row["energy_method"] or units.UNKNOWN,
            "; ".join(row["notes"])[:60],
        ]
        for row in gpus[: 2 * LISTED]
    ]
    lines = _table(rows)
    if len(gpus) > 2 * LISTED:
        lines.append(f"… and {len(gpus) - 2 * LISTED} more in gpus.csv")
    return lines


def _cost(document: Document) -> list[str]:
    return [part for line in words.cost_lines(document) for part in _wrapped(line)]


def _trust(document: Document) -> list[str]:
    marks = {"bad": "! ", "note": "- ", "good": "+ "}
    return [line for entry in document["trust"] for line in _wrapped(entry["text"], marks[entry["level"]])]


def _events(document: Document) -> list[str]:
    lines: list[str] = []
    for row in document["events"][:LISTED]:
        place = " ".join(str(row[key]) for key in ("node", "uuid") if row[key])
        when = units.UNKNOWN if row["t_s"] is None else f"{row['t_s']:.1f} s"
        what = f"{row['kind'].replace('_', ' ')} {place}".strip()
        lines += _wrapped(f"{when:>10}  {what}: {row['text']}", "")
    total = sum(document["event_counts"].values())
    if total > LISTED:
        lines.append(f"… {total} events in all; report.json has up to 50 of each kind")
    return lines
