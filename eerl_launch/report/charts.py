"""Line charts and variable-width bars as SVG text: axes, ticks, series, bands. Colours are the page's CSS classes.

Drawn here and not with a plotting library because every job ends with a report: this adds no import time,
writes no cache to the user's home, and the figures follow the page into dark mode and print. A chart with a ``key``
can be zoomed: the page's script only moves and stretches what was drawn here, by the numbers in ``data-area``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eerl_launch.report.scales import tick_text as tick_text
from eerl_launch.report.scales import ticks as ticks
from eerl_launch.report.scales import usual_range as usual_range
from eerl_launch.report.shown import escaped

#: Rough width of a digit or letter at the page's 11 px figure font.
LETTER_PX = 6.2

Point = tuple[float, float | None]


@dataclass(slots=True)
class Chart:
    """One drawing area with its scales; series are added, then :meth:`svg` gives the text.

    ``unit`` is the width on the x axis that one value stands for. ``key`` names the chart's values in the page's
    data; without it the chart is a picture.
    """

    label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_title: str
    y_title: str
    width: float = 960.0
    height: float = 250.0
    left: float = 62.0
    right: float = 24.0
    top: float = 30.0
    bottom: float = 40.0
    key: str = ""
    unit: float = 1.0
    below: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    outside: int = 0

    def x(self, value: float) -> float:
        """Pixels from the left for a value on the x axis."""
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Pixels from the top for a value on the y axis, held inside the drawing area."""
        low, high = self.y_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.height - self.bottom - min(max(share, 0.0), 1.0) * (self.height - self.top - self.bottom)

    def _inside(self, value: float) -> bool:
        return self.y_range[0] <= value <= self.y_range[1]

    def band(self, begin: float, end: float, css: str, name: str, count: str) -> None:
        """A shaded stretch of the x axis with a strip at the top that carries its name if it fits."""
        left, right = self.x(begin), self.x(end)
        title = f"<title>{escaped(name)}: {escaped(count)}</title>"
        self.below.append(
            f'<rect class="band {css}" x="{left:.1f}" y="{self.top:.1f}" width="{right - left:.1f}" '
            f'height="{self.height - self.top - self.bottom:.1f}">{title}</rect>'
            f'<rect class="strip {css}" x="{left:.1f}" y="{self.top - 14:.1f}" width="{right - left:.1f}" '
            f'height="13">{title}</rect>'
        )
        shown = next((text for text in (name, f"{name[:4]}.") if right - left > LETTER_PX * len(text)), "")
        self.names.append(
            f'<text class="strip-name" x="{(left + right) / 2:.1f}" y="{self.top - 4:.1f}" text-anchor="middle" '
            f'data-span="{begin:.10g} {end:.10g}" data-name="{escaped(name)}">{escaped(shown)}</text>'
        )

    def line(self, points: Sequence[Point], css: str, name: str = "", *, step: bool = False) -> None:
        """A line through the points, broken where the value is None; ``step`` holds each value for its unit."""
        path: list[str] = []
        pen_down = False
        for place, value in points:
            if value is None:
                pen_down = False
                continue
            height = self.y(value)
            if step:
                verb = "L" if pen_down else "M"
                half = self.unit / 2
                path.append(f"{verb}{self.x(place - half):.1f} {height:.1f}H{self.x(place + half):.1f}")
            else:
                path.append(f"{'L' if pen_down else 'M'}{self.x(place):.1f} {height:.1f}")
            pen_down = True
        if path:
            self.parts.append(f'<path class="line {css}" d="{"".join(path)}"/>')
            if name:
                self.legend.append(("line", css, name))

    def dots(self, points: Sequence[Point], css: str, name: str = "") -> None:
        """A dot per point; values outside the axis sit on its edge and are counted in ``outside``."""
        path = []
        for place, value in points:
            if value is not None:
                self.outside += not self._inside(value)
                path.append(f"M{self.x(place):.1f} {self.y(value):.1f}h0")
        if path:
            small = " small" if len(path) > 300 else ""
            self.parts.append(f'<path class="dots {css}{small}" d="{"".join(path)}"/>')
            if name:
                self.legend.append(("dots", css, name))

    def bar(self, begin: float, end: float, value: float, css: str, texts: Sequence[str], title: str) -> None:
        """A bar from ``begin`` to ``end`` on the x axis, its texts above it while they fit, one over the other."""
        left, right, height = self.x(begin), self.x(end), self.y(value)
        self.parts.append(
            f'<rect class="bar {css}" x="{left:.1f}" y="{height:.1f}" width="{max(right - left - 1, 0.8):.1f}" '
            f'height="{self.height - self.bottom - height:.1f}"><title>{escaped(title)}</title></rect>'
        )
        fitting = [text for text in texts if right - left > LETTER_PX * len(text) + 2]
        for place, text in enumerate(reversed(fitting)):
            self.parts.append(
                f'<text class="bar-text" x="{(left + right) / 2:.1f}" y="{height - 5 - 13 * place:.1f}" '
                f'text-anchor="middle">{escaped(text)}</text>'
            )

    def hints(self, texts: Sequence[tuple[float, str]]) -> None:
        """A tooltip over each unit of the x axis."""
        for place, text in texts:
            left, right = self.x(place - self.unit / 2), self.x(place + self.unit / 2)
            self.parts.append(
                f'<rect class="hint" x="{left:.1f}" y="{self.top:.1f}" width="{right - left:.1f}" '
                f'height="{self.height - self.top - self.bottom:.1f}"><title>{escaped(text)}</title></rect>'
            )

    def _axes(self) -> list[str]:
        """Grid and ticks, which a zoom replaces."""
        found = []
        bottom, right = self.height - self.bottom, self.width - self.right
        every = ticks(*self.y_range, 5)
        for value in every:
            height, words = self.y(value), tick_text(value, every)
            found.append(
                f'<path class="grid" d="M{self.left:.1f} {height:.1f}H{right:.1f}"/>'
                f'<text x="{self.left - 7:.1f}" y="{height + 4:.1f}" text-anchor="end">{words}</text>'
            )
        return [*found, *self.x_ticks(bottom)]

    def x_ticks(self, bottom: float) -> list[str]:
        """Ticks of the x axis and their numbers, at ``bottom`` pixels from the top."""
        found = []
        every = ticks(*self.x_range, 10)
        for value in every:
            place, words = self.x(value), tick_text(value, every)
            found.append(
                f'<path class="axis" d="M{place:.1f} {bottom:.1f}v4"/>'
                f'<text x="{place:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{words}</text>'
            )
        return found

    def titles(self) -> list[str]:
        """What the axes are of, and the line of the x axis."""
        bottom, right = self.height - self.bottom, self.width - self.right
        middle = (self.top + bottom) / 2
        return [
            f'<path class="axis" d="M{self.left:.1f} {bottom:.1f}H{right:.1f}"/>'
            f'<text class="title" x="{(self.left + right) / 2:.1f}" y="{self.height - 6:.1f}" '
            f'text-anchor="middle">{escaped(self.x_title)}</text>'
            f'<text class="title" transform="translate(13 {middle:.1f}) rotate(-90)" '
            f'text-anchor="middle">{escaped(self.y_title)}</text>'
        ]

    def _legend(self) -> list[str]:
        found, place = [], self.left
        for kind, css, name in self.legend:
            mark = f"M{place + 9:.1f} 7h0" if kind == "dots" else f"M{place:.1f} 7h18"
            found.append(
                f'<path class="{kind} {css}" d="{mark}"/><text x="{place + 24:.1f}" y="11">{escaped(name)}</text>'
            )
            place += 24 + LETTER_PX * len(name) + 18
        return found

    def svg(self) -> str:
        """The chart as an ``<svg>`` element for the page."""
        pieces = [
            self.clipped("bands", self.below),
            f'<g class="names">{"".join(self.names)}</g>',
            f'<g class="axes">{"".join(self._axes())}</g>',
            self.clipped("marks", self.parts),
            *self.titles(),
            *self._legend(),
        ]
        return f"{self.opening()}{''.join(pieces)}</svg>"

    def opening(self) -> str:
        """The tag that begins the chart, with what a script needs to place a value on it."""
        data = ""
        if self.key:
            edges = (self.left, self.width - self.right, self.top, self.height - self.bottom)
            area = " ".join(f"{value:.10g}" for value in (*edges, *self.x_range, *self.y_range))
            data = f' data-chart="{self.key}" data-area="{area}"'
        return (
            f'<svg class="chart" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escaped(self.label)}"{data}>'
        )

    def clipped(self, css: str, pieces: Sequence[str]) -> str:
        """A group that is cut off at the left and right end of the x axis, so that it can be stretched."""
        width = self.width - self.left - self.right
        return (
            f'<svg class="plot" x="{self.left:g}" width="{width:g}" height="{self.height:g}" '
            f'viewBox="{self.left:g} 0 {width:g} {self.height:g}"><g class="{css}">{"".join(pieces)}</g></svg>'
        )
