"""A training script with a clock around everything of an adapter's that runs in it.

    timed_hooks.py OUT SCRIPT [options of the script]

Run in the environment with TRL and with the adapters on PYTHONPATH; OUT gets seconds, calls and updates.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trl.trainer.grpo_trainer import GRPOTrainer

RUNNING = sys.modules["eerl_trainer.adapters.running"]
TRL = sys.modules["eerl_trainer.adapters.trl"]

spent = {"hooks_s": 0.0, "calls": 0, "train_s": 0.0, "updates": 0}


def timed(owner: Any, name: str) -> None:
    """Add up the time of ``owner.name``; it runs hooks only, nothing of the trainer's."""
    original: Callable[..., Any] = getattr(owner, name)

    def clocked(*args: Any, **kwargs: Any) -> Any:
        begin_s = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent["hooks_s"] += time.perf_counter() - begin_s
            spent["calls"] += 1

    setattr(owner, name, clocked)


def main() -> None:
    out, script, *options = sys.argv[1:]
    for name in ("begin", "end", "fail"):
        timed(RUNNING.Running, name)
    for name in ("train_begins", "optimizer_step_ends", "train_ends"):
        timed(TRL, name)
    train = GRPOTrainer.train

    def clocked_train(self: Any, *args: Any, **kwargs: Any) -> Any:
        spent["hooks_s"], spent["calls"] = 0.0, 0
        begin_s = time.perf_counter()
        result = train(self, *args, **kwargs)
        spent["train_s"] = time.perf_counter() - begin_s
        spent["updates"] = self.state.global_step
        return result

    GRPOTrainer.train = clocked_train
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
    Path(out).write_text(json.dumps(spent))


main()
