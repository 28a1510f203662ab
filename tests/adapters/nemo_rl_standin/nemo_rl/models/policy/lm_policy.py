"""The policy as its driver sees it."""

from __future__ import annotations

from typing import Any

from nemo_rl.utils.timer import Timer


class Policy:
    def train(
        self,
        data: Any,
        loss_fn: Any,
        eval_mode: bool = False,
        gbs: int | None = None,
        mbs: int | None = None,
        timer: Any = None,
    ) -> dict[str, Any]:
        timer = timer or Timer()
        with timer.time("policy_training/sharding_data"):
            pass
        return {"loss": 0.0}
