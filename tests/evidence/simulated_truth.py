"""What clocks really do to slurm_examples/simulated_grpo.py, worked out from the simulated GPU's own model.

The program's random draws are repeated in its order; a phase's time and energy follow from the model's speed and
power at the clock that is reached. Switches take no time here: what a run lost to them is its own affair.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eerl_launch.devices.sim_model import KINDS, MODELS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "slurm_examples"))
import simulated_work as work

Setting = tuple[int | None, int | None]


def update_totals(
    model: str, gpus: int, seed: int, update: int, updates: int, setting: Setting
) -> tuple[float, float, int]:
    """Seconds, joules and valid tokens of an update (counted from 0) at a pair of clocks."""
    device = MODELS[model]
    elapsed_s = energy_j = 0.0

    def run(kind: str, work_s: float, mhz: int | None, load: float = 1.0) -> None:
        nonlocal elapsed_s, energy_j
        reached_mhz, _ = device.settle(mhz or device.max_mhz, KINDS[kind], load)
        took_s = work_s / device.speed(reached_mhz, KINDS[kind])
        elapsed_s += took_s
        energy_j += gpus * device.power_w(reached_mhz, KINDS[kind], load) * took_s

    generation_mhz, training_mhz = setting
    rng = work.stream(seed, update)
    rollout = work.draw_rollout(rng, update / updates, gpus)
    slow = work.warm_up(update)
    for seconds, load in work.decode_pieces(rollout, slow * rng.lognormvariate(0, 0.006)):
        run("generation", seconds, generation_mhz, load)
    slow_verifier_s = 6.0 if rng.random() < 0.02 else 0.0
    run("idle", 1.5 * rng.lognormvariate(0, 0.05) + slow_verifier_s, generation_mhz, 0.0)
    logprob_s = work.LOGPROB_TOKEN_S * rollout.generated_tokens / gpus
    run("training", logprob_s * rng.lognormvariate(0, 0.004), training_mhz, 0.85)
    training_s = work.TRAINING_TOKEN_S * rollout.valid_tokens / gpus
    run("training", slow * training_s * rng.lognormvariate(0, 0.004), training_mhz)
    run("generation", 1.2, training_mhz, 0.3)
    rng.gauss(0, 0.02)  # the reward
    if update % 25 == 24:
        for seconds, load in work.decode_pieces(work.draw_rollout(rng, update / updates, gpus), 0.5):
            run("generation", seconds, generation_mhz, load)
    if update % 50 == 49:
        run("idle", 5.0, generation_mhz, 0.0)
    return elapsed_s, energy_j, rollout.valid_tokens


def true_changes(
    model: str, gpus: int, seeds: list[int], positions: range, updates: int, setting: Setting
) -> tuple[float, float]:
    """Energy saving and throughput change in percent of a setting, geometric means over seeds (the same work)."""
    saving, change = 1.0, 1.0
    for seed in seeds:
        sums = {}
        for clocks in (setting, (None, None)):
            parts = [update_totals(model, gpus, seed, place - 1, updates, clocks) for place in positions]
            sums[clocks] = (sum(part[0] for part in parts), sum(part[1] for part in parts))
        saving *= (sums[setting][1] / sums[None, None][1]) ** (1 / len(seeds))
        change *= (sums[None, None][0] / sums[setting][0]) ** (1 / len(seeds))
    return 100.0 * (1.0 - saving), 100.0 * (change - 1.0)
