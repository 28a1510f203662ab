"""What a benchmark hands back: a number with unit, reference of the same run and target; and how it reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Number:
    """One measured number; ``reference`` is in the same unit and was measured in the same run.

    ``target`` is the most that is allowed: of the measured value, or of its ratio to the reference when
    ``target_of_ratio``. ``unit`` ends the keys in JSON: ``us, ms, s, mb, percent_of_core, percent, ratio``.
    """

    name: str
    unit: str
    measured: float
    reference: float | None = None
    reference_is: str = ""
    target: float | None = None
    target_of_ratio: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured by reference."""
        return self.measured / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        judged = self.ratio if self.target_of_ratio else self.measured
        return None if self.target is None or judged is None else judged <= self.target

    def public(self) -> dict[str, Any]:
        """The number for JSON, with its unit in every key."""
        target_key = "target_ratio" if self.target_of_ratio else f"target_{self.unit}"
        return {
            "name": self.name,
            f"measured_{self.unit}": _finite(self.measured),
            f"reference_{self.unit}": _finite(self.reference),
            "reference_is": self.reference_is,
            "ratio": _finite(self.ratio),
            target_key: self.target,
            "met": self.met,
            "note": self.note,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` do not exceed (nearest rank); NaN when there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def median(values: Sequence[float]) -> float:
    """The middle value (nearest rank)."""
    return quantile(values, 0.5)


_UNITS = {"us": "µs", "mb": "MB", "percent_of_core": "% of a core", "percent": "%", "ratio": ""}


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.3g} {_UNITS.get(unit, unit)}".rstrip() if abs(value) < 1000 else f"{value:,.0f} {unit}"


def table(numbers: Iterable[Number]) -> str:
    """The numbers as aligned text, the reference's meaning and the notes below each part that has them."""
    rows = [("", "measured", "reference", "ratio", "target", "met")]
    for number in numbers:
        limit = "" if number.target is None else f"≤ {number.target:g} × reference"
        if number.target is not None and not number.target_of_ratio:
            limit = f"≤ {_amount(number.target, number.unit)}"
        rows.append(
            (
                number.name,
                _amount(number.measured, number.unit),
                _amount(number.reference, number.unit),
                "" if number.ratio is None else f"{number.ratio:.2f}",
                limit,
                {None: "", True: "yes", False: "NO"}[number.met],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def remarks(numbers: Iterable[Number]) -> list[str]:
    """What the references are and what must be known beside the numbers, each sentence once."""
    references: dict[str, list[str]] = {}
    notes: dict[str, None] = {}
    for number in numbers:
        if number.reference_is:
            references.setdefault(number.reference_is, []).append(number.name)
        if number.note:
            notes[number.note] = None
    return [f"reference of {'; '.join(names)}: {what}" for what, names in references.items()] + list(notes)
