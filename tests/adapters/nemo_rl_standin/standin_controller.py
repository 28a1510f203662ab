"""The single controller's actor: rollouts and training pumps in one event loop, training in chunks."""

from __future__ import annotations

import asyncio
import json
import sys

from nemo_rl import plan
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import Timer


async def main(first: int, last: int) -> None:
    timer, manager, logger, total = Timer(), RolloutManager(), Logger(), 0
    for step in range(first, last + 1):
        groups = [plan.lengths(step, group, groups=1) for group in range(2)]
        tasks = [asyncio.create_task(manager.run_rollout(lengths)) for lengths in groups]
        with timer.time("total_step_time"):
            for task in tasks:
                with timer.time("exposed_generation"):
                    await task
                with timer.time("logprob_inference_prep"):
                    pass
                with timer.time("policy_and_reference_logprobs"):
                    pass
                with timer.time("training_prep"):
                    pass
                if task is not tasks[0]:  # a chunk may hold no valid token
                    with timer.time("policy_training"):
                        pass
            with timer.time("policy_training"):
                pass
            with timer.time("weight_sync"):
                pass
        valid = sum(map(sum, groups)) - 7
        total += valid + 7
        logger.log_metrics({"reward": 0.5, "global_valid_toks": float(valid)}, step, prefix="train")
        print(json.dumps({"update": step, "valid": valid}), flush=True)
    print(json.dumps({"update": 0, "collected": total}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
