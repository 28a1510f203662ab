"""The pictures of the page: phase signatures with one scale for all runs, energy by phase, lengths, who waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.responses import longest, means, told
from eerl_launch.profiles.signatures import UPDATE
from eerl_launch.profiles.spread import Values
from eerl_launch.report import units
from eerl_launch.report.charts import LETTER_PX, Chart, Point, tick_text, ticks, usual_range
from eerl_launch.report.phase_power import COLOURED
from eerl_launch.report.shown import escaped
from eerl_launch.report.totals import ASYNCHRONOUS

#: More GPUs than this are drawn by node.
MOST_GPUS = 64
_ROW_PX, _BAR_PX = 34.0, 20.0


def phase_css(phase: str) -> str:
    """The colour class of a phase; a subphase has its phase's."""
    head = phase.split("/", 1)[0]
    return f"phase-{head}" if head in COLOURED else "phase-other"


def _parts(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that make up an update: the disjoint partition and what is unattributed."""
    return [row for row in run["signature"] if row["exclusive"] and row["phase"] != UPDATE]


def legend(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Names of all phases drawn with their colour class: narrow ones have no room for it."""
    return [
        (name, phase_css(name)) for name in dict.fromkeys(row["phase"] for run in runs for row in _parts(run))
    ]


def signatures(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A picture per run, all with the same scales: width is time, height power, so the area is energy."""
    lanes = [[row for row in _parts(run) if row["mean_power_w_per_gpu"] is not None] for run in runs]
    widths = [sum(row["mean_elapsed_s_of_all_updates"] or 0.0 for row in lane) for lane in lanes]
    powers = [row["mean_power_w_per_gpu"] for lane in lanes for row in lane]
    if not powers or not max(widths) > 0:
        return []
    drawn = []
    for run, lane in zip(runs, lanes, strict=True):
        together = run["axes"]["mode"]["value"] in ASYNCHRONOUS
        chart = Chart(
            f"phase signature of {run['run']}",
            (0.0, max(widths) * 1.02),
            (0.0, max(powers) * 1.32),
            "seconds of a mean update" + (", pools one after the other" if together else ""),
            "W per GPU",
            height=200.0,
        )
        name = f"{run['run']}, {units.count(run['updates'], 'update')}"
        chart.below.append(f'<text class="lane" x="{chart.left:g}" y="14">{escaped(name)}</text>')
        begin_s = 0.0
        for row in lane:
            end_s = begin_s + (row["mean_elapsed_s_of_all_updates"] or 0.0)
            watts, name = row["mean_power_w_per_gpu"], row["phase"]
            words = (
                f"{name}: {units.power(watts)} per GPU for {units.duration(end_s - begin_s)} of a mean update"
            )
            wide = chart.x(end_s) - chart.x(begin_s) > LETTER_PX * len(name) + 2
            texts = [name, units.power(watts)] if wide else []
            chart.bar(begin_s, end_s, watts, phase_css(name), texts, words)
            begin_s = end_s
        drawn.append(chart.svg())
    return drawn


def stacks(runs: Sequence[Mapping[str, Any]], key: str, title: str) -> str | None:
    """A horizontal bar per run, made up of its phases' ``key``, which must add up; None when no run has any."""
    lanes = [[(row["phase"], row[key]) for row in _parts(run) if row[key]] for run in runs]
    totals = [sum(value for _, value in lane) for lane in lanes]
    if not any(totals):
        return None
    left = 16.0 + LETTER_PX * 1.1 * max(len(run["run"]) for run in runs)
    width, right = 960.0, 80.0
    scale = (width - left - right) / max(totals)
    height = 34.0 + _ROW_PX * len(runs) + 22.0
    every = ticks(0.0, max(totals), 6)
    bottom = height - 36.0
    parts = [
        f'<path class="grid" d="M{left + value * scale:.1f} 8V{bottom:.1f}"/><text x="{left + value * scale:.1f}" '
        f'y="{bottom + 14:.1f}" text-anchor="middle">{tick_text(value, every)}</text>'
        for value in every
    ]
    parts.append(
        f'<text class="title" x="{(left + width - right) / 2:.1f}" y="{height - 4:.1f}" '
        f'text-anchor="middle">{escaped(title)}</text>'
    )
    for place, (run, lane, total) in enumerate(zip(runs, lanes, totals, strict=True)):
        top = 12.0 + _ROW_PX * place
        middle = top + _BAR_PX / 2 + 4
        parts.append(f'<text x="8" y="{middle:.1f}">{escaped(run["run"])}</text>')
        begin = left
        for phase, value in lane:
            parts.append(_segment(begin, top, value * scale, phase, f"{phase}: {units.significant(value)}"))
            begin += value * scale
        if total:
            parts.append(f'<text x="{begin + 6:.1f}" y="{middle:.1f}">{units.significant(total)}</text>')
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escaped(title)}">{"".join(parts)}</svg>'
    )


def _segment(begin: float, top: float, width: float, phase: str, words: str) -> str:
    shown = phase if width > LETTER_PX * len(phase) + 8 else ""
    text = (
        f'<text class="on-bar" x="{begin + width / 2:.1f}" y="{top + _BAR_PX / 2 + 4:.1f}" '
        f'text-anchor="middle">{escaped(shown)}</text>'
        if shown
        else ""
    )
    return (
        f'<rect class="bar {phase_css(phase)}" x="{begin:.1f}" y="{top:.1f}" width="{max(width - 1, 0.5):.1f}" '
        f'height="{_BAR_PX}"><title>{escaped(words)}</title></rect>{text}'
    )


def lengths(run: Gathered) -> str | None:
    """Longest, mean and told quantiles of the responses over the updates; None without any."""
    series = [
        ("longest", "training", longest(run)),
        ("90 % are shorter", "governor", told(run, "p90")),
        ("mean", "generation", means(run)),
        ("half are shorter", "lowered", told(run, "p50")),
    ]
    points = [(name, css, _points(run, values)) for name, css, values in series]
    points = [
        (name, css, found) for name, css, found in points if any(value is not None for _, value in found)
    ]
    known = [value for _, _, found in points for _, value in found if value is not None]
    if len(run.updates) < 2 or not known:
        return None
    chart = Chart(
        f"response lengths of {run.name}",
        (0.5, len(run.updates) + 0.5),
        (0.0, usual_range(known)[1]),
        "update",
        "tokens",
    )
    for name, css, found in points:
        chart.line(found, css, name)
    return chart.svg()


def _points(run: Gathered, values: Values) -> list[Point]:
    return [
        (float(place + 1), float(value) if value == value else None) for place, value in enumerate(values)
    ]


def waiting(run: Mapping[str, Any]) -> str | None:
    """A bar for each GPU (each node of a large job): how much of generation it spent idle at its end."""
    by_gpu = run["imbalance"]["by_gpu"]
    rows = by_gpu if len(by_gpu) <= MOST_GPUS else run["imbalance"]["by_node"]
    known = [row["waiting_fraction"] for row in rows if row["waiting_fraction"] is not None]
    if not known:
        return None
    what = "GPUs" if rows is by_gpu else "nodes"
    chart = Chart(
        f"idle at the end of generation, {run['run']}",
        (0.5, len(rows) + 0.5),
        (0.0, max(*known, 0.005) * 130),
        f"{what} in the order of the table",
        "% of generation",
        height=190.0,
    )
    for place, row in enumerate(rows, start=1):
        value = row["waiting_fraction"]
        if value is not None:
            name = str(row["node"]) if rows is not by_gpu else f"{row['node']}:{units.plain(row['index'])}"
            shown = units.percent(value, 1)
            chart.bar(
                place - 0.45, place + 0.45, 100 * value, "phase-generation", [name, shown], f"{name}: {shown}"
            )
    return chart.svg()
