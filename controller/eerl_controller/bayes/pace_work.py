"""How much more work an update was than at the beginning, by all that a side's time may follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.time_states import Work
from eerl_controller.regression import robust_sd

#: From fewer updates than this it is not known which share of what is consumed usually is valid.
LEAST_KNOWN = 3


class WorkDone:
    """Logs of token counts relative to those at the beginning.

    What was consumed in all is seldom told (``consumed``) and then stands in for by the valid tokens of it, as if
    the usual share were masked: that is uncertain by how much that share varies.
    """

    def __init__(self) -> None:
        self._centres: dict[str, float] = {}
        #: Log of consumed by valid tokens: usual value and spread; None while too few are known.
        self._masked: tuple[float, float] | None = None
        self._ratios: list[float] = []

    def begin(self, counts: Mapping[str, float]) -> None:
        """Relate everything to these counts from now on."""
        self._centres = {name: math.log1p(value) for name, value in counts.items()}

    def know(self, counts: Iterable[Mapping[str, float]]) -> None:
        """Learn the usual share of masked tokens from these updates; nothing if too few of them tell."""
        ratios = [found for found in map(_ratio, counts) if found is not None]
        if len(ratios) >= LEAST_KNOWN:
            self._masked = (median(ratios), robust_sd(ratios))

    def notice(self, counts: Mapping[str, float]) -> None:
        """The same from updates that come one by one, once."""
        found = _ratio(counts)
        if self._masked is None and found is not None:
            self._ratios.append(found)
            if len(self._ratios) >= 2 * LEAST_KNOWN:
                self._masked = (median(self._ratios), robust_sd(self._ratios))

    def deviations(self, work: Work, counts: Mapping[str, float]) -> tuple[NDArray[np.float64], float]:
        """Log of how much more of each of ``work``, and how uncertain (a standard deviation) ``consumed`` is."""
        valid, found, unsure = self._deviation("valid", counts), [], 0.0
        for name, _, _ in work:
            if name != "consumed":
                found.append(self._deviation(name, counts))
                continue
            ratio = _ratio(counts)
            usual, spread = self._masked or (0.0, 0.0)
            known = ratio is not None and self._masked is not None
            found.append(valid + (ratio or 0.0) - usual if known else valid)
            unsure = 0.0 if known else spread
        return np.array(found), unsure

    def _deviation(self, name: str, counts: Mapping[str, float]) -> float:
        known = name in counts and name in self._centres
        return math.log1p(counts[name]) - self._centres[name] if known else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "centres": self._centres,
            "masked": list(self._masked) if self._masked else None,
            "ratios": self._ratios,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._centres, self._ratios = dict(values["centres"]), list(values["ratios"])
        masked = values["masked"]
        self._masked = (masked[0], masked[1]) if masked else None


def _ratio(counts: Mapping[str, float]) -> float | None:
    """Log of consumed by valid tokens; None when either is not known."""
    consumed, valid = counts.get("consumed"), counts.get("valid")
    return math.log1p(consumed) - math.log1p(valid) if consumed and valid else None
