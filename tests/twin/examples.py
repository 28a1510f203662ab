"""Worlds for the tests: one of each mode, quiet ones, and ones in which everything happens at once."""

from __future__ import annotations

from dataclasses import replace

from eerl_controller import ExecutionMode
from eerl_twin import Ageing, Faults, Lengths, Noise, Shift, Visits, World

SMALL = Lengths(prompts=16, responses_per_prompt=4, mean_tokens=1500.0)
SILENT = Noise(level_sd=0.0, phase_sd=0.0, power_sd=0.0, slow_start=())


def world(mode: ExecutionMode, **fields: object) -> World:
    """A plain world of this mode; ``fields`` replace what is to be different."""
    gpus = (16, 16) if mode is ExecutionMode.COLOCATED_SYNC else (8, 24)
    plain = World(name="plain", mode=mode, generation_gpus=gpus[0], training_gpus=gpus[1], lengths=SMALL)
    return replace(plain, **fields)  # type: ignore[arg-type]


def quiet(mode: ExecutionMode, **fields: object) -> World:
    """As :func:`world`, without noise and without a cost of locking."""
    return world(
        mode, **{"noise": SILENT, "lock_offset_generation": 0.0, "lock_offset_training": 0.0, **fields}
    )


def eventful(mode: ExecutionMode) -> World:
    """Everything that can happen to a run, often."""
    return world(
        mode,
        lengths=replace(
            SMALL, masked_share=0.1, overlong_masked=0.5, rounds_share=0.2, growth=0.002, wander=0.01
        ),
        noise=Noise(straggler_share=0.05, straggler_factor=4.0, tail_df=3.0),
        shifts=(Shift(update=40, generation_cost=1.3, training_sensitivity=2.0, log_length=0.4),),
        ageing=Ageing(generation_time=1e-4, training_time=-1e-4, power=1e-4),
        visits=Visits(validation_every=10, validation_s=30.0, checkpoint_every=15, checkpoint_s=20.0),
        faults=Faults(
            throttle_share=0.05,
            missing_counts_share=0.05,
            partial_energy_share=0.05,
            lost_share=0.03,
            late_share=0.1,
            mixed_share=0.5,
        ),
        plan_lag=1,
    )
