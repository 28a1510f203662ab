"""``report.txt``: the report for a terminal, 80 columns where tables allow, numbers from the document."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from eerl_launch.report import units
from eerl_launch.report.document import Document
from eerl_launch.report.rows import UpdateRow

WIDTH = 80

#: Longer lists are cut in the text; the CSV files have them whole.
LISTED = 20

SIGNATURE = "eerl report"

#: The intervals of tables 4 and 5, and what lowered clocks do while they are lowered.
INTERVALS = {
    "whole": "whole run",
    "before_lock": "before the lock",
    "after_lock": "after the lock",
    "lowered": "lowered updates only",
}


def render_text(document: Document) -> str:
    """The whole report as text; control characters in names are shown as "?"."""
    parts = [
        _head(document),
        _section("Result", result_lines(document)),
        _section("Phases", _phases(document)),
        _section("Pools", _pools(document)),
        _section("Nodes", _nodes(document)),
        _section("GPUs", _gpus(document)),
        _section("Updates", update_lines(document)),
        _section("Controller", [part for line in controller_lines(document) for part in _wrapped(line)]),
        _section("Cost and CO2", _cost(document)),
        _section("Can I trust this number?", _trust(document)),
        _section(
            "Clocks at the end",
            [part for words, names in clock_groups(document) for part in _wrapped(f"{names}: {words}")],
        ),
        _section("Events", _events(document)),
    ]
    whole = "\n".join(part for part in parts if part)
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in whole) + "\n"


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
    return "\n".join(lines) + "\n"


def _energy_line(total: dict[str, Any]) -> str:
    if not total["gpus_seen"]:
        return f"no GPU energy was measured in {units.duration(total['elapsed_s'])}"
    return (
        f"{units.energy_kwh(total['energy_j'])} ({units.energy_j(total['energy_j'])}) in "
        f"{units.duration(total['elapsed_s'])}, mean {units.power(total['mean_power_w'])}, {seen(total)}"
    )


def seen(total: dict[str, Any]) -> str:
    """Nodes and GPUs seen of expected, in words."""
    nodes = f"{total['nodes_seen']} of {total['nodes_expected'] or '?'} nodes"
    gpus = units.count(total["gpus_seen"], "GPU")
    if total["gpus_expected"]:
        gpus = f"{total['gpus_seen']} of {total['gpus_expected']} GPUs"
    return f"{nodes}, {gpus}"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join(["", title, "-" * len(title), *lines]) if lines else ""


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark)) or [mark]


def job_name(run: dict[str, Any]) -> str:
    """The job by its number, array task, restart and name."""
    name = f"job {run['job_id']}" if run["job_id"] else f"run {run['run_id'] or '?'}"
    if run["array_task"] is not None:
        name += f", array task {run['array_task']}"
    if run["restart"]:
        name += f", restart {run['restart']}"
    return name + (f" ({run['job_name']})" if run["job_name"] else "")


def facts(document: Document) -> list[tuple[str, str]]:
    """What the job was, as far as the ledger says: (name, value)."""
    run = document["run"]
    owner = [str(run[key]) for key in ("user", "account", "partition", "cluster") if run[key]]
    found = {
        "Started": run["time_iso"],
        "Owner": " / ".join(owner),
        "Command": _exit(run),
        "GPUs": ", ".join(run["gpu_names"]),
        "Mode": " · ".join(str(run[key]) for key in ("framework", "mode") if run[key]),
        "Policy": run["policy"],
    }
    return [(name, str(value)) for name, value in found.items() if value]


def _head(document: Document) -> str:
    run, total = document["run"], document["allocation"]
    lines = []
    if document["simulated"]:
        banner = f"SIMULATED GPUs ({document['simulated']}): no number here is of real hardware."
        lines += ["*" * WIDTH, banner, "*" * WIDTH]
    lines.append(f"{SIGNATURE}: {job_name(run)}")
    if not document["complete"]:
        lines += _wrapped(f"INCOMPLETE: {document['incomplete_reason']}.")
    for key, value in [("Energy", _energy_line(total)), *facts(document)]:
        lines += _wrapped(value, f"{key:<11} ")
    return "\n".join(lines)


def _exit(run: dict[str, Any]) -> str:
    words = str(run["command"] or "")
    if run["exit_code"] is not None:
        words += (
            f" (exit code {run['exit_code']}" + (f", signal {run['signal']}" if run["signal"] else "") + ")"
        )
    return words.strip()


def result_lines(document: Document) -> list[str]:
    """Saving and throughput in words, then the table before and after the lock."""
    result = document["result"]
    if not result["estimate"]:
        return _wrapped(f"No estimate: {result['no_estimate_reason']}.")
    whole = result["whole"]
    lines = [
        f"Energy saved  {units.signed_percent(whole['saving_percent'])} per valid training token "
        f"(95 %: {units.interval(whole['saving_low_percent'], whole['saving_high_percent'])}), "
        f"{units.energy_kwh(whole['saved_energy_j'])}",
        f"Throughput    {units.signed_percent(whole['throughput_change_percent'])} valid training tokens/s "
        f"(95 %: {units.interval(whole['throughput_change_low_percent'], whole['throughput_change_high_percent'])})",
        "",
    ]
    rows = [["", "updates", "lowered", "gen/train MHz", "saving % (95 %)", "throughput % (95 %)"]]
    for key, name in INTERVALS.items():
        entry = result[key]
        if entry is not None:
            rows.append(
                [
                    name,
                    updates_range(entry),
                    units.plain(entry["lowered_updates"]),
                    clocks(entry),
                    with_interval(entry, "saving"),
                    with_interval(entry, "throughput_change"),
                ]
            )
    lines += _table(rows)
    return [*lines, "", *_wrapped(basis(result))]


def with_interval(entry: dict[str, Any], quantity: str) -> str:
    """A change in percent with its 95 % interval in brackets."""
    low, high = entry[f"{quantity}_low_percent"], entry[f"{quantity}_high_percent"]
    middle = units.signed(entry[f"{quantity}_percent"])
    return (
        middle if low is None or high is None else f"{middle} ({units.signed(low)} to {units.signed(high)})"
    )


def updates_range(entry: dict[str, Any]) -> str:
    """First to last update of an interval."""
    return f"{entry['first_update']}–{entry['last_update']}"


def clocks(entry: dict[str, Any]) -> str:
    """The clocks of an interval, "varies" where more than one setting ran (table 5)."""
    if entry["lowered_updates"] == 0:
        return "governor"
    if entry["clocks_vary"]:
        return "varies"
    return "/".join(
        "governor" if entry[key] is None else units.plain(entry[key])
        for key in ("generation_mhz", "training_mhz")
    )


def basis(result: dict[str, Any]) -> str:
    """What the result rests on, in one paragraph."""
    words = (
        f"Compared with a {result['reference']} ({result['governor_updates_used']} used). "
        f"All {result['updates_compared']} compared updates count: failed trials, confirmation, clock switches "
        "and the governor updates of the search."
    )
    if result["updates_left_out"]:
        parts = ", ".join(f"{count} {reason}" for reason, count in result["updates_left_out"].items())
        words += f" Left out: {parts}."
    if result["updates_outside_coverage"]:
        words += (
            f" {units.count(result['updates_outside_coverage'], 'lowered update')} had work outside the range of "
            "the governor updates, where the model extrapolates."
        )
    if result["saving_without_flagged_percent"] is not None:
        words += (
            f" Flagged as unlike the others: {units.count(result['flagged_lowered_updates'], 'lowered update')}; "
            "without them the saving would be "
            f"{units.signed_percent(result['saving_without_flagged_percent'])}."
        )
    return words


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


def requested(row: dict[str, Any]) -> str:
    """The requested clock of a phase: the governor, MHz, or MHz for a share of the time."""
    if row["runs"] is None:
        return units.UNKNOWN
    if row["requested_mhz"] is None:
        return "governor"
    share = row["governor_time_fraction"] or 0.0
    return units.plain(row["requested_mhz"]) + (f" ({units.percent(1 - share)})" if share > 0.005 else "")


def phase_name(row: dict[str, Any]) -> str:
    """The name of a phase, subphases indented, a nested run of a phase marked as such."""
    name = str(row["phase"])
    if "/" in name:
        return "  " + name.split("/", 1)[1]
    return name if row["exclusive"] or name == "total" else f"  {name} (nested)"


def _phases(document: Document) -> list[str]:
    rows = [["phase", "runs", "time", "J", "kWh", "share", "W", "asked MHz", "got MHz", "idle", "capped"]]
    rows += [
        [
            phase_name(row)[:28],
            units.plain(row["runs"]),
            units.duration(row["elapsed_s"]),
            units.significant(row["energy_j"], 4),
            units.significant(row["energy_kwh"]),
            units.percent(row["energy_fraction"]),
            units.plain(row["mean_power_w"]),
            requested(row),
            units.plain(row["achieved_mhz"]),
            units.percent(row["idle_fraction"]),
            units.percent(row["capped_fraction"]),
        ]
        for row in document["phases"]
    ]
    lines = _table(rows)
    if lines:
        lines += ["", *_wrapped(PHASES_NOTE)]
    return lines


PHASES_NOTE = (
    "W is the mean over the whole allocation. Subphases are part of their phase; phases and unattributed make up "
    "the total. Asked MHz is the mean lock while one was held, with the share of time in brackets; capped is the "
    "share of time under a power cap, which is normal on some GPUs. – is not known."
)


def _pools(document: Document) -> list[str]:
    rows = [["pool", "GPUs", "kWh", "own phases", "own J", "waiting J", "asked MHz", "got MHz", "idle"]]
    rows += [
        [
            row["pool"],
            units.plain(row["gpus"]) + ("" if row["separate"] else " (all)"),
            units.significant(row["energy_kwh"]),
            units.duration(row["own_phase_s"]),
            units.significant(row["own_phase_energy_j"], 4),
            units.significant(row["other_phase_energy_j"], 4),
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
    rows = [["node", "GPU", "UUID", "kWh", "W", "coverage", "method", "notes"]]
    gpus = document["gpus"]
    rows += [
        [
            row["node"] or units.UNKNOWN,
            units.plain(row["index"]),
            row["uuid"][:12] + ("…" if len(row["uuid"]) > 12 else ""),
            units.significant(row["energy_kwh"]),
            units.plain(row["mean_power_w"]),
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


def update_lines(document: Document) -> list[str]:
    """Tokens, energy per token and throughput over all updates, with the number of updates used."""
    found = document["updates"]
    if not found["updates"]:
        return []
    lines = [
        f"{units.count(found['updates'], 'update')} ({found['first_update']}–{found['last_update']}), "
        f"{found['governor_updates']} under the governor; one row each in updates.csv"
    ]
    for key, name, digits in (
        ("energy_j_per_valid_token", "J per valid training token, all phases", 3),
        ("energy_j_per_generated_token", "J per generated token, all phases", 3),
        ("generation_energy_j_per_generated_token", "J per generated token, generation", 3),
        ("training_energy_j_per_valid_token", "J per valid training token, training", 3),
        ("valid_tokens_per_s", "valid training tokens per s", 4),
    ):
        if found[key] is not None:
            lines.append(
                f"{units.significant(found[key], digits):>8} {name}, "
                f"over {units.count(found[f'{key}_updates_used'], 'update')} with counts"
            )
    return lines


def controller_lines(document: Document) -> list[str]:
    """What the controller did and how the switches went, a sentence a line."""
    found = document["controller"]
    lines = []
    if found["updates_by_state"]:
        states = ", ".join(f"{state} {count}" for state, count in found["updates_by_state"].items())
        lines.append(f"Updates by state: {states}")
    last = found["last_plan"]
    if last is not None:
        words = f"Last plan: generation {units.clock(last['generation_mhz'])}, training "
        words += f"{units.clock(last['training_mhz'])}; {str(last['reason'] or '').lower().replace('_', ' ')}"
        lines.append(words + (f" ({last['note']})" if last["note"] else ""))
    if found["clock_switches"]:
        lines.append(
            f"{units.count(found['clock_switches'], 'clock switch', 'clock switches')}, median "
            f"{milliseconds(found['switch_latency_median_s'])}, longest "
            f"{milliseconds(found['switch_latency_max_s'])}; {found['switch_failures']} failures"
        )
        lines += [f"  {text}" for text in found["switch_failure_texts"]]
    return lines


def milliseconds(seconds: float | None, digits: int = 0) -> str:
    """A short time in milliseconds."""
    return units.UNKNOWN if seconds is None else f"{units.plain(1000 * seconds, digits)} ms"


def cost_lines(document: Document) -> list[str]:
    """Cost and CO2, each with its factor and where the factor is from."""
    cost = document["cost"]
    if cost is None:
        return []
    pue = "" if cost["pue"] is None else f" × PUE {cost['pue']:g}"
    lines = []
    if cost["price"] is not None:
        unit = cost["currency"] or ""
        line = f"{plain_money(cost['price'])} {unit} at {cost['price_per_kwh']:g} {unit}/kWh{pue}"
        if cost["saved_price"] is not None:
            line += f"; saved {plain_money(cost['saved_price'])} {unit}"
        lines.append(f"{line} (price from the {cost['origin']})")
    if cost["carbon_g"] is not None:
        line = (
            f"{units.significant(cost['carbon_g'] / 1000)} kg CO2 at {cost['carbon_g_per_kwh']:g} g/kWh{pue}"
        )
        if cost["saved_carbon_g"] is not None:
            line += f"; saved {units.significant(cost['saved_carbon_g'] / 1000)} kg"
        lines.append(f"{line} (intensity from the {cost['origin']})")
    return lines


def plain_money(value: float) -> str:
    """Money with two decimals, more for small sums."""
    return units.plain(value, 2) if abs(value) >= 1 else units.significant(value)


def _cost(document: Document) -> list[str]:
    return [part for line in cost_lines(document) for part in _wrapped(line)]


def _trust(document: Document) -> list[str]:
    marks = {"bad": "! ", "note": "- ", "good": "+ "}
    return [line for entry in document["trust"] for line in _wrapped(entry["text"], marks[entry["level"]])]


def clock_groups(document: Document) -> list[tuple[str, str]]:
    """What became of the clocks, and the nodes of which it is true."""
    groups: dict[str, list[str]] = {}
    for row in document["clocks_at_end"]:
        groups.setdefault(row["text"], []).append(row["node"])
    return [
        (
            words,
            ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else ""),
        )
        for words, names in groups.items()
    ]


def clock_cell(governor: bool | None, mhz: float | None) -> str:
    """A clock in a table of updates; mixed where more than one plan ran."""
    if mhz is not None:
        return units.plain(mhz)
    return "mixed" if governor is None else "governor"


def update_remarks(row: UpdateRow) -> str:
    """Flags of an update and why it is not used."""
    return "; ".join([*(flag.replace("_", " ") for flag in row.flags), *filter(None, [row.unusable_reason])])


def _events(document: Document) -> list[str]:
    lines: list[str] = []
    for row in document["events"][:LISTED]:
        place = " ".join(str(row[key]) for key in ("node", "uuid") if row[key])
        when = units.UNKNOWN if row["t_s"] is None else f"{row['t_s']:.1f} s"
        words = f"{row['kind'].replace('_', ' ')} {place}".strip()
        lines += _wrapped(f"{when:>10}  {words}: {row['text']}", "")
    total = sum(document["event_counts"].values())
    if total > LISTED:
        lines.append(f"… {total} events in all; report.json has up to 50 of each kind")
    return lines
