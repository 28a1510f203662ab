"""The figures of the page: clocks and states (as the paper's figure 4), power by phase (as figure 1), energy per
valid training token and throughput over the updates with what the governor would have done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from eerl_launch.report import units
from eerl_launch.report.charts import Chart, Point, usual_range
from eerl_launch.report.document import Report
from eerl_launch.report.rows import PhaseRow, Run, UpdateRow
from eerl_launch.report.values import number
from eerl_launch.report.works import VISITING

#: With more updates than this a tooltip over each would make the page heavy for a pixel of width.
HINTED_UPDATES = 400

#: Phases the page has a colour for; others share one.
COLOURED = ("generation", "training", "logprob", "reward", "refit", "validation", "critic", "checkpoint")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its heading and what to know when looking at it."""

    title: str
    svg: str
    caption: str


def figures(report: Report) -> list[Figure]:
    """The figures that this run has data for."""
    found = [clocks(report), energy(report), throughput(report), power(report)]
    return [figure for figure in found if figure is not None]


def _places(run: Run) -> list[tuple[float, UpdateRow]]:
    """Updates on the x axis by their label; by their count when labels repeat or are missing."""
    labels = [row.update for row in run.updates if row.update is not None]
    if len(labels) < len(run.updates) or any(left >= right for left, right in pairwise(labels)):
        return [(float(place), row) for place, row in enumerate(run.updates, start=1)]
    return [(float(label), row) for label, row in zip(labels, run.updates, strict=True)]


def _chart(
    places: Sequence[tuple[float, UpdateRow]], label: str, y_title: str, y_range: tuple[float, float]
) -> Chart:
    return Chart(label, (places[0][0] - 0.5, places[-1][0] + 0.5), y_range, "update", y_title)


def _bands(chart: Chart, places: Sequence[tuple[float, UpdateRow]]) -> None:
    begin = 0
    for place in range(1, len(places) + 1):
        if place < len(places) and places[place][1].state == places[begin][1].state:
            continue
        state = places[begin][1].state
        if state:
            name = state.replace("_", " ")
            css = f"state-{state}" if state.isidentifier() else "state-other"
            first, last = places[begin][0], places[place - 1][0]
            chart.band(first - 0.5, last + 0.5, css, name, f"updates {first:.0f} to {last:.0f}")
        begin = place


def clocks(report: Report) -> Figure | None:
    """Requested and achieved clocks over the updates, states behind them."""
    places = _places(report.run)
    series: dict[str, list[Point]] = {
        key: [(place, getattr(row, key)) for place, row in places]
        for key in ("generation_mhz", "training_mhz", "generation_achieved_mhz", "training_achieved_mhz")
    }
    values = [value for points in series.values() for _, value in points if value is not None]
    if len(places) < 2 or not values:
        return None
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 30.0)
    chart = _chart(places, "clocks over updates", "SM clock, MHz", (low - room, high + room))
    _bands(chart, places)
    chart.line(series["generation_mhz"], "generation", "generation, requested", step=True)
    chart.line(series["training_mhz"], "training", "training, requested", step=True)
    chart.dots(series["generation_achieved_mhz"], "generation", "generation, achieved")
    chart.dots(series["training_achieved_mhz"], "training", "training, achieved")
    _hints(chart, places, lambda row: _clock_words(row))
    return Figure(
        "Clocks and controller states",
        chart.svg(),
        "Lines are the clocks asked for, dots the clocks achieved while busy. Where there is no line, the governor "
        "held the clock. An achieved clock below the requested one is usually the power cap.",
    )


def _clock_words(row: UpdateRow) -> str:
    return (
        f"generation {units.clock(row.generation_mhz)} (achieved {units.plain(row.generation_achieved_mhz)}), "
        f"training {units.clock(row.training_mhz)} (achieved {units.plain(row.training_achieved_mhz)})"
    )


def _hints(
    chart: Chart, places: Sequence[tuple[float, UpdateRow]], words: Callable[[UpdateRow], str]
) -> None:
    if len(places) <= HINTED_UPDATES:
        chart.hints(
            [(place, f"update {place:.0f}, {row.state or 'no state'}: {words(row)}") for place, row in places]
        )


def energy(report: Report) -> Figure | None:
    """Energy per valid training token, measured and as the governor would have had it."""
    predictions = report.estimate.predictions

    visits = _visits(report.run)

    def measured(row: UpdateRow) -> float | None:
        own_j = None if row.energy_j is None else row.energy_j - visits[row.index][1]
        return own_j / row.valid_tokens if own_j is not None and row.valid_tokens else None

    def predicted(row: UpdateRow) -> float | None:
        found = predictions.get(row.index)
        return (found[1] - visits[row.index][1]) / row.valid_tokens if found and row.valid_tokens else None

    return _compared(report, measured, predicted, "Energy per valid training token", "J per valid token")


def throughput(report: Report) -> Figure | None:
    """Valid training tokens per second, measured and as the governor would have had it."""
    predictions = report.estimate.predictions

    visits = _visits(report.run)

    def measured(row: UpdateRow) -> float | None:
        own_s = (row.elapsed_s or 0.0) - visits[row.index][0]
        return row.valid_tokens / own_s if row.valid_tokens and own_s > 0 else None

    def predicted(row: UpdateRow) -> float | None:
        found = predictions.get(row.index)
        own_s = found[0] - visits[row.index][0] if found else 0.0
        return row.valid_tokens / own_s if row.valid_tokens and own_s > 0 else None

    return _compared(report, measured, predicted, "Throughput", "valid tokens per s")


def _visits(run: Run) -> dict[int, tuple[float, float]]:
    """Seconds and joules of validation and checkpoint by update: shown, they would drown all else (R01)."""
    found = {row.index: (0.0, 0.0) for row in run.updates}
    for row in run.updates:
        phases = row.record.get("phases")
        for name in VISITING:
            entry = phases.get(name) if isinstance(phases, dict) else None
            if isinstance(entry, dict):
                seconds, joules = found[row.index]
                found[row.index] = (
                    seconds + (number(entry.get("elapsed_s")) or 0.0),
                    joules + (number(entry.get("energy_j")) or 0.0),
                )
    return found


def _compared(
    report: Report,
    measured: Callable[[UpdateRow], float | None],
    predicted: Callable[[UpdateRow], float | None],
    title: str,
    y_title: str,
) -> Figure | None:
    places = _places(report.run)
    seen = [(place, row, measured(row)) for place, row in places]
    values = [value for _, _, value in seen if value is not None]
    if len(values) < 2:
        return None
    reference: list[Point] = [(place, predicted(row)) for place, row in places]
    known = [value for _, value in reference if value is not None]
    chart = _chart(places, title, y_title, usual_range(values + known))
    _bands(chart, places)
    chart.line(reference, "governor", "governor, predicted for the same work")
    chart.dots(
        [(p, v) for p, row, v in seen if row.governor is True], "governor", "measured under the governor"
    )
    chart.dots(
        [(p, v) for p, row, v in seen if row.governor is not True], "lowered", "measured, clocks lowered"
    )
    by_place = dict(reference)
    if len(places) <= HINTED_UPDATES:
        chart.hints(
            [
                (
                    place,
                    f"update {place:.0f}: {units.significant(value)} {y_title}"
                    f" (governor {units.significant(by_place[place])})",
                )
                for place, _, value in seen
            ]
        )
    caption = "Each dot is an update without its validation and checkpoint. "
    caption += (
        "The line is what the governor would have had with the same work. "
        if known
        else "There is no governor prediction. "
    )
    if chart.outside:
        caption += f"Values beyond the axis are drawn on its edge ({chart.outside} here)."
    return Figure(f"{title} over the updates", chart.svg(), caption.strip())


def power(report: Report) -> Figure | None:
    """Mean power per GPU by phase of a mean update: the governor's, and below it that under lowered clocks."""
    run = report.run
    if run.mode not in (None, "colocated_sync", "disaggregated_sync") or not run.gpus:
        return None
    lock = next((row.index for row in run.updates if row.state == "locked"), None)
    steady = report.estimate.reference_indices
    governor = {
        row.index for row in run.updates if row.index in steady or (not steady and row.governor is True)
    }
    lowered = {
        row.index for row in run.updates if row.governor is False and (lock is None or row.index >= lock)
    }
    lanes = [
        ("governor", governor, _mean_phases(run, governor)),
        ("after the lock" if lock is not None else "clocks lowered", lowered, _mean_phases(run, lowered)),
    ]
    lanes = [lane for lane in lanes if lane[2]]
    if not lanes:
        return None
    longest = max(sum(seconds for _, seconds, _ in phases) for _, _, phases in lanes)
    highest = max(watts for _, _, phases in lanes for _, _, watts in phases)
    svgs = []
    first: dict[str, float] = {}
    for name, members, phases in lanes:
        chart = Chart(
            f"power by phase, {name}",
            (0.0, longest * 1.02),
            (0.0, highest * 1.32),
            "seconds of a mean update, gaps between phases left out",
            "W per GPU",
            height=190.0,
        )
        chart.legend.append(("line", "lowered" if first else "governor", f"{name}, {len(members)} updates"))
        begin = 0.0
        for phase, seconds, watts in phases:
            change = "" if phase not in first else f"({units.signed(100 * (watts / first[phase] - 1), 0)} %)"
            css = f"phase-{phase}" if phase in COLOURED else "phase-other"
            words = f"{phase}: {units.power(watts)} per GPU for {units.duration(seconds)}"
            chart.bar(
                begin, begin + seconds, watts, css, [phase, f"{units.power(watts)} {change}".strip()], words
            )
            begin += seconds
        first = first or {phase: watts for phase, _, watts in phases}
        svgs.append(chart.svg())
    return Figure(
        "Power by phase",
        "".join(svgs),
        "Width is the mean time of a phase, height its mean power, so the area is its energy. The two rows may have "
        "had different work; the result above compares at equal work.",
    )


def _mean_phases(run: Run, updates: set[int]) -> list[tuple[str, float, float]]:
    """(phase, seconds of a mean update, W per GPU), in the order in which phases begin within an update."""
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
