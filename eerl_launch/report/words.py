"""Words that the text and the page share, from the document."""

from __future__ import annotations

from typing import Any

from eerl_launch.report import units
from eerl_launch.report.document import Document
from eerl_launch.report.rows import UpdateRow
from eerl_launch.report.totals import ASYNCHRONOUS

#: Nodes named in a sentence; of more it says how many.
NAMED_NODES = 20

#: The intervals of tables 4 and 5, and what lowered clocks do while they are lowered.
INTERVALS = {
    "whole": "whole run",
    "before_lock": "before the lock",
    "after_lock": "after the lock",
    "lowered": "lowered updates only",
}


def seen(total: dict[str, Any]) -> str:
    """Nodes and GPUs seen of expected, in words."""
    nodes = f"{total['nodes_seen']} of {total['nodes_expected'] or '?'} nodes"
    gpus = units.count(total["gpus_seen"], "GPU")
    if total["gpus_expected"]:
        gpus = f"{total['gpus_seen']} of {total['gpus_expected']} GPUs"
    return f"{nodes}, {gpus}"


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


def _exit(run: dict[str, Any]) -> str:
    words = str(run["command"] or "")
    if run["exit_code"] is not None:
        words += (
            f" (exit code {run['exit_code']}" + (f", signal {run['signal']}" if run["signal"] else "") + ")"
        )
    return words.strip()


def saving(entry: dict[str, Any]) -> str:
    """Energy saved in percent with its 95 % interval in brackets; less than nothing when it is negative."""
    low, high = entry["saving_low_percent"], entry["saving_high_percent"]
    return units.plain(entry["saving_percent"], 1) + _limits(units.plain(low, 1), units.plain(high, 1))


def throughput(entry: dict[str, Any]) -> str:
    """Change of throughput in percent, always with its sign, and its 95 % interval in brackets."""
    low, high = entry["throughput_change_low_percent"], entry["throughput_change_high_percent"]
    return units.signed(entry["throughput_change_percent"]) + _limits(units.signed(low), units.signed(high))


def _limits(low: str, high: str) -> str:
    return "" if units.UNKNOWN in (low, high) else f" ({low} to {high})"


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
        f"Compared with {result['reference']}; {result['governor_updates_used']} settled governor updates are the "
        "reference. "
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
    if result["straggling_lowered_updates"]:
        words += (
            f" {units.count(result['straggling_lowered_updates'], 'lowered update')} took longer than work and "
            "clocks can explain (stragglers): nothing is claimed for the excess. Held against the clocks, it would "
            f"make the saving {units.plain(result['saving_with_stragglers_percent'], 1)} % and the change of "
            f"throughput {units.signed_percent(result['throughput_change_with_stragglers_percent'])}."
        )
    return words


def requested(row: dict[str, Any]) -> str:
    """The requested clock of a phase: the governor, MHz, or MHz for a share of the time."""
    if row["governor_time_fraction"] is None:
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


def phases_note(mode: str | None) -> str:
    """What the phase table means; where pools work at the same time, a phase has its own pool's GPUs."""
    whose = "a phase's own pool" if mode in ASYNCHRONOUS else "the whole allocation"
    return (
        f"W is the mean over {whose} while the phase ran. Subphases are part of their phase; energies of phases and "
        "unattributed make up the total. The requested clock is the mean lock while one was held, with its share of "
        "the time in brackets; capped is the share of time under a power cap, which is normal on some GPUs. – is not "
        "known."
    )


#: Phases whose edges may be off by more than this share of their energy are named.
NAMED_ERROR = 0.1


def phase_remarks(document: Document) -> list[str]:
    """Phases with runs whose energy is not known or that never ended, a sentence each."""
    found = []
    for row in document["phases"]:
        if row["runs_without_energy"]:
            reason = f" ({row['energy_reason'].split(':')[0]})" if row["energy_reason"] else ""
            share = f"{row['runs_without_energy']} of {row['runs']} runs"
            found.append(f"{row['phase']}: the energy of {share} is not known{reason}.")
        elif row["runs"] is None and row["energy_reason"]:
            found.append(f"{row['phase']}: {row['energy_reason']}.")
        error_j, energy_j = row["energy_error_j"], row["energy_j"]
        if error_j and energy_j and error_j > NAMED_ERROR * energy_j:
            found.append(
                f"{row['phase']}: estimated, its energy is known to ± {100 * error_j / energy_j:.0f} %, as its runs "
                "are short beside the 100 ms in which the counters are published."
            )
        if row["runs_without_end"]:
            found.append(
                f"{row['phase']}: {units.count(row['runs_without_end'], 'run')} never marked as ended."
            )
    return found


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


def clock_groups(document: Document) -> list[tuple[str, str]]:
    """What became of the clocks, and the nodes of which it is true."""
    groups: dict[str, list[str]] = {}
    for row in document["clocks_at_end"]:
        groups.setdefault(row["text"], []).append(row["node"])
    return [(outcome, _listed(names)) for outcome, names in groups.items()]


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED_NODES
    return ", ".join(names[:NAMED_NODES]) + (f" and {more} more" if more > 0 else "")


def clock_cell(governor: bool | None, mhz: float | None) -> str:
    """A clock in a table of updates; mixed where more than one plan ran."""
    if mhz is not None:
        return units.plain(mhz)
    return "mixed" if governor is None else "governor"


def update_remarks(row: UpdateRow) -> str:
    """Flags of an update and why it is not used."""
    return "; ".join([*(flag.replace("_", " ") for flag in row.flags), *filter(None, [row.unusable_reason])])
