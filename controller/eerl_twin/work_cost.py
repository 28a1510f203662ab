"""From how long things should take on average to what a token costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from eerl_twin.conditions import batch_sums
from eerl_twin.world import Costs, Lengths

#: Batches over which the mean work of a world is taken; drawn apart from every run.
PILOT_BATCHES = 64
_PILOT_SEED = 20261129


@dataclass(frozen=True, slots=True)
class Shares:
    """Mean governor seconds of an update's parts, and how they divide.

    ``tail`` of generation follows the longest response, ``attention`` of the rest (and of training) the squares
    of the lengths, ``fixed`` nothing; ``logprob`` and ``critic`` are parts of ``training_s``.
    """

    generation_s: float
    training_s: float
    reward_s: float
    refit_s: float
    rest_s: float
    tail: float = 0.3
    attention: float = 0.1
    fixed: float = 0.05
    logprob: float = 0.2
    critic: float = 0.0
    switch_s: float = 0.03


def costs_for(shares: Shares, lengths: Lengths) -> Costs:
    """Costs under which an update with these lengths takes these times on average, before any drift."""
    total, longest, square = _mean_work(lengths)
    rounds = 1.0 + lengths.rounds_share
    busy_s = shares.generation_s * (1.0 - shares.tail)
    by_token = 1.0 - shares.attention - shares.fixed
    return Costs(
        generation_fixed_s=busy_s * shares.fixed,
        per_generated_s=busy_s * by_token / (total * rounds),
        generation_square_s=busy_s * shares.attention / (square * rounds),
        per_longest_s=shares.generation_s * shares.tail / (longest * rounds),
        training_fixed_s=shares.training_s * shares.fixed,
        per_trained_s=shares.training_s * by_token / total,
        training_square_s=shares.training_s * shares.attention / square,
        logprob_share=shares.logprob,
        critic_share=shares.critic,
        reward_s=shares.reward_s,
        refit_s=shares.refit_s,
        rest_s=shares.rest_s,
        switch_s=shares.switch_s,
    )


@lru_cache(maxsize=256)
def _mean_work(lengths: Lengths) -> tuple[float, float, float]:
    """Mean tokens of a batch, its longest response, and its sum of squares by 1,000."""
    rng = np.random.default_rng(_PILOT_SEED)
    total, longest, _, square = batch_sums(lengths, np.zeros(PILOT_BATCHES), rng).mean(axis=0).tolist()
    return total, longest, square
