"""The two loops of GRPO, as their labels, metrics and calls are seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np

from nemo_rl import plan
from nemo_rl.experience import rollouts
from nemo_rl.experience.rollouts import Batch, prompts, run_async_multi_turn_rollout, run_multi_turn_rollout
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.logger import Logger
from nemo_rl.utils.timer import Timer

VERSION = os.environ.get("STANDIN_VERSION", "0.7.0")
MAIN = VERSION == "main"


class State(dict[str, int]):
    """A typed dict until 0.7, a model with attributes on main."""

    def __getattr__(self, name: str) -> int:
        return self[name]


def setup(
    master_config: Any, tokenizer: Any = None, dataset: Any = None, val_dataset: Any = None
) -> tuple[Any, ...]:
    done = master_config["grpo"].get("done", 0)
    state = State(current_step=done, total_steps=done, current_epoch=0, consumed_samples=0)
    return Policy(), object(), (None, None), [], None, None, Logger(), None, state, master_config


def refit_policy_generation(policy: Any, policy_generation: Any, colocated: bool, timer: Any = None) -> None:
    if timer is not None:
        with timer.time("prepare_for_generation/transfer_and_update_weights"):
            pass


def validate(step: int) -> dict[str, float]:
    timer = Timer()
    with timer.time("total_validation_time"):
        run_multi_turn_rollout(None, prompts(2), [1000, 2000])
    return {"accuracy": 0.25 + step / 100}


def data_of(batch: Batch, update: int, padding: int = 4) -> Batch:
    """The masks of a training batch: one row a response, prompt and other words masked out."""
    rows = [
        np.concatenate(
            [[turn.get("generation_logprobs") is not None] * len(turn["token_ids"]) for turn in log]
        )
        for log in batch["message_log"]
    ]
    width = max(len(row) for row in rows) + padding
    mask = np.zeros((len(rows), width), dtype=np.float32)
    for index, row in enumerate(rows):
        mask[index, : len(row)] = row
    sample = np.ones(len(rows), dtype=np.float32)
    sample[[row for row in plan.left_out(update) if row < len(rows)]] = 0
    return Batch(message_log=batch["message_log"], token_mask=mask, sample_mask=sample)


def own_count(update: int, **counts: Any) -> None:
    """What this loop itself knows it did, for the test to compare with."""
    print(json.dumps({"update": update, **counts}), flush=True)


def _learn(timer: Any, policy: Policy, data: Any, epochs: int = 1) -> None:
    with timer.time("logprob_inference_prep"):
        pass
    with timer.time("policy_and_reference_logprobs"), timer.time("get_logprobs/shard_data"):
        pass
    if VERSION != "0.5.0":
        with timer.time("advantage_calculation"):
            pass
    for _ in range(epochs):
        with timer.time("training_prep"):
            pass
        with timer.time("policy_training"):
            if data is None:
                continue  # train_from_meta: the masks are in the data plane
            policy.train(data, None) if VERSION == "0.5.0" else policy.train(data, None, timer=timer)


def grpo_train(policy: Policy, generation: Any, logger: Logger, state: State, config: Any) -> None:
    timer = Timer()
    grpo = config["grpo"]
    stale = True
    if grpo.get("val_at_start"):
        refit_policy_generation(policy, generation, True)
        stale = False
        logger.log_metrics(validate(0), 0, prefix="validation")
    rollout = {"sync": run_multi_turn_rollout, "async": run_async_multi_turn_rollout}.get(
        grpo.get("rollouts", "sync")
    )
    step, turn, kept = state["total_steps"], 0, None
    generated: list[int] = []
    while step < grpo["max_num_steps"]:
        with timer.time("total_step_time"):
            with timer.time("data_processing"):
                batch = prompts(plan.PROMPTS * plan.EACH)
            with timer.time("prepare_for_generation/total"):
                if stale:
                    refit_policy_generation(policy, generation, True, timer=timer)
                    stale = False
            with timer.time("generation"):
                wanted = plan.lengths(step + 1, turn)
                if grpo.get("fails_at") == step + 1:
                    raise MemoryError("the engine died")
                if grpo.get("data_plane"):  # in an actor that does not speak; the driver sees metrics
                    batch, metrics = rollouts._answered(batch, wanted), rollouts._metrics(wanted)
                elif rollout is not None:
                    batch, metrics = rollout(None, batch, wanted)
                else:
                    result = rollouts.run_async_nemo_gym_rollout(None, batch, wanted)
                    batch, metrics = result.final_batch, result.rollout_metrics
                generated += wanted
                if VERSION != "0.5.0":
                    logger.log_metrics(metrics, step + 1, prefix="train")
            with timer.time("reward_calculation"):
                with timer.time("dynamic_sampling"):
                    pass
                if grpo.get("use_dynamic_sampling") and turn == 0 and step % 2:
                    kept, turn = batch, 1
                    continue
                if kept is not None:  # half of either round
                    half = len(kept["message_log"]) // 2
                    batch = Batch(message_log=kept["message_log"][:half] + batch["message_log"][half:])
            data = data_of(batch, step + 1)
            _learn(timer, policy, None if grpo.get("data_plane") else data, grpo.get("epochs", 1))
            stale = True
            if grpo.get("val_period") and (step + 1) % grpo["val_period"] == 0:
                refit_policy_generation(policy, generation, True)
                stale = False
                logger.log_metrics(validate(step + 1), step + 1, prefix="validation")
            if grpo.get("save_period") and (step + 1) % grpo["save_period"] == 0:
                with timer.time("checkpointing"):
                    pass
        valid = int((data["token_mask"] * data["sample_mask"][:, None]).sum())
        steps = 6 // config["policy"]["train_global_batch_size"]
        logger.log_metrics({"reward": 0.5, "global_valid_toks": valid / steps}, step + 1, prefix="train")
        logger.log_metrics({}, step + 1, prefix="timing/train")
        own_count(step + 1, generated=sum(generated), longest=max(generated), valid=valid)
        timer.reset()
        step, turn, kept, generated = step + 1, 0, None, []


def async_grpo_train(policy: Policy, generation: Any, logger: Logger, state: State, config: Any) -> None:
    """The collector is a process of its own that has the driver's environment, as Ray gives it."""
    timer = Timer()
    grpo, step = config["grpo"], state["current_step"]
    refit_policy_generation(policy, generation, False)
    collector = subprocess.Popen(
        [sys.executable, "-m", "standin_collector"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )

    def ask(word: str) -> str:
        assert collector.stdin is not None and collector.stdout is not None
        collector.stdin.write(word + "\n")
        collector.stdin.flush()
        return collector.stdout.readline().strip()

    if MAIN:
        timer.start("init/total")
        timer.stop("init/total")
    while step < grpo["max_num_steps"]:
        ask(f"generate {step + 1} 2")
        with timer.time("total_step_time"):
            with timer.time("exposed_generation"):
                if MAIN:
                    with timer.time("idle/buffer_starvation"):
                        pass
                batch, _ = rollouts._answered(prompts(6), plan.lengths(max(1, step))), None
            with timer.time("reward_calculation"):
                pass
            with timer.time("data_processing"):
                data = data_of(batch, step + 1)
            _learn(timer, policy, data)
            if MAIN:
                timer.start("idle/refit_bubble")
            with timer.time("exposed_generation"):
                if not grpo["async_grpo"]["in_flight_weight_updates"]:
                    ask("drain")
            with timer.time("weight_sync"):
                refit_policy_generation(policy, generation, False)
            if MAIN:
                timer.stop("idle/refit_bubble")
            if grpo.get("val_period") and (step + 1) % grpo["val_period"] == 0:
                validating = timer.time("idle/validation") if MAIN else timer.time("validation_wait")
                with validating:
                    logger.log_metrics(validate(step + 1), step + 1, prefix="validation")
        valid = int((data["token_mask"] * data["sample_mask"][:, None]).sum())
        logger.log_metrics({}, step + 1, prefix="performance")
        logger.log_metrics(
            {"reward": 0.5, "global_valid_toks": valid / 2, "avg_trajectory_age": min(step, 1)},
            step + 1,
            prefix="train",
        )
        own_count(step + 1, valid=valid, longest_consumed=max(plan.lengths(max(1, step))))
        timer.reset()
        step += 1
    own_count(0, collected=int(ask("stop")))
