"""A figure of the page: drawing, words, the table behind it, and the values a script shows under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Values:
    """One quantity over the updates, as the pointer and the keyboard read it; None reads as ``unknown``."""

    name: str
    unit: str
    values: Sequence[float | None]
    unknown: str


@dataclass(frozen=True, slots=True)
class Cells:
    """Watts of each GPU in each bin of updates, as the pointer and the keyboard read them.

    ``pools`` has a number for each GPU, the same for those that are compared; ``firsts`` and ``lasts`` are the places
    of the bins on the axis. ``packed`` is base64 of little-endian 16-bit steps of ``step_w`` above ``low_w``, GPU by
    GPU, 65535 where nothing is known.
    """

    names: Sequence[str]
    pools: Sequence[int]
    firsts: Sequence[float]
    lasts: Sequence[float]
    low_w: float
    step_w: float
    packed: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its heading, what to know when looking at it, and its table.

    ``key`` names it within the page. ``values`` has one for each stretch of updates on the x axis; a figure without
    them, or without ``cells``, is not over updates.
    """

    key: str
    title: str
    svg: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    rows_note: str = ""
    values: Sequence[Values] = ()
    cells: Cells | None = None
