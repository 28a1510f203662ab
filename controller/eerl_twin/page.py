"""The scoreboard as documentation: a page with everything, and a short table for the README. Made, never typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eerl_twin.score import Row, as_markdown, percent

#: Policies of the short table; the governor saves nothing and the oracle's share is 1.
SHORT = ("fixed", "paper", "eerl")
#: Around the short table in the README.
BEGIN = "<!-- scoreboard: made by `make scoreboard`, do not edit -->"
END = "<!-- /scoreboard -->"
_MODE_WORDS = {
    "colocated_sync": "colocated",
    "disaggregated_sync": "disaggregated",
    "async_drained": "drained",
    "async_inflight": "in-flight",
}
_COLUMNS = """\
Each policy meets the same work and noise as a governor run beside it; saving is per valid training token, and all
numbers are of whole runs, search included, unless the column says otherwise.

- *oracle*: the best fixed clocks in hindsight within the limit. *oracle after calibration*: the same when the first
  updates are left to the governor as a calibration does; it may save more than the oracle, since slow first updates
  then cost it nothing.
- *share of oracle*: ratio of sums, in which a run beyond the limit saved nothing.
- *violations*: runs that lost more than the limit, and the upper 95 % bound (Clopper-Pearson) of their probability.
- *locked*: runs that reached state `LOCKED`; *after lock* and *updates until lock* (median) are of these.
- *fixed* holds 1800/1500 of 1980 MHz, the paper's colocated setting, wherever it runs.
"""


@dataclass(frozen=True, slots=True)
class Played:
    """What was scored: runs of each group, their updates (in-flight: of its own), first seed, limit, and the rows."""

    runs: int
    updates: int
    inflight_updates: int
    first_seed: int
    max_loss: float
    rows: Sequence[Row]

    def words(self) -> str:
        """How much was run, in one sentence."""
        seeds = f"seeds {self.first_seed} to {self.first_seed + self.runs - 1}"
        inflight = "" if self.inflight_updates == self.updates else f", in-flight {self.inflight_updates}"
        return (
            f"{self.runs} runs of each ({seeds}), {self.updates} updates each{inflight}; "
            f"limit {100 * self.max_loss:g} % of throughput."
        )


def short_table(population: Played) -> str:
    """The policies by mode in seven columns, with what was run; ends in a line end."""
    lines = [
        "| mode | policy | saving | throughput | share of the best | runs beyond the limit (bound) | worst run |",
        "|---|---|---|---|---|---|---|",
    ]
    order = [*_MODE_WORDS, "all"]
    for row in sorted(population.rows, key=lambda item: order.index(item.group)):
        if row.policy in SHORT:
            share = "" if row.oracle_share is None else f"{row.oracle_share:.2f}"
            lines.append(
                f"| {_MODE_WORDS.get(row.group, row.group)} | `{row.policy}` | {percent(row.energy_saving, 1)} % "
                f"| {percent(row.throughput_change, 1)} % | {share} "
                f"| {row.violations} of {row.runs} ({100 * row.violation_bound:.1f} %) "
                f"| {percent(-row.worst_loss, 1)} % |"
            )
    return "\n".join([*lines, "", population.words()]).replace("| -", "| \N{MINUS SIGN}") + "\n"


def page(population: Played, presets: Played | None) -> str:
    """The whole page."""
    parts = [
        "# Scoreboard\n",
        "Made by `make scoreboard` (`RUNS=75` for a full one); do not edit. Simulated, as all the twin says.\n",
        _COLUMNS,
        "## The population\n",
        "Worlds drawn broadly, with shifts, ageing and faults ([population.py](population.py)). "
        f"{population.words()}\n",
        short_table(population),
        as_markdown(population.rows),
    ]
    if presets is not None:
        parts += [
            "## The calibrated presets\n",
            "The paper's configurations of its controller runs, and Nemotron's like them "
            f"([calibration.md](calibration.md)); no shifts and no faults. {presets.words()}\n",
            as_markdown(presets.rows),
        ]
    return "\n".join(parts)


def with_short_table(text: str, population: Played) -> str:
    """A document with the short table between its two marks. Raises ValueError when it does not have both."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{short_table(population)}\n{END}{tail}"
