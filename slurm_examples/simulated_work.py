"""The work of the simulated trainers: responses are drawn, and what they mean for the GPUs follows from them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from eerl_launch.simulate import SimWorkload

RESPONSES_PER_GPU = 32
MAX_RESPONSE_TOKENS = 3072

# Seconds at the highest clock. A decode step costs a pass over the weights plus a little per active response.
DECODE_STEP_S = 0.0028
DECODE_TOKEN_S = 0.00062
TRAINING_TOKEN_S = 0.00065
LOGPROB_TOKEN_S = 0.00021
DECODE_SLICES = 5


@dataclass(frozen=True)
class Rollout:
    """The responses of one update, and on how many GPUs they are generated."""

    lengths: list[int]
    gpus: int

    @property
    def generated_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def valid_tokens(self) -> int:
        """Truncated responses are masked out of the loss, as is common."""
        return sum(length for length in self.lengths if length < MAX_RESPONSE_TOKENS)

    def decode_slices(self) -> list[tuple[float, float]]:
        """Decoding as (seconds of work, share of responses still running), from full batch to the last one."""
        slices = []
        for index in range(DECODE_SLICES):
            first = self.longest * index // DECODE_SLICES
            last = self.longest * (index + 1) // DECODE_SLICES
            tokens = sum(max(0, min(length, last) - first) for length in self.lengths)
            seconds = DECODE_STEP_S * (last - first) + DECODE_TOKEN_S * tokens / self.gpus
            slices.append((seconds, tokens / max(1, last - first) / len(self.lengths)))
        return slices


def draw_rollout(rng: random.Random, progress: float, gpus: int) -> Rollout:
    """Lognormal lengths that grow a little as the model learns to think, cut at the limit."""
    mean_log = 6.15 + 0.15 * progress
    lengths = [
        min(MAX_RESPONSE_TOKENS, max(8, round(rng.lognormvariate(mean_log, 0.6))))
        for _ in range(RESPONSES_PER_GPU * gpus)
    ]
    return Rollout(lengths, gpus)


def decode_pieces(rollout: Rollout, pace: float) -> list[tuple[float, float]]:
    """Decoding as (seconds of work, load)."""
    return [(seconds * pace, 0.4 + 0.6 * running) for seconds, running in rollout.decode_slices()]


def generate(workload: SimWorkload, rollout: Rollout, pace: float) -> None:
    workload.run_pieces("generation", decode_pieces(rollout, pace))


def warm_up(update: int) -> float:
    """Compilation and caches make the first updates slow."""
    return {0: 1.6, 1: 1.15}.get(update, 1.0)


def stream(seed: int, update: int) -> random.Random:
    """Every update has its own stream: runs under different clocks get the same work."""
    return random.Random(f"{seed}/{update}")
