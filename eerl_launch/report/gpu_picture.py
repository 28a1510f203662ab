"""The picture of a map of GPUs: a row for each GPU, a column for some updates, names, ticks and a colour scale."""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from eerl_launch.report import units
from eerl_launch.report.charts import Chart
from eerl_launch.report.palettes import SHADES, UNKNOWN_SHADE, Palette
from eerl_launch.report.png import palette_png
from eerl_launch.report.shown import escaped

#: Height of a GPU's row, and of all rows together, in the chart's pixels.
ROW_PX, ROWS_PX = 13.0, 400.0
#: Pixels of the picture along the updates.
MOST_COLUMNS = 1000
#: Letters of a node's name beside its rows, and pixels between two names.
NAME_LETTERS, NAME_PX = 8, 11.0

Grid = list[list[float | None]]


@dataclass(frozen=True, slots=True)
class GpuGrid:
    """Values of each GPU (rows, as in the document) in each bin of updates (columns)."""

    gpus: list[dict[str, Any]]
    pools: list[int]
    power_w: Grid
    difference: Grid
    firsts: list[float]
    lasts: list[float]


def draw(
    found: GpuGrid,
    name: tuple[str, str],
    values: Grid,
    palette: Palette,
    ends: tuple[float, float],
    words: tuple[str, str],
) -> str:
    """The map as an ``<svg>``; ``name`` is its key and label, ``ends`` are the values at both ends of the palette."""
    rows_px = min(ROW_PX * len(found.gpus), ROWS_PX)
    chart = Chart(
        name[1],
        (found.firsts[0] - 0.5, found.lasts[-1] + 0.5),
        (0.0, 1.0),
        "update",
        "",
        top=24.0,
        height=rows_px + 64.0,
        key=name[0],
    )
    width = chart.width - chart.left - chart.right
    png = palette_png(_pixels(found, values, ends), palette)
    smooth = "" if len(found.gpus) <= ROWS_PX else " fine"
    picture = _image(png, f"map{smooth}", chart.left, chart.top, width, rows_px)
    pieces = [
        chart.clipped("bands", [picture]),
        "".join(_node_names(found, chart, rows_px)),
        f'<g class="axes">{"".join(chart.x_ticks(chart.height - chart.bottom))}</g>',
        *chart.titles(),
        f'<text x="{chart.left:g}" y="12">{escaped(name[1])}</text>',
        *_scale(palette, words, chart.width - chart.right),
    ]
    return f"{chart.opening()}{''.join(pieces)}</svg>"


def _pixels(found: GpuGrid, values: Grid, ends: tuple[float, float]) -> list[bytes]:
    """Rows of palette indices; a column of the picture shows the updates at its middle."""
    first, last = found.firsts[0] - 0.5, found.lasts[-1] + 0.5
    columns = min(round(last - first), MOST_COLUMNS)
    bins: list[int | None] = []
    for column in range(columns):
        place = first + (column + 0.5) / columns * (last - first)
        at = bisect_left(found.lasts, place - 0.5)
        bins.append(at if found.firsts[at] <= place + 0.5 else None)
    low, span = ends[0], ends[1] - ends[0]
    found_rows = []
    for row in values:
        shades = bytes(
            UNKNOWN_SHADE if value is None else round(min(max((value - low) / span, 0.0), 1.0) * (SHADES - 1))
            for value in row
        )
        found_rows.append(bytes(UNKNOWN_SHADE if at is None else shades[at] for at in bins))
    return found_rows


def _image(png: bytes, css: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<image class="{css}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{b64encode(png).decode()}"/>'
    )


def _node_names(found: GpuGrid, chart: Chart, rows_px: float) -> list[str]:
    """Names beside the rows of each node, as many as there is room for."""
    names = [str(gpu["node"] or units.UNKNOWN) for gpu in found.gpus]
    begins = [place for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
    row_px = rows_px / len(names)
    written, free_px = [], 0.0
    for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
        middle = chart.top + (begin + end) / 2 * row_px
        if middle < free_px:
            continue
        name = names[begin]
        shown = name if len(name) <= NAME_LETTERS else f"…{name[1 - NAME_LETTERS :]}"
        written.append(
            f'<text x="{chart.left - 5:g}" y="{middle + 4:.1f}" text-anchor="end">{escaped(shown)}</text>'
        )
        free_px = middle + NAME_PX
    return written


def _scale(palette: Palette, words: tuple[str, str], right: float) -> list[str]:
    png = palette_png([bytes(range(SHADES))], palette)
    width = 130.0
    left = right - width - 62.0
    return [
        f'<text x="{left - 5:g}" y="12" text-anchor="end">{escaped(words[0])}</text>',
        _image(png, "scale", left, 2.0, width, 12.0),
        f'<text x="{left + width + 5:g}" y="12">{escaped(words[1])}</text>',
    ]
