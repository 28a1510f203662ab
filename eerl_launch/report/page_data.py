"""What the page's script needs beside the drawing, as compact JSON: the values of plots and of the map of GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from eerl_launch.report.figure import Cells, Figure
from eerl_launch.report.rows import Run
from eerl_launch.report.stretches import MOST_POINTS, stretches

#: Digits of a value: more than the eye reads off a plot, and a third of the size of a float.
DIGITS = 5


def page_data(run: Run, figures: Sequence[Figure]) -> str | None:
    """The JSON text, safe inside a ``<script>``; None when no figure is over updates."""
    over = [figure for figure in figures if figure.values or figure.cells]
    if not over:
        return None
    on_axis = stretches(run, MOST_POINTS)
    cells = next((figure.cells for figure in over if figure.cells is not None), None)
    content = {
        "firsts": [round(stretch.first) for stretch in on_axis],
        "lasts": [round(stretch.last) for stretch in on_axis],
        "states": [[state, len(list(run))] for state, run in groupby(stretch.state for stretch in on_axis)],
        "series": {
            figure.key: [
                {
                    "name": one.name,
                    "unit": one.unit,
                    "unknown": one.unknown,
                    "values": [_short(value) for value in one.values],
                }
                for one in figure.values
            ]
            for figure in over
        },
        "cells": None if cells is None else _cells(cells),
    }
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _short(value: float | None) -> float | int | None:
    if value is None:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) else short


def _cells(cells: Cells) -> dict[str, Any]:
    return {
        "names": list(cells.names),
        "pools": list(cells.pools),
        "firsts": [round(place) for place in cells.firsts],
        "lasts": [round(place) for place in cells.lasts],
        "low_w": cells.low_w,
        "step_w": cells.step_w,
        "packed": cells.packed,
    }
