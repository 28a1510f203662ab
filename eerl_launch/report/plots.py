"""The figures over the updates: clocks and states (as the paper's figure 4), energy per valid training token and
throughput with what the governor would have done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eerl_launch.report import units
from eerl_launch.report.charts import Chart, Point, usual_range
from eerl_launch.report.document import Report
from eerl_launch.report.figure import Figure, Values
from eerl_launch.report.rows import Run, UpdateRow
from eerl_launch.report.stretches import MOST_POINTS, Stretch, stretches
from eerl_launch.report.values import number
from eerl_launch.report.works import VISITING

#: With more updates than this a tooltip over each would make the page heavy for a pixel of width.
HINTED_UPDATES = 400
#: Rows of the table behind a plot; of more updates each row is the mean of a few.
MOST_ROWS = 100

Read = Callable[[UpdateRow], float | None]


@dataclass(frozen=True, slots=True)
class _Quantity:
    """What is read off each update; ``unknown`` is what it means when there is no value."""

    name: str
    unit: str
    read: Read
    unknown: str = units.UNKNOWN


def _chart(
    key: str, track: Sequence[Stretch], label: str, y_title: str, y_range: tuple[float, float]
) -> Chart:
    chart = Chart(label, (track[0].first - 0.5, track[-1].last + 0.5), y_range, "update", y_title)
    chart.key, chart.unit = key, track[0].last - track[0].first + 1.0
    begin = 0
    for place in range(1, len(track) + 1):
        if place < len(track) and track[place].state == track[begin].state:
            continue
        state = track[begin].state
        if state:
            css = f"state-{state}" if state.isidentifier() else "state-other"
            first, last = track[begin].first, track[place - 1].last
            chart.band(
                first - 0.5, last + 0.5, css, state.replace("_", " "), f"updates {first:.0f} to {last:.0f}"
            )
        begin = place
    return chart


def _figure(
    report: Report, chart: Chart, title: str, caption: str, quantities: Sequence[_Quantity]
) -> Figure:
    """The figure of a chart that is drawn, with tooltips, table and values."""
    on_axis, rows = stretches(report.run, MOST_POINTS), stretches(report.run, MOST_ROWS)
    if len(on_axis) <= HINTED_UPDATES:
        chart.hints([(stretch.place, _hint(stretch, quantities)) for stretch in on_axis])
    if len(on_axis) < len(report.run.updates):
        caption += (
            f" Each point is the mean of up to {len(on_axis[0].rows)} updates; updates.csv has every one."
        )
    note = "updates.csv has more of every update."
    if len(rows) < len(report.run.updates):
        note = f"Each row is the mean of up to {len(rows[0].rows)} updates; updates.csv has every one."
    return Figure(
        chart.key,
        title,
        chart.svg(),
        caption,
        ("updates", "state", *(f"{quantity.name}, {quantity.unit}" for quantity in quantities)),
        [
            (stretch.name, (stretch.state or units.UNKNOWN).replace("_", " "), *_cells(stretch, quantities))
            for stretch in rows
        ],
        note,
        [
            Values(q.name, q.unit, [stretch.mean(q.read) for stretch in on_axis], q.unknown)
            for q in quantities
        ],
    )


def _cells(stretch: Stretch, quantities: Sequence[_Quantity]) -> list[str]:
    values = [(quantity, stretch.mean(quantity.read)) for quantity in quantities]
    return [q.unknown if value is None else units.significant(value, 4) for q, value in values]


def _hint(stretch: Stretch, quantities: Sequence[_Quantity]) -> str:
    cells = zip(quantities, _cells(stretch, quantities), strict=True)
    words = ", ".join(f"{quantity.name} {cell} {quantity.unit}" for quantity, cell in cells)
    return f"update {stretch.name}, {stretch.state or 'no state'}: {words}"


def clocks(report: Report) -> Figure | None:
    """Requested and achieved clocks over the updates, states behind them."""
    on_axis = stretches(report.run, MOST_POINTS)
    mixed = any(row.governor is None for row in report.run.updates)
    held = "governor or mixed" if mixed else "governor"
    quantities = [
        _Quantity("generation, requested", "MHz", lambda row: row.generation_mhz, held),
        _Quantity("generation, achieved", "MHz", lambda row: row.generation_achieved_mhz),
        _Quantity("training, requested", "MHz", lambda row: row.training_mhz, held),
        _Quantity("training, achieved", "MHz", lambda row: row.training_achieved_mhz),
    ]
    points = [_points(on_axis, quantity.read) for quantity in quantities]
    values = [value for series in points for _, value in series if value is not None]
    if len(on_axis) < 2 or not values:
        return None
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 30.0)
    chart = _chart("clocks", on_axis, "clocks over updates", "SM clock, MHz", (low - room, high + room))
    for css, name, series in (("generation", "generation", points[0]), ("training", "training", points[2])):
        chart.line(series, css, f"{name}, requested", step=True)
    for css, name, series in (("generation", "generation", points[1]), ("training", "training", points[3])):
        chart.dots(series, css, f"{name}, achieved")
    return _figure(
        report,
        chart,
        "Clocks and controller states",
        "Lines are the clocks asked for, dots the clocks achieved while busy. Where there is no line, the governor "
        "held the clock. An achieved clock below the requested one is usually the power cap.",
        quantities,
    )


def _points(on_axis: Sequence[Stretch], read: Read) -> list[Point]:
    return [(stretch.place, stretch.mean(read)) for stretch in on_axis]


def energy(report: Report) -> Figure | None:
    """Energy per valid training token, measured and as the governor would have had it."""
    predictions, visits = report.estimate.predictions, _visits(report.run)

    def measured(row: UpdateRow) -> float | None:
        own_j = None if row.energy_j is None else row.energy_j - visits[row.index][1]
        return own_j / row.valid_tokens if own_j is not None and row.valid_tokens else None

    def predicted(row: UpdateRow) -> float | None:
        found = predictions.get(row.index)
        return (found[1] - visits[row.index][1]) / row.valid_tokens if found and row.valid_tokens else None

    return _compared(
        report, "energy", measured, predicted, "Energy per valid training token", "J per valid token"
    )


def throughput(report: Report) -> Figure | None:
    """Valid training tokens per second, measured and as the governor would have had it."""
    predictions, visits = report.estimate.predictions, _visits(report.run)

    def measured(row: UpdateRow) -> float | None:
        own_s = (row.elapsed_s or 0.0) - visits[row.index][0]
        return row.valid_tokens / own_s if row.valid_tokens and own_s > 0 else None

    def predicted(row: UpdateRow) -> float | None:
        found = predictions.get(row.index)
        own_s = found[0] - visits[row.index][0] if found else 0.0
        return row.valid_tokens / own_s if row.valid_tokens and own_s > 0 else None

    return _compared(report, "throughput", measured, predicted, "Throughput", "valid tokens per s")


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
    report: Report, key: str, measured: Read, predicted: Read, title: str, y_title: str
) -> Figure | None:
    on_axis = stretches(report.run, MOST_POINTS)
    seen, reference = _points(on_axis, measured), _points(on_axis, predicted)
    values = [value for _, value in seen if value is not None]
    if len(values) < 2:
        return None
    known = [value for _, value in reference if value is not None]
    chart = _chart(key, on_axis, title, y_title, usual_range(values + known))
    chart.line(reference, "governor", "governor, predicted for the same work")
    governor = [all(row.governor is True for row in stretch.rows) for stretch in on_axis]
    chart.dots(
        [point for point, alone in zip(seen, governor, strict=True) if alone],
        "governor",
        "measured under the governor",
    )
    chart.dots(
        [point for point, alone in zip(seen, governor, strict=True) if not alone],
        "lowered",
        "measured, clocks lowered",
    )
    caption = "Each dot is an update without its validation and checkpoint. "
    caption += (
        "The line is what the governor would have had with the same work. "
        if known
        else "There is no governor prediction. "
    )
    if chart.outside:
        caption += f"Values beyond the axis are drawn on its edge ({chart.outside} here)."
    return _figure(
        report,
        chart,
        f"{title} over the updates",
        caption.strip(),
        [
            _Quantity("measured", y_title, measured),
            _Quantity("governor, predicted", y_title, predicted),
        ],
    )
