"""Power by phase of a mean update, as in the paper's figure 1: under the governor, below it under lowered clocks."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from eerl_launch.report import units
from eerl_launch.report.charts import Chart
from eerl_launch.report.document import Report
from eerl_launch.report.figure import Figure
from eerl_launch.report.rows import PhaseRow, Run

#: Phases the page has a colour for; others share one.
COLOURED = ("generation", "training", "logprob", "reward", "refit", "validation", "critic", "checkpoint")


@dataclass(frozen=True, slots=True)
class _Lane:
    """The mean update of some updates: (phase, seconds, W per GPU) in the order in which phases begin."""

    name: str
    updates: int
    phases: list[tuple[str, float, float]]


def power(report: Report) -> Figure | None:
    """Mean power per GPU by phase; None in modes whose phases overlap, and without phases."""
    run = report.run
    if run.mode not in (None, "colocated_sync", "disaggregated_sync") or not run.gpus:
        return None
    lanes = _lanes(report)
    if not lanes:
        return None
    longest = max(sum(seconds for _, seconds, _ in lane.phases) for lane in lanes)
    highest = max(watts for lane in lanes for _, _, watts in lane.phases)
    first = {phase: watts for phase, _, watts in lanes[0].phases}
    rows = []
    for lane in lanes:
        for phase, seconds, watts in lane.phases:
            change = "" if lane is lanes[0] else _change(watts, first.get(phase))
            rows.append(
                (lane.name, phase, units.plain(seconds, 1), units.plain(watts), change or units.UNKNOWN)
            )
    return Figure(
        "power",
        "Power by phase",
        "".join(_draw(lane, lanes[0], longest, highest) for lane in lanes),
        "Width is the mean time of a phase, height its mean power, so the area is its energy. The two rows may have "
        "had different work; the result above compares at equal work.",
        ("", "phase", "s in a mean update", "W per GPU", "change"),
        rows,
    )


def _lanes(report: Report) -> list[_Lane]:
    run = report.run
    lock = next((row.index for row in run.updates if row.state == "locked"), None)
    steady = report.estimate.reference_indices
    governor = {
        row.index for row in run.updates if row.index in steady or (not steady and row.governor is True)
    }
    lowered = {
        row.index for row in run.updates if row.governor is False and (lock is None or row.index >= lock)
    }
    parts = {"governor": governor, "after the lock" if lock is not None else "clocks lowered": lowered}
    lanes = [_Lane(name, len(updates), _mean_phases(run, updates)) for name, updates in parts.items()]
    return [lane for lane in lanes if lane.phases]


def _change(watts: float, before_w: float | None) -> str:
    return f"{units.signed(100 * (watts / before_w - 1), 0)} %" if before_w else ""


def _draw(lane: _Lane, first: _Lane, longest_s: float, highest_w: float) -> str:
    chart = Chart(
        f"power by phase, {lane.name}",
        (0.0, longest_s * 1.02),
        (0.0, highest_w * 1.32),
        "seconds of a mean update, gaps between phases left out",
        "W per GPU",
        height=190.0,
    )
    css = "governor" if lane is first else "lowered"
    chart.legend.append(("line", css, f"{lane.name}, {lane.updates} updates"))
    before_w = {phase: watts for phase, _, watts in first.phases}
    begin_s = 0.0
    for phase, seconds, watts in lane.phases:
        change = "" if lane is first else _change(watts, before_w.get(phase))
        css = f"phase-{phase}" if phase in COLOURED else "phase-other"
        words = f"{phase}: {units.power(watts)} per GPU for {units.duration(seconds)}"
        texts = [phase, f"{units.power(watts)} {f'({change})' if change else ''}".strip()]
        chart.bar(begin_s, begin_s + seconds, watts, css, texts, words)
        begin_s += seconds
    return chart.svg()


def _mean_phases(run: Run, updates: set[int]) -> list[tuple[str, float, float]]:
    rows: dict[str, list[PhaseRow]] = {}
    for row in run.phases:
        if row.exclusive and row.index in updates and row.energy_j is not None and row.elapsed_s:
            rows.setdefault(row.phase, []).append(row)
    begins = {row.index: row.begin_s for row in run.updates if row.begin_s is not None}

    def offset(name: str) -> float:
        return median([(row.begin_s or 0.0) - (begins.get(row.index or 0) or 0.0) for row in rows[name]])

    return [
        (
            name,
            sum(row.elapsed_s or 0.0 for row in rows[name]) / len(updates),
            sum(row.energy_j or 0.0 for row in rows[name])
            / sum(row.elapsed_s or 0.0 for row in rows[name])
            / max(len(run.gpus), 1),
        )
        for name in sorted(rows, key=offset)
    ]
