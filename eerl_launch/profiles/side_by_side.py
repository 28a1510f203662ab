"""The tables of several runs: what their rewards cost, what they are, and what they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eerl_launch.profiles.tables import Show, Table
from eerl_launch.report import units

#: How each quantity of the comparison is called and shown.
QUANTITIES: dict[str, tuple[str, Show]] = {
    "elapsed_s_per_update": ("s per update", units.significant),
    "energy_j_per_update": ("energy per update", units.energy_j),
    "energy_j_per_gpu_and_update": ("energy per GPU and update", units.energy_j),
    "power_w_per_gpu": ("W per GPU", units.plain),
    "energy_j_per_valid_token": ("J per valid token", units.significant),
    "elapsed_s_per_million_valid_tokens": ("s per million valid tokens", units.significant),
    "gpu_s_per_million_valid_tokens": ("GPU s per million valid tokens", units.significant),
    "generation_elapsed_fraction": ("generation, share of time", units.percent),
    "generation_energy_fraction": ("generation, share of energy", units.percent),
    "training_elapsed_fraction": ("training, share of time", units.percent),
    "training_energy_fraction": ("training, share of energy", units.percent),
    "reward_elapsed_fraction": ("reward, share of time", lambda value: units.percent(value, 1)),
    "reward_energy_fraction": ("reward, share of energy", lambda value: units.percent(value, 1)),
    "mean_tokens": ("mean response, tokens", units.plain),
    "valid_tokens_per_response": ("valid tokens per response", units.plain),
    "longest_over_mean": ("longest over mean response", lambda value: units.plain(value, 2)),
    "empty_places_fraction": ("places empty while the longest finish, at most", units.percent),
    "tail_fraction": ("decoding with a tenth of responses left", units.percent),
    "waiting_fraction": ("generation spent idle at its end, mean GPU", lambda value: units.percent(value, 1)),
    "power_unevenness_fraction": ("unevenness of GPUs' power", lambda value: units.percent(value, 1)),
}


def reward_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The cost of rewards, a row per run and for each of its subphases."""
    rows: list[tuple[str, ...]] = []
    whose: dict[str, list[str]] = {}
    for run in runs:
        found = run["reward"]
        paradigm, per_response = (
            found["paradigm"] or "not told",
            units.significant(found["energy_j_per_response"]),
        )
        rows.append((run["run"], paradigm, *_reward_cells(found), per_response, _moved(found)))
        rows += [
            ("  " + row["phase"], "", *_reward_cells(row), units.UNKNOWN, units.UNKNOWN)
            for row in found["parts"]
        ]
        reasons = (found["reason"], found["energy_j_per_response_reason"], found["moved_bytes_reason"])
        for reason in dict.fromkeys(reason for reason in reasons if reason):
            whose.setdefault(reason, []).append(run["run"])
    return Table(
        "Cost of rewards, by update",
        (
            "run",
            "reward",
            "s/update",
            "energy",
            "W per GPU",
            "of time",
            "of energy",
            "J/token",
            "busy",
            "J/response",
            "MB moved",
        ),
        tuple(rows),
        tuple(f"{', '.join(names)}: {reason}" for reason, names in whose.items()),
    )


def _reward_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        units.significant(row["mean_elapsed_s"]),
        units.energy_j(row["mean_energy_j"]),
        units.plain(row["mean_power_w_per_gpu"]),
        units.percent(row["elapsed_fraction"], 1),
        units.percent(row["energy_fraction"], 1),
        units.significant(row["energy_j_per_valid_token"]),
        units.percent(row["busy_fraction"]),
    )


def _moved(found: Mapping[str, Any]) -> str:
    moved = found["moved_bytes_per_update"]
    return (
        units.UNKNOWN if not moved else units.significant(sum(item["mean"] for item in moved.values()) / 1e6)
    )


def comparison_tables(comparison: Mapping[str, Any]) -> list[Table]:
    """The runs side by side: what they are, and what they took."""
    runs = tuple(comparison["runs"])
    marks = {True: "differs", False: "same", None: "not known"}
    axes = Table(
        "What the runs are",
        ("axis", "", *runs),
        tuple(
            (row["axis"], marks[row["differs"]], *(value or units.UNKNOWN for value in row["values"]))
            for row in comparison["axes"]
        ),
        tuple(comparison["notes"]),
    )
    took = Table(
        "What they took",
        ("", *runs),
        tuple((QUANTITIES[row["quantity"]][0], *_side_by_side(row)) for row in comparison["quantities"]),
        (
            "In parentheses: against the first run, with the 95 % interval by the spread within the runs; "
            "what differs between any two runs of one kind (seeds, nodes) is on top of it.",
        ),
    )
    return [axes, took]


def _side_by_side(row: Mapping[str, Any]) -> list[str]:
    show = QUANTITIES[row["quantity"]][1]
    cells = []
    for place, (value, relative) in enumerate(zip(row["values"], row["relative_to_first"], strict=True)):
        low, high = row["relative_low"][place], row["relative_high"][place]
        within = "" if low is None else f", {units.plain(low, 3)}–{units.plain(high, 3)}"
        hidden = place == 0 or relative is None or row["quantity"].endswith("_fraction")
        cells.append(show(value) + ("" if hidden else f" (×{units.plain(relative, 3)}{within})"))
    return cells
