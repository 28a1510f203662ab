"""A population of worlds, broad on purpose: the scoreboard is the population's, and no form of it is the twin's own.

Every range below is a principle's or the paper's. What is drawn and why:

==================  =============================  ============================================================
what                range                          why
==================  =============================  ============================================================
update              20 to 400 s                    from small models on a node to the paper's largest batches
generation's share  0.3 to 0.8 of gen + training   paper, section 1: generation dominates, but not everywhere
training / gen.     0.2 to 1.2 (asynchronous)      7.3: training usually has slack; sometimes it has none
clock response      any form; bound to unbound     4.1: from memory-bound decoding to compute-bound training;
                                                   never steeper than the clock itself
reachable clock     0.8 to 1 of the top            C.1: 1800/1800 acts like the governor (a cap near 1730 MHz)
lock offset         0 to 2 %, mostly below 1 %     C.1, C.2, C.4, C.6, C.7: 1980/1980 rows, mean 0.8 %
power               anchors of an H100, widely     71 and 122 W waiting; decode 137 to 600 W, cap 700 W
governor waits at   top clock (3 of 4), or lower   3.2: waiting GPUs stay near the peak; drivers may differ
noise               0.3 to 2 % of an update        appendix B: 0.3 to 1 % median error over 3 updates
correlation         0 to 0.85                      section 6.3: neighbouring updates are not independent
lengths             spread 0.4 to 1.1 in the log   table 1 and figure A1; many cut at the limit or hardly any
drift of lengths    -30 % to +100 % over the run   section 2: models learn to answer longer, or shorter
ageing              up to 3 % over the run         appendix E: governors of one configuration differ by 0.7 %
shifts              in one world of three          section 8: balance, cost, sensitivity and length may jump
faults              in one world of two            contract 3.7: flags, lost and late records, mixed plans
==================  =============================  ============================================================
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from eerl_controller import ExecutionMode
from eerl_twin.hardware import draw_gpu, draw_power
from eerl_twin.response import TimeResponse
from eerl_twin.work_cost import Shares, costs_for
from eerl_twin.world import Ageing, Faults, Lengths, Noise, Shift, Visits, World

#: The length of run for which drifts and the places of shifts are meant.
HORIZON_UPDATES = 300


def population(seed: int, mode: ExecutionMode | None = None, *, horizon: int = HORIZON_UPDATES) -> World:
    """The world of this seed; ``mode`` None draws the mode too. ``horizon`` is how many updates it will run."""
    rng = np.random.default_rng([seed, 7041])
    modes = list(ExecutionMode)
    drawn = modes[int(rng.integers(len(modes)))]
    mode = mode or drawn
    gpu = draw_gpu(rng)
    lengths = _lengths(rng, horizon)
    pools = _pools(rng, mode)
    costs = costs_for(_shares(rng, mode), lengths)
    total_sd = _log_uniform(rng, 0.003, 0.02)
    common = float(rng.uniform(0.2, 0.9))
    return World(
        name=f"population {seed} {mode.value}",
        mode=mode,
        supported_mhz=gpu.supported_mhz,
        generation_gpus=pools[0],
        training_gpus=pools[1],
        lengths=lengths,
        costs=costs,
        generation_response=draw_response(rng, least=0.03, most=0.6),
        training_response=draw_response(rng, least=0.1, most=1.0),
        refit_response=TimeResponse(bound=float(rng.uniform(0.0, 0.3))),
        power=draw_power(rng, gpu),
        lock_offset_generation=float(rng.triangular(0.0, 0.005, 0.02)),
        lock_offset_training=float(rng.triangular(0.0, 0.005, 0.02)),
        noise=_noise(rng, total_sd, common),
        shifts=_shifts(rng, horizon),
        ageing=_ageing(rng, horizon),
        visits=_visits(rng, costs.rest_s),
        faults=_faults(rng),
        max_policy_age=int(rng.integers(1, 5)) if mode is ExecutionMode.ASYNC_INFLIGHT else 1,
        plan_lag=int(rng.random() < (0.8 if mode is ExecutionMode.ASYNC_INFLIGHT else 0.3)),
        tells_remaining=bool(rng.random() < 0.7),
    )


def without_events(world: World) -> World:
    """The same world with nothing but its noise: no shift, ageing, visit or fault."""
    return replace(world, shifts=(), ageing=Ageing(), visits=Visits(), faults=Faults())


def draw_response(rng: np.random.Generator, *, least: float, most: float) -> TimeResponse:
    """A clock response of any form; ``least`` and ``most`` bound how much of the work follows the clock."""
    form = str(rng.choice(["power_law", "piecewise", "table"]))
    bound = float(rng.uniform(least, most))
    if form == "power_law":
        return TimeResponse(bound=bound, exponent=float(rng.uniform(0.6, 1.0)))
    if form == "piecewise":
        # A roofline: nearly flat above the knee, with the clock below it.
        knee = float(rng.uniform(0.4, 0.9))
        flat = float(rng.uniform(0.0, 0.3)) * bound
        at_knee = 1.0 + flat * (1.0 / knee - 1.0)
        steep = bound + (1.0 - bound) * float(rng.uniform(0.0, 0.6))
        lowest = 0.15
        end = at_knee + steep * (1.0 / lowest - 1.0 / knee)
        return TimeResponse("piecewise", clocks=(lowest, knee, 1.0), values=(end, at_knee, 1.0))
    count = int(rng.integers(5, 10))
    clocks = np.concatenate([[0.15], np.sort(rng.uniform(0.2, 0.97, count)), [1.0]])
    # Local slopes scatter around the mean one, between flat and the clock itself.
    slopes = np.clip(bound * rng.gamma(2.0, 0.5, len(clocks) - 1), 0.0, 1.0)
    rises = slopes * np.diff(np.log(clocks))
    values = np.exp(np.concatenate([np.cumsum(rises[::-1])[::-1], [0.0]]))
    return TimeResponse("table", clocks=tuple(clocks.tolist()), values=tuple(values.tolist()))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _lengths(rng: np.random.Generator, horizon: int) -> Lengths:
    limit = int(rng.choice([2048, 4096, 8192, 16384]))
    drifts = rng.random() < 0.5
    return Lengths(
        prompts=int(rng.choice([16, 32, 64])),
        responses_per_prompt=int(rng.choice([4, 8, 16])),
        mean_tokens=limit * float(rng.uniform(0.12, 0.7)),
        spread=float(rng.uniform(0.3, 0.9)),
        prompt_spread=float(rng.uniform(0.2, 0.6)),
        limit_tokens=limit,
        growth=float(rng.uniform(-0.35, 0.7)) / horizon if drifts else 0.0,
        wander=float(rng.uniform(0.0, 0.02)),
        masked_share=float(rng.choice([0.0, rng.uniform(0.0, 0.3)])),
        overlong_masked=float(rng.choice([0.0, 1.0], p=[0.7, 0.3])),
        rounds_share=float(rng.choice([0.0, rng.uniform(0.0, 0.5)], p=[0.85, 0.15])),
        latency_share=float(rng.uniform(0.3, 0.7)),
    )


def _pools(rng: np.random.Generator, mode: ExecutionMode) -> tuple[int, int]:
    if mode is ExecutionMode.COLOCATED_SYNC:
        gpus = int(rng.choice([8, 16, 32, 64]))
        return gpus, gpus
    splits = ((4, 12), (8, 8), (8, 16), (8, 24), (8, 32), (16, 32), (16, 64), (24, 8))
    return splits[int(rng.integers(len(splits)))]


def _shares(rng: np.random.Generator, mode: ExecutionMode) -> Shares:
    update_s = _log_uniform(rng, 20.0, 400.0)
    overlapping = mode in (ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT)
    small = float(rng.uniform(0.03, 0.15))
    if overlapping:
        ratio = _log_uniform(rng, 0.2, 1.2)
        generation_s = update_s * (1.0 - small) / max(ratio, 1.0)
        training_s = generation_s * ratio
    else:
        generation_s = update_s * (1.0 - small) * float(rng.uniform(0.3, 0.8))
        training_s = update_s * (1.0 - small) - generation_s
    parts = rng.dirichlet([1.0, 2.0, 1.0]) * small * update_s
    return Shares(
        generation_s=generation_s,
        training_s=training_s,
        reward_s=float(parts[0]),
        refit_s=float(parts[1]),
        rest_s=float(parts[2]),
        tail=float(rng.uniform(0.1, 0.6)),
        attention=float(rng.uniform(0.0, 0.4)),
        fixed=float(rng.uniform(0.0, 0.1)),
        logprob=float(rng.uniform(0.05, 0.35)),
        critic=float(rng.choice([0.0, rng.uniform(0.1, 0.3)], p=[0.8, 0.2])),
        switch_s=_log_uniform(rng, 0.01, 0.3),
    )


def _noise(rng: np.random.Generator, total_sd: float, common: float) -> Noise:
    straggles = rng.random() < 0.4
    return Noise(
        level_sd=total_sd * math.sqrt(common),
        level_correlation=float(rng.uniform(0.0, 0.85)),
        phase_sd=total_sd * math.sqrt(1.0 - common),
        phase_correlation=float(rng.uniform(0.0, 0.6)),
        tail_df=float(rng.choice([3.0, 5.0, 30.0])),
        power_sd=_log_uniform(rng, 0.001, 0.008),
        power_correlation=float(rng.uniform(0.3, 0.95)),
        straggler_share=float(rng.uniform(0.0, 0.03)) if straggles else 0.0,
        straggler_factor=float(rng.uniform(1.2, 4.0)),
        slow_start=tuple(
            _log_uniform(rng, 1.2, 10.0) / (1 + i) ** 1.5 + 1.0 for i in range(rng.integers(1, 4))
        ),
    )


def _shifts(rng: np.random.Generator, horizon: int) -> tuple[Shift, ...]:
    if rng.random() > 1.0 / 3.0:
        return ()
    kind = str(rng.choice(["length", "balance", "machine", "sensitivity"]))
    at = int(rng.uniform(0.2, 0.85) * horizon)
    factor = math.exp(float(rng.uniform(-0.25, 0.35)))
    if kind == "length":
        return (Shift(at, log_length=float(rng.uniform(-0.4, 0.5))),)
    if kind == "balance":
        return (Shift(at, generation_cost=factor, training_cost=math.exp(float(rng.uniform(-0.25, 0.35)))),)
    if kind == "machine":
        slower = math.exp(float(rng.uniform(-0.05, 0.05)))
        return (Shift(at, generation_cost=slower, training_cost=slower),)
    more = float(rng.uniform(0.5, 2.0))
    return (Shift(at, generation_sensitivity=more, training_sensitivity=float(rng.uniform(0.5, 2.0))),)


def _ageing(rng: np.random.Generator, horizon: int) -> Ageing:
    if rng.random() < 0.4:
        return Ageing()
    drifts = rng.uniform(-0.01, 0.03, 3) / horizon
    return Ageing(*(float(drift) for drift in drifts))


def _visits(rng: np.random.Generator, rest_s: float) -> Visits:
    return Visits(
        validation_every=int(rng.choice([0, 10, 20, 50])),
        validation_s=max(rest_s, 1.0) * float(rng.uniform(2.0, 20.0)),
        checkpoint_every=int(rng.choice([0, 10, 25, 50])),
        checkpoint_s=max(rest_s, 1.0) * float(rng.uniform(1.0, 10.0)),
    )


def _faults(rng: np.random.Generator) -> Faults:
    if rng.random() < 0.5:
        return Faults()
    return Faults(
        throttle_share=float(rng.choice([0.0, rng.uniform(0.0, 0.05)])),
        throttle_updates=int(rng.integers(1, 10)),
        throttle_factor=float(rng.uniform(0.6, 0.95)),
        partial_energy_share=float(rng.choice([0.0, rng.uniform(0.0, 0.03)])),
        missing_counts_share=float(rng.choice([0.0, rng.uniform(0.0, 0.02)])),
        lost_share=float(rng.choice([0.0, rng.uniform(0.0, 0.02)])),
        late_share=float(rng.choice([0.0, rng.uniform(0.0, 0.1)])),
        mixed_share=float(rng.uniform(0.0, 0.5)),
    )
