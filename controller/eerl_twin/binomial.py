"""How often something may happen, given how often it did: the exact (Clopper-Pearson) upper bound."""

from __future__ import annotations

import math

#: Halvings of the unit interval: more than a float can tell apart.
_BISECTIONS = 60


def upper_bound(events: int, runs: int, confidence: float = 0.95) -> float:
    """The largest probability under which at most ``events`` of ``runs`` still has a chance of 1 - confidence.

    One-sided. Raises ValueError when the counts are impossible.
    """
    if not 0 <= events <= runs or runs < 1:
        raise ValueError(f"events must be 0 to runs and runs at least 1, not {events} of {runs}")
    if events == runs:
        return 1.0
    low, high = events / runs, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _at_most(events, runs, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, runs: int, probability: float) -> float:
    """The binomial probability of at most so many events; ``probability`` inside (0, 1)."""
    if probability <= 0.0:
        return 1.0
    if probability >= 1.0:
        return 0.0
    log_yes, log_no = math.log(probability), math.log1p(-probability)
    terms = (
        math.lgamma(runs + 1)
        - math.lgamma(k + 1)
        - math.lgamma(runs - k + 1)
        + k * log_yes
        + (runs - k) * log_no
        for k in range(events + 1)
    )
    return math.fsum(math.exp(term) for term in terms)
