"""Rollouts: responses of the engines, filtered or not, made into experiences."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

PROMPT = 5


@dataclass
class Experience:
    action_mask: Any
    score: float


def lengths(update: int) -> list[int]:
    return [(23 * update + 7 * row) % 40 + 4 for row in range(6)]


def words(update: int, row: int) -> int:
    """What an environment says in the middle of every third response."""
    return 3 if row % 3 == 0 else 0


class SamplesGenerator:
    def __init__(self, args: SimpleNamespace) -> None:
        self.args = args
        self.generated: list[int] = []

    def generate_eval_samples(self, **kwargs: Any) -> list[Experience]:
        return [self._process_response_into_experience(_response(500, 0, 1.0))]

    def generate_samples(self, update: int = 0, **kwargs: Any) -> tuple[list[Experience], Any, int, bool]:
        if update in self.args.fails_at:
            raise MemoryError("the engine died")
        made = []
        for row, length in enumerate(lengths(update)):
            self.generated.append(length)
            made.append(
                self._process_response_into_experience(_response(length, words(update, row), row % 2))
            )
        if self.args.algo.dynamic_filtering_enable:
            made = [one for one in made if one.score > 0]
        return made, None, len(made), False

    def _process_response_into_experience(self, response: dict[str, Any], **kwargs: Any) -> Experience:
        mask = np.zeros(len(response["observation_tokens"]), dtype=np.int64)
        for start, end in response["action_ranges"]:
            mask[start:end] = 1
        return Experience(mask[None, 1 : self.args.max_len], response["score"])


def _response(length: int, foreign: int, score: float) -> dict[str, Any]:
    middle = PROMPT + length // 2
    ranges = [(PROMPT, middle), (middle + foreign, PROMPT + foreign + length)]
    return {"observation_tokens": [0] * (PROMPT + foreign + length), "action_ranges": ranges, "score": score}
