"""The tables of the profiles in words: the same heads and cells in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eerl_launch.report import units


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; the first column is words, the others are numbers. ``notes`` stand below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


Show = Callable[[float | None], str]

SIGNATURE_NOTES = (
    "Means over the updates in which a phase ran, with the middle 80 % of updates in parentheses; J per valid token "
    "and shares of time and energy are of all updates. Subphases are indented and lie inside their phase."
)
_LENGTHS: dict[str, tuple[str, Show]] = {
    "responses_per_update": ("responses per update", units.plain),
    "mean_tokens": ("mean response, tokens", units.plain),
    "valid_tokens_per_response": ("valid tokens per response", units.plain),
    "longest_tokens": ("longest response, tokens", units.plain),
    "longest_over_mean": ("longest over mean", lambda value: units.plain(value, 2)),
    "empty_places_fraction": ("places empty while the longest finish, at most", units.percent),
    "tail_fraction": ("decoding with a tenth of responses left", units.percent),
}


def signature_table(run: Mapping[str, Any]) -> Table:
    """The phase signatures of a run."""
    rows = run["signature"]
    notes = [SIGNATURE_NOTES]
    notes += [f"{row['phase']}: energy {row['energy_reason']}" for row in rows if row["energy_reason"]]
    unended = [row["phase"] for row in rows if row["runs_without_end"]]
    if unended:
        notes.append(f"not every end was marked of: {', '.join(unended)}")
    factor, unit = _energy_unit(rows)
    pools = len({row["gpus"] for row in rows}) > 1
    head = (
        "phase",
        "updates",
        "time s",
        f"energy {unit}",
        "W per GPU",
        "J/token",
        "time %",
        "energy %",
        "busy %",
    )
    return Table(
        "Phase signatures, per update",
        (*head, "capped %", "MHz", *(["GPUs"] if pools else [])),
        tuple((*_signature_row(row, factor), *([units.plain(row["gpus"])] if pools else [])) for row in rows),
        tuple(notes),
    )


def _energy_unit(rows: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    """Joules in one unit for a whole table, so that rows can be compared at a glance."""
    most_j = max((row["mean_energy_j"] or 0.0 for row in rows), default=0.0)
    return next(
        ((factor, unit) for factor, unit in ((1e6, "MJ"), (1e3, "kJ")) if most_j >= 10 * factor), (1.0, "J")
    )


def _signature_row(row: Mapping[str, Any], factor: float) -> tuple[str, ...]:
    depth = row["phase"].count("/")
    name = "  " * depth + row["phase"].rsplit("/", 1)[-1] if depth else row["phase"]

    def percent(value: float | None, digits: int = 0) -> str:
        return units.plain(None if value is None else 100 * value, digits)

    def energy(value: float | None) -> str:
        return units.significant(None if value is None else value / factor)

    return (
        name,
        units.plain(row["updates"]),
        around(row["mean_elapsed_s"], row["p10_elapsed_s"], row["p90_elapsed_s"], units.significant),
        around(row["mean_energy_j"], row["p10_energy_j"], row["p90_energy_j"], energy),
        around(
            row["mean_power_w_per_gpu"], row["p10_power_w_per_gpu"], row["p90_power_w_per_gpu"], units.plain
        ),
        units.significant(row["energy_j_per_valid_token"]),
        percent(row["elapsed_fraction"], 1),
        percent(row["energy_fraction"], 1),
        percent(row["busy_fraction"]),
        percent(row["capped_fraction"]),
        units.plain(row["achieved_mhz"]),
    )


def around(mean: float | None, low: float | None, high: float | None, show: Show) -> str:
    """A mean with the middle 80 % beside it."""
    if mean is None or low is None or high is None:
        return show(mean)
    return f"{show(mean)} ({show(low)}–{show(high)})"


def lengths_table(run: Mapping[str, Any]) -> Table:
    """The structure of a run's response lengths."""
    found = run["responses"]
    rows = [_length_row(name, found[key], show) for key, (name, show) in _LENGTHS.items()]
    quantiles = found["quantiles_tokens"] or {}
    rows += [
        _length_row(f"{name.removeprefix('p')} % of responses have at most, tokens", value, units.plain)
        for name, value in quantiles.items()
        if value is not None and name != "max"
    ]
    reasons = dict.fromkeys(found["reasons"].values())
    notes = [f"{_names(found['reasons'], reason)}: {reason}" for reason in reasons]
    if found["empty_places_fraction"] is not None:
        notes.append(
            "Empty places are 1 − mean/longest, as if all responses began together; an engine that refills places "
            "has fewer."
        )
    return Table(
        "Response lengths, by update",
        ("", "updates", "mean", "p10", "median", "p90"),
        tuple(rows),
        tuple(notes),
    )


def _names(reasons: Mapping[str, str], reason: str) -> str:
    names = {key: name for key, (name, _) in _LENGTHS.items()} | {"quantiles_tokens": "quantiles of lengths"}
    return "; ".join(names[key] for key in reasons if reasons[key] == reason)


def _length_row(name: str, found: Mapping[str, Any] | None, show: Show) -> tuple[str, ...]:
    if found is None:
        return (name, "0", *[units.UNKNOWN] * 4)
    return (
        name,
        units.plain(found["count"]),
        *(show(found[key]) for key in ("mean", "p10", "median", "p90")),
    )


def waiting_tables(run: Mapping[str, Any], most: int) -> list[Table]:
    """Who waits in generation, by node and by GPU; of GPUs at most ``most``, those that wait longest first."""
    found = run["imbalance"]
    notes = []
    if found["waiting_reason"]:
        notes.append(f"idle at the end of generation: {found['waiting_reason']}")
    elif found["waiting_fraction"] is not None:
        notes.append(
            f"the mean GPU is idle for {units.percent(found['waiting_fraction'], 1)} of generation, at its end, "
            f"while others finish; seen through utilisation, so it is at least that"
        )
    if found["power_unevenness_fraction"] is not None:
        notes.append(
            f"power of a GPU in generation changes by {units.percent(found['power_unevenness_fraction'], 1)} from "
            "update to update against the other GPUs (its own level and the update's taken out)"
        )
    pools = [_pool_table(found["by_pool"])] if found["by_pool"] else []
    if not found["by_gpu"]:
        return [Table("Waiting in generation", (), (), tuple(notes)), *pools]
    nodes = Table(
        "Waiting in generation, by node",
        ("node", "GPUs", "W per GPU", "idle at the end"),
        tuple(
            (
                str(row["node"] or units.UNKNOWN),
                units.plain(row["gpus"]),
                units.plain(row["generation_power_w_per_gpu"]),
                units.percent(row["waiting_fraction"], 1),
            )
            for row in found["by_node"]
        ),
        tuple(notes),
    )
    return [nodes, _gpu_table(found["by_gpu"], most), *pools]


def _pool_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        "Pools that wait for each other, by update",
        ("pool", "GPUs", "mean s", "p90 s", "of time", "energy"),
        tuple(
            (
                row["pool"],
                units.plain(row["gpus"]),
                units.plain(row["mean_wait_s"], 1),
                units.plain(row["p90_wait_s"], 1),
                units.percent(row["wait_fraction"], 1),
                units.energy_j(row["mean_wait_energy_j"]),
            )
            for row in rows
        ),
    )


def _gpu_table(rows: Sequence[Mapping[str, Any]], most: int) -> Table:
    shown = (
        sorted(rows, key=lambda row: -(row["waiting_fraction"] or 0.0))[:most] if len(rows) > most else rows
    )
    left = len(rows) - len(shown)
    return Table(
        "Waiting in generation, by GPU",
        ("GPU", "W", "of mean power", "idle at the end", "mean s", "p90 s", "last to finish, updates"),
        tuple(
            (
                f"{row['node'] or units.UNKNOWN}:{units.plain(row['index'])}",
                units.plain(row["generation_power_w"]),
                units.percent(row["relative_power"]),
                units.percent(row["waiting_fraction"], 1),
                units.plain(row["mean_waiting_s"], 1),
                units.plain(row["p90_waiting_s"], 1),
                units.plain(row["last_updates"]),
            )
            for row in shown
        ),
        (f"{left} more GPUs, which wait less, are in the JSON and CSV",) if left else (),
    )
