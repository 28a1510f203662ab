"""How the log of a phase's time or power may answer its clock: a curve of slopes between fixed points.

The argument is x = log(governor's clock / clock), so that a slope is an elasticity: 0 is work that the clock does
not touch, 1 is work that follows it. Slopes of neighbouring pieces are alike (a Gaussian process of the slope with
an exponential kernel), so what is learnt at one clock says something about the next, and less about one further off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Ends of the pieces in x; a third of the governor's clock and less is never asked for.
EDGES = np.array([0.0, 0.06, 0.13, 0.21, 0.30, 0.40, 0.51, 0.65, 0.80, 1.0])
#: Deepest x of any setting.
DEEPEST = float(EDGES[-1])
PIECES = len(EDGES) - 1
_STARTS = EDGES[:-1]
_WIDTHS = np.diff(EDGES)
#: Distance in x over which slopes lose their likeness: a knee of a roofline may lie anywhere.
LIKENESS = 0.3


@dataclass(frozen=True, slots=True)
class SlopePrior:
    """What is believed of an elasticity before any data."""

    mean: float
    sd: float

    def covariance(self) -> Array:
        """Prior covariance of the pieces' slopes."""
        middles = (EDGES[1:] + EDGES[:-1]) / 2.0
        alike = np.exp(-np.abs(middles[:, None] - middles[None, :]) / LIKENESS)
        return np.asarray(self.sd**2 * alike)


def basis(x: float | Array) -> Array:
    """How much of each piece lies between the governor's clock and x; the last axis is the piece."""
    depth = np.asarray(x, dtype=np.float64)[..., None]
    return np.asarray(np.minimum(np.maximum(depth - _STARTS, 0.0), _WIDTHS))
