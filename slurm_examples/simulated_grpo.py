"""A GRPO-shaped training loop on simulated GPUs, to see eerl at work in a minute and without hardware.

    eerl-run --simulate h100:2x8 -- python slurm_examples/simulated_grpo.py
    eerl-run --simulate h100:2x8 -- python slurm_examples/simulated_grpo.py --mode drained

Only the GPUs are simulated (eerl_launch/devices/sim_model.py has the model): response lengths are drawn, the work
they mean is handed to the GPUs, and how long that takes follows the clocks that eerl really sets. Nothing here
knows about clocks, energy or savings; the markers are the lines that a real trainer would have too. With a mode
other than ``colocated`` the first half of the GPUs generates and the other half trains (simulated_pools.py).
"""

from __future__ import annotations

import argparse
import sys

from simulated_pools import POOL_LOOPS
from simulated_work import (
    LOGPROB_TOKEN_S,
    TRAINING_TOKEN_S,
    Rollout,
    draw_rollout,
    generate,
    stream,
    warm_up,
)

from eerl_launch import mark
from eerl_launch.devices.base import DeviceError
from eerl_launch.simulate import SimWorkload

#: What the run is along the axes of `eerl profile`.
ABOUT = {"model": "simulated", "algorithm": "GRPO", "reward": "function", "task": "drawn lengths"}


def one_update(workload: SimWorkload, update: int, total: int, seed: int, gpus: int) -> str:
    rng = stream(seed, update)
    rollout: Rollout = draw_rollout(rng, update / total, gpus)
    slow = warm_up(update)
    start_s = workload.clock.now_s()

    with mark.phase("generation", update) as phase:
        generate(workload, rollout, slow * rng.lognormvariate(0, 0.006))
        phase.set(generated_tokens=rollout.generated_tokens, longest_response_tokens=rollout.longest)
    mark.response_lengths(rollout.lengths, update)
    with mark.phase("reward", update):
        slow_verifier_s = 6.0 if rng.random() < 0.02 else 0.0
        workload.run_phase("idle", 1.5 * rng.lognormvariate(0, 0.05) + slow_verifier_s)
    with mark.phase("logprob", update):
        work_s = LOGPROB_TOKEN_S * rollout.generated_tokens / gpus
        workload.run_phase("training", work_s * rng.lognormvariate(0, 0.004), load=0.85)
    with mark.phase("training", update):
        work_s = TRAINING_TOKEN_S * rollout.valid_tokens / gpus
        workload.run_phase("training", slow * work_s * rng.lognormvariate(0, 0.004))
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


def colocated(total: int, seed: int, log_every: int) -> None:
    with SimWorkload() as workload:
        spec = workload.simulation.spec
        mark.run(framework="simulated_grpo", mode="colocated_sync", total_updates=total, **ABOUT)
        for update in range(total):
            line = one_update(workload, update, total, seed, spec.nodes * spec.gpus_per_node)
            if (update + 1) % log_every == 0 or update + 1 == total:
                print(f"simulated_grpo: {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="GRPO-shaped work on simulated GPUs.")
    parser.add_argument("--updates", type=int, default=110)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="UPDATES")
    parser.add_argument("--mode", choices=["colocated", *POOL_LOOPS], default="colocated")
    options = parser.parse_args()
    try:
        with SimWorkload() as workload:
            spec = workload.simulation.spec
        loop = POOL_LOOPS.get(options.mode, colocated)
        print(f"simulated_grpo: {options.updates} updates on simulated GPUs ({spec}), times are virtual")
        loop(options.updates, options.seed, max(1, options.log_every))
    except DeviceError as error:
        print(f"simulated_grpo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
