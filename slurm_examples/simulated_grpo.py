"""A GRPO-shaped training loop on simulated GPUs, to see eerl at work in a minute and without hardware.

    eerl-run --simulate h100:2x8 -- python slurm_examples/simulated_grpo.py

Only the GPUs are simulated (eerl_launch/devices/sim_model.py has the model): response lengths are drawn, the work
they mean is handed to the GPUs, and how long that takes follows the clocks that eerl really sets. Nothing here
knows about clocks, energy or savings; the markers are the lines that a real trainer would have too.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass

from eerl_launch import mark
from eerl_launch.devices.base import DeviceError
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
    """The responses of one update, on all GPUs together."""

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


def generate(workload: SimWorkload, rollout: Rollout, pace: float) -> None:
    pieces = [(seconds * pace, 0.4 + 0.6 * running) for seconds, running in rollout.decode_slices()]
    workload.run_pieces("generation", pieces)


def one_update(workload: SimWorkload, update: int, total: int, seed: int, gpus: int) -> str:
    # Every update has its own stream: runs under different clocks get the same work.
    rng = random.Random(f"{seed}/{update}")
    rollout = draw_rollout(rng, update / total, gpus)
    warm_up = {0: 1.6, 1: 1.15}.get(update, 1.0)  # compilation, caches
    start_s = workload.clock.now_s()

    with mark.phase("generation", update) as phase:
        generate(workload, rollout, warm_up * rng.lognormvariate(0, 0.006))
        phase.set(generated_tokens=rollout.generated_tokens, longest_response_tokens=rollout.longest)
    with mark.phase("reward", update):
        slow_verifier_s = 6.0 if rng.random() < 0.02 else 0.0
        workload.run_phase("idle", 1.5 * rng.lognormvariate(0, 0.05) + slow_verifier_s)
    with mark.phase("logprob", update):
        work_s = LOGPROB_TOKEN_S * rollout.generated_tokens / gpus
        workload.run_phase("training", work_s * rng.lognormvariate(0, 0.004), load=0.85)
    with mark.phase("training", update):
        work_s = TRAINING_TOKEN_S * rollout.valid_tokens / gpus
        workload.run_phase("training", warm_up * work_s * rng.lognormvariate(0, 0.004))
    with mark.phase("refit", update):
        workload.run_phase("generation", 1.2, load=0.3)
    reward = 0.2 + 0.5 * update / total + rng.gauss(0, 0.02)
    mark.update(
        update,
        generated_tokens=rollout.generated_tokens,
        valid_tokens=rollout.valid_tokens,
        longest_response_tokens=rollout.longest,
        responses=len(rollout.lengths),
        reward=round(reward, 4),
    )
    if update % 25 == 24:
        with mark.phase("validation", update):
            generate(workload, draw_rollout(rng, update / total, gpus), 0.5)
        mark.metric("validation_accuracy", round(0.15 + 0.5 * update / total, 4), update=update)
    if update % 50 == 49:
        with mark.phase("checkpoint", update):
            workload.run_phase("idle", 5.0)
    elapsed_s = workload.clock.now_s() - start_s
    return (
        f"update {update + 1}/{total}: {rollout.generated_tokens} tokens, longest {rollout.longest}, "
        f"reward {reward:.2f}, {elapsed_s:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="GRPO-shaped work on simulated GPUs.")
    parser.add_argument("--updates", type=int, default=110)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="UPDATES")
    options = parser.parse_args()
    try:
        workload = SimWorkload()
    except DeviceError as error:
        print(f"simulated_grpo: {error}", file=sys.stderr)
        return 2
    with workload:
        spec = workload.simulation.spec
        print(f"simulated_grpo: {options.updates} updates on simulated GPUs ({spec}), times are virtual")
        mark.run(framework="simulated_grpo", mode="colocated_sync", total_updates=options.updates)
        for update in range(options.updates):
            line = one_update(
                workload, update, options.updates, options.seed, spec.nodes * spec.gpus_per_node
            )
            if (update + 1) % max(1, options.log_every) == 0 or update + 1 == options.updates:
                print(f"simulated_grpo: {line}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
