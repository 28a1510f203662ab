"""Pictures that stand alone as SVG files: changes by setting (the paper's figure 2) and prediction errors (figure 3).

Horizontal bars from zero with their intervals; numbers stand beside the bars, so that nothing is told by colour
alone. Ticks are those of the report's charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from eerl_launch.report import units
from eerl_launch.report.charts import LETTER_PX, tick_text, ticks

_STYLE = (
    "text{font:12px sans-serif;fill:#222}.head{font-weight:bold;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    ".small{fill:#555;font-size:11px}"
    ".grid{stroke:#ddd}.zero{stroke:#222}.whisker{stroke:#222;stroke-width:1.5}"
    ".throughput{fill:#0072b2}.power{fill:#e69f00}.energy{fill:#009e73}"
)
_ROW_PX, _BAR_PX, _GROUP_PX, _TOP_PX, _COLUMN_PX, _GAP_PX = 24.0, 13.0, 26.0, 34.0, 230.0, 26.0
#: Room for a bar's number.
_NUMBER_PX = 52.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A value in percent with its interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the picture; ``css`` is the colour class of its bars, ``signed`` whether they are changes."""

    title: str
    css: str
    signed: bool = True

    def words(self, value: float | None, digits: int | None = None) -> str:
        """A number of this column; ``digits`` other than those beside a bar."""
        if self.signed:
            return units.signed(value, 1 if digits is None else digits)
        return units.plain(value, 2 if digits is None else digits)

    def whole_words(self, bar: Bar) -> str:
        """A bar's number with its interval, where there is one, closer than the picture can show it."""
        value, low, high = (self.words(number, 2) for number in (bar.value, bar.low, bar.high))
        return value if bar.low is None or bar.high is None else f"{value} ({low} to {high})"


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its name, and a bar for each column (None: not known)."""

    name: str
    bars: tuple[Bar | None, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn, and what the table behind it holds; ``groups`` are headings with their rows."""

    title: str
    columns: Sequence[Column]
    groups: Sequence[tuple[str, Sequence[Row]]]
    note: str
    #: What stood in for the GPUs, None for real ones.
    simulated: str | None = None


def draw(picture: Picture) -> str:
    """The picture as an SVG document."""
    columns, groups, note = picture.columns, picture.groups, picture.note
    title = picture.title + (" (SIMULATED GPUs)" if picture.simulated else "")
    names = [row.name for _, rows in groups for row in rows]
    left = 16.0 + LETTER_PX * 1.15 * max((len(name) for name in names), default=4)
    width = left + len(columns) * (_COLUMN_PX + _GAP_PX)
    height = (
        _TOP_PX + sum(_GROUP_PX + _ROW_PX * len(rows) for _, rows in groups) + 46.0 + (18.0 if note else 0)
    )
    values = [
        value
        for _, rows in groups
        for row in rows
        for bar in row.bars
        if bar is not None
        for value in (bar.value, bar.low, bar.high)
        if value is not None
    ]
    low, high = min(0.0, *values, -1e-9), max(0.0, *values, 1e-9)
    parts = [f'<text class="head" x="8" y="16">{escape(title)}</text>']
    bottom = height - 34.0 - (18.0 if note else 0)
    for place, column in enumerate(columns):
        begin = left + place * (_COLUMN_PX + _GAP_PX)
        scale = _Scale(low, high, begin + _NUMBER_PX, begin + _COLUMN_PX - _NUMBER_PX)
        parts += _axis(scale, column, bottom)
        parts += _bars(scale, column, place, groups)
    at = _TOP_PX
    for head, rows in groups:
        parts.append(f'<text class="head" x="8" y="{at + 17:.1f}">{escape(head)}</text>')
        at += _GROUP_PX
        for row in rows:
            parts.append(f'<text x="16" y="{at + 13:.1f}">{escape(row.name)}</text>')
            at += _ROW_PX
    if note:
        parts.append(f'<text class="small" x="8" y="{height - 8:.1f}">{escape(note)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    left: float
    right: float

    def x(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left)


def _axis(scale: _Scale, column: Column, bottom: float) -> list[str]:
    middle = (scale.left + scale.right) / 2
    every = ticks(scale.low, scale.high, 3)
    found = [
        f'<text class="small" x="{middle:.1f}" y="30" text-anchor="middle">{escape(column.title)}</text>'
    ]
    for value in every:
        x = scale.x(value)
        css = "zero" if abs(value) < 1e-9 else "grid"
        found.append(
            f'<path class="{css}" d="M{x:.1f} {_TOP_PX:.1f}V{bottom:.1f}"/><text class="small" x="{x:.1f}" '
            f'y="{bottom + 14:.1f}" text-anchor="middle">{tick_text(value, every)}</text>'
        )
    found.append(f'<text class="small" x="{middle:.1f}" y="{bottom + 29:.1f}" text-anchor="middle">%</text>')
    return found


def _bars(
    scale: _Scale, column: Column, place: int, groups: Sequence[tuple[str, Sequence[Row]]]
) -> list[str]:
    found = []
    at = _TOP_PX
    for _, rows in groups:
        at += _GROUP_PX
        for row in rows:
            bar = row.bars[place]
            if bar is not None:
                found.append(_bar(scale, column, bar, at + (_ROW_PX - _BAR_PX) / 2 - 2, row.name))
            at += _ROW_PX
    return found


def _bar(scale: _Scale, column: Column, bar: Bar, top: float, name: str) -> str:
    zero, end = scale.x(0.0), scale.x(bar.value)
    middle = top + _BAR_PX / 2
    limits = [end] if bar.low is None or bar.high is None else [end, scale.x(bar.low), scale.x(bar.high)]
    negative = bar.value < 0
    edge = min(*limits, zero) - 5 if negative else max(*limits, zero) + 5
    words = column.words(bar.value)
    whisker = ""
    if len(limits) > 1:
        whisker = f'<path class="whisker" d="M{limits[1]:.1f} {middle:.1f}H{limits[2]:.1f}"/>'
    return (
        f'<rect class="{column.css}" x="{min(zero, end):.1f}" y="{top:.1f}" width="{abs(end - zero):.1f}" '
        f'height="{_BAR_PX}"><title>{escape(name)}: {escape(column.whole_words(bar))} %</title></rect>{whisker}'
        f'<text class="small" x="{edge:.1f}" y="{middle + 4:.1f}" '
        f'text-anchor="{"end" if negative else "start"}">{words}</text>'
    )


#: Figure 2's columns.
CHANGES = (
    Column("valid tokens / s", "throughput"),
    Column("mean GPU power", "power"),
    Column("energy / valid token", "energy"),
)


#: Figure 3's columns.
ERRORS = (
    Column("throughput error", "throughput", signed=False),
    Column("energy error", "energy", signed=False),
)


def prediction_errors(configuration: str, found: Mapping[str, float], simulated: str | None) -> Picture:
    """Figure 3 for one configuration, from the fields of the predictor's errors."""
    rows = [
        Row(
            words,
            tuple(Bar(found[f"{quantity}_{key}_percent"]) for quantity in ("throughput", "energy")),
        )
        for words, key in (("constant", "constant"), ("token work", "token_work"))
    ]
    return Picture(
        "Median absolute error in foretelling the governor",
        ERRORS,
        [(configuration, rows)],
        f"{found['blocks']:.0f} blocks of three later updates, "
        f"{found['runs']:.0f} governor run{'' if found['runs'] == 1 else 's'}; lower is better.",
        simulated,
    )
