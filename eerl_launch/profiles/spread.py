"""How a quantity spreads over updates, GPUs or responses. Unknown is NaN in arrays and None in what is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

#: A positive number that is left of a division by nothing would be infinite; it is unknown.
UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median, and the middle 80 % (``p10`` to ``p90``) of ``count`` known values, in the values' own unit."""

    count: int
    mean: float
    p10: float
    median: float
    p90: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "count": self.count,
            "mean": self.mean,
            "p10": self.p10,
            "median": self.median,
            "p90": self.p90,
        }


def spread(values: Values) -> Spread | None:
    """The spread of what is known (not NaN); None when nothing is."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, middle, high = (float(value) for value in np.quantile(known, (0.1, 0.5, 0.9)))
    return Spread(len(known), float(known.mean()), low, middle, high)


def quotient(above: Values, below: Values) -> Values:
    """Element by element; NaN where either is unknown or ``below`` is not positive."""
    result = np.full(np.broadcast(above, below).shape, UNKNOWN)
    np.divide(above, below, out=result, where=below > 0)
    return result


def ratio_of_sums(above: Values, below: Values) -> float | None:
    """Σ above / Σ below over the places where both are known; None without any."""
    known = np.isfinite(above) & np.isfinite(below)
    total = float(below[known].sum())
    return float(above[known].sum()) / total if total > 0 else None


def as_array(values: list[float | None]) -> Values:
    """The values with NaN for what is not known."""
    return np.array([UNKNOWN if value is None else value for value in values], dtype=np.float64)
