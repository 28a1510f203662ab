"""Numbers as text and figures as SVG."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eerl_launch.report import units
from eerl_launch.report.charts import Chart, tick_text, ticks, usual_range

finite = st.floats(-1e9, 1e9, allow_nan=False)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.energy_kwh(3.6e6), "1.00 kWh"),
        (units.energy_kwh(3.6e9 * 2.5), "2.50 MWh"),
        (units.energy_kwh(36_000), "10.0 Wh"),
        (units.energy_kwh(None), "–"),
        (units.energy_kwh(0.0), "0 Wh"),
        (units.energy_j(120_000), "120 kJ"),
        (units.power(999.6), "1,000 W"),
        (units.power(27_700), "27.7 kW"),
        (units.duration(59.94), "59.9 s"),
        (units.duration(3599.7), "1 h 00 min"),
        (units.duration(250), "4 min 10 s"),
        (units.significant(0.000123456), "0.000123"),
        (units.significant(0.98765), "0.988"),
        (units.significant(1234.5), "1,234"),
        (units.significant(-0.5), "−0.500"),
        (units.signed_percent(-0.04), "0.0 %"),
        (units.signed_percent(7.25), "+7.2 %"),
        (units.signed_percent(-1.37), "−1.4 %"),
        (units.percent(0.384), "38 %"),
        (units.clock(None), "governor"),
        (units.count(1, "update"), "1 update"),
        (units.count(2, "switch", "switches"), "2 switches"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    """Units, separators, signs and unknowns are as people write them."""
    assert shown == expected


@given(low=finite, span=st.floats(1e-6, 1e9))
def test_ticks_are_round_few_and_inside(low: float, span: float) -> None:
    """Ticks lie inside the axis, ascend, and are never more than a screen can take."""
    found = ticks(low, low + span)

    assert len(found) <= 12
    assert found == sorted(found)
    slack = 1e-6 * max(abs(low), span)
    assert all(low - slack <= value <= low + span + slack for value in found)


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 60, ["0", "20", "40", "60"]),
        (1200, 2000, ["1,200", "1,400", "1,600", "1,800", "2,000"]),
        (0.11, 0.15, ["0.11", "0.12", "0.13", "0.14", "0.15"]),
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 12, ["0.0", "2.5", "5.0", "7.5", "10.0"]),
    ],
)
def test_tick_texts_tell_neighbours_apart(low: float, high: float, texts: list[str]) -> None:
    """Tick labels carry as many decimals as the step needs."""
    every = ticks(low, high)

    assert [tick_text(value, every) for value in every] == texts


def test_an_outlier_does_not_flatten_the_rest() -> None:
    """The axis holds the usual values; a warm-up update thirty times as long is beyond it."""
    low, high = usual_range([10.0, 10.5, 11.0, 10.2, 10.8, 300.0])

    assert low < 10
    assert 11 < high < 20


@given(values=st.lists(finite, min_size=1, max_size=40))
def test_range_is_finite_and_not_empty(values: list[float]) -> None:
    """Any values give an axis that can be drawn."""
    low, high = usual_range(values)

    assert math.isfinite(low)
    assert low < high


@given(values=st.lists(st.none() | finite, min_size=1, max_size=30))
def test_every_point_is_drawn_inside_the_chart(values: list[float | None]) -> None:
    """No coordinate leaves the drawing area, whatever the values; what is beyond the axis is counted."""
    chart = Chart(
        "test", (-0.5, len(values) - 0.5), usual_range([v for v in values if v is not None]), "x", "y"
    )
    points = [(float(place), value) for place, value in enumerate(values)]

    chart.dots(points, "lowered", "dots")
    chart.line(points, "governor", "line")

    text = chart.svg()
    assert "nan" not in text and "inf" not in text
    for place, value in points:
        if value is not None:
            assert chart.left <= chart.x(place) <= chart.width - chart.right
            assert chart.top - 0.1 <= chart.y(value) <= chart.height - chart.bottom + 0.1


def test_line_is_broken_where_nothing_is_known() -> None:
    """A gap in the data is a gap in the line."""
    chart = Chart("test", (0, 4), (0, 1), "x", "y")

    chart.line([(0, 0.5), (1, 0.5), (2, None), (3, 0.5), (4, 0.5)], "governor")

    assert chart.parts[0].count("M") == 2
