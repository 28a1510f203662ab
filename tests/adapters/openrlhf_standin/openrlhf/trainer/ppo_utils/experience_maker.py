"""Log-probs, values and rewards of what was generated."""

from __future__ import annotations

from typing import Any


class RemoteExperienceMaker:
    def make_experience_batch(self, rollout_samples: list[Any]) -> list[Any]:
        return rollout_samples
