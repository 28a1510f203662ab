"""The structure of response lengths: how long responses are, how far the longest stand out, what waiting that means.

Markers give the tokens generated, the number of responses and the longest one, so the mean and the longest are
known; a distribution only where the trainer sends its ``response_length_tokens`` metric. In the asynchronous modes
the tokens generated in an update and the responses consumed in it are of different batches, so that nothing is said
of single updates there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eerl_launch.profiles.details import LENGTHS_METRIC, QUANTILES
from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.spread import Spread, Values, as_array, quotient, spread
from eerl_launch.report.totals import ASYNCHRONOUS

NO_DISTRIBUTION = (
    f"the trainer does not tell the lengths of single responses: send them with `mark.response_lengths(…)`, "
    f"or a metric {LENGTHS_METRIC}"
)
NO_RESPONSES = "the trainer does not tell how many responses an update has (`responses` of the update marker)"
NO_TOKENS = "the trainer does not tell generated tokens"
NO_LONGEST = "the trainer does not tell the longest response"
OTHER_BATCH = (
    "asynchronous: tokens generated in an update and responses consumed in it are of different batches; valid tokens "
    "per response are of one"
)


def told(run: Gathered, name: str) -> Values:
    """A quantile of the lengths (``mean``: their mean) that the trainer told, by update; NaN where it did not."""
    labels = [row.update for row in run.updates]
    found = [run.details.lengths.get(label) if label is not None else None for label in labels]
    if name == "mean":
        return as_array([None if lengths is None else lengths.mean for lengths in found])
    return as_array([None if lengths is None else lengths.quantiles.get(name) for lengths in found])


def longest(run: Gathered) -> Values:
    """The longest response of each update in tokens."""
    counted, listed = run.values("longest_response_tokens"), told(run, "max")
    return np.where(np.isfinite(counted), counted, listed)


def means(run: Gathered) -> Values:
    """The mean length of each update's responses in tokens; NaN in asynchronous modes unless the trainer told it."""
    listed = told(run, "mean")
    if run.run.mode in ASYNCHRONOUS:
        return listed
    counted = quotient(run.values("generated_tokens"), run.values("responses"))
    return np.where(np.isfinite(listed), listed, counted)


def responses(run: Gathered) -> dict[str, Any]:
    """The profile of lengths; what is unknown is None, with its reason among ``reasons``."""
    mean, longest_tokens = means(run), longest(run)
    generated, counts = run.values("generated_tokens"), run.values("responses")
    p90, listed = told(run, "p90"), told(run, "max")
    # Told lengths are of one batch, which a longest response that was counted apart need not be of.
    of_batch = np.where(np.isfinite(listed) & np.isfinite(told(run, "mean")), listed, longest_tokens)
    distribution = {name: _plain(spread(told(run, name))) for name in QUANTILES}
    known = any(value is not None for value in distribution.values())
    asynchronous = run.run.mode in ASYNCHRONOUS
    return {
        "updates": len(run.updates),
        "responses_per_update": _plain(spread(counts)),
        "mean_tokens": _plain(spread(mean)),
        "valid_tokens_per_response": _plain(spread(quotient(run.values("valid_tokens"), counts))),
        "longest_tokens": _plain(spread(longest_tokens)),
        "longest_over_mean": _plain(spread(quotient(of_batch, mean))),
        "empty_places_fraction": _plain(spread(1.0 - np.minimum(quotient(mean, of_batch), 1.0))),
        "tail_fraction": _plain(spread(1.0 - np.minimum(quotient(p90, of_batch), 1.0))),
        "quantiles_tokens": distribution if known else None,
        "reasons": _reasons(mean, longest_tokens, generated, counts, known, asynchronous),
    }


def _reasons(
    mean: Values, longest_tokens: Values, generated: Values, counts: Values, known: bool, asynchronous: bool
) -> dict[str, str]:
    found = {}
    if not np.isfinite(mean).any():
        if asynchronous:
            found["mean_tokens"] = OTHER_BATCH
        else:
            found["mean_tokens"] = NO_TOKENS if not np.isfinite(generated).any() else NO_RESPONSES
    if not np.isfinite(longest_tokens).any():
        found["longest_tokens"] = NO_LONGEST
    if not np.isfinite(counts).any():
        found["responses_per_update"] = found["valid_tokens_per_response"] = NO_RESPONSES
    if not known:
        found["quantiles_tokens"] = found["tail_fraction"] = NO_DISTRIBUTION
    for name in ("longest_over_mean", "empty_places_fraction"):
        reason = found.get("mean_tokens") or found.get("longest_tokens")
        if reason:
            found[name] = reason
    return found


def _plain(found: Spread | None) -> dict[str, Any] | None:
    return None if found is None else found.to_dict()
