"""Values as a ledger may hold them, read with care, and sums over what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

JOULES_PER_KWH = 3.6e6


def kwh(energy_j: float | None) -> float | None:
    """Joules as kilowatt hours."""
    return None if energy_j is None else energy_j / JOULES_PER_KWH


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, None when either is unknown or the denominator is not positive."""
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def weighted_mean(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The mean of values by weights over the pairs where both are known; None without weight."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight is not None]
    weight_sum = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weight_sum if weight_sum > 0 else None


#: No joules, seconds, tokens or MHz are larger; a value beyond it is damage, and would overflow the sums.
LARGEST = 1e24


def number(value: Any) -> float | None:
    """A number as float; anything else (text, booleans, null, infinities, beyond :data:`LARGEST`) as None."""
    if value is None:  # most of what is asked for, in a long ledger, is one of these two
        return None
    if value.__class__ is float:
        found: float = value
        return found if -LARGEST <= found <= LARGEST else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """An integer, or None."""
    found = number(value)
    return None if found is None else int(found)


def text(value: Any) -> str | None:
    """A non-empty text, or None."""
    return str(value) if value not in (None, "") else None


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}
