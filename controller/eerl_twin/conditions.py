"""Everything that chance and the work decide in one run, drawn before it begins and independent of any clock.

Two policies under the same conditions are a pair: same responses, same noise, same faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller import ExecutionMode
from eerl_twin.response import Array
from eerl_twin.world import Lengths, Shift, World

#: Batches drawn at once: bounds memory, and is fixed so that a longer run begins like a shorter one.
CHUNK_BATCHES = 64
#: No governor phase is slower or faster than its work by more than this factor, however heavy the tail.
LARGEST_DEVIATION = 3.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """One run's work and chance as plain lists: by batch (``generated`` to ``training_s``), then by update.

    Seconds are the governor's without noise. ``generation_*`` and ``training_*`` multipliers carry noise, slow
    first updates, ageing and shifts. ``delay`` is how many updates a record arrives late, -1 for never.
    """

    generated: list[int]
    longest: list[int]
    valid: list[int]
    throughput_s: list[float]
    latency_s: list[float]
    training_s: list[float]
    generation_time: list[float]
    training_time: list[float]
    generation_power: list[float]
    training_power: list[float]
    generation_sensitivity: list[float]
    training_sensitivity: list[float]
    lock_cost: list[float]
    straggling_s: list[float]
    reward_s: list[float]
    refit_s: list[float]
    rest_s: list[float]
    validation_s: list[float]
    checkpoint_s: list[float]
    reward: list[float]
    throttled: list[bool]
    partial_energy: list[bool]
    missing_counts: list[bool]
    mixed: list[bool]
    delay: list[int]

    @property
    def updates(self) -> int:
        """How many updates these conditions are for."""
        return len(self.delay)


def draw(world: World, updates: int, seed: int) -> Conditions:
    """The conditions of one run: the same world, number of updates and seed give the same."""
    batches = updates + (0 if world.mode is ExecutionMode.COLOCATED_SYNC else world.max_policy_age + 1)
    work = _work(world, batches, seed)
    return Conditions(**work, **_chance(world, updates, seed, work))


def _rng(seed: int, topic: str) -> np.random.Generator:
    """A generator for each topic: a longer run begins like a shorter one, a fault moves nothing else."""
    return np.random.default_rng([seed, *topic.encode()])


def _work(world: World, batches: int, seed: int) -> dict[str, Any]:
    """Token counts and governor seconds by batch."""
    lengths, costs = world.lengths, world.costs
    total, longest, valid, square = _token_sums(lengths, world.shifts, batches, seed).T
    generation_cost, training_cost = np.ones(batches), np.ones(batches)
    for shift in world.shifts:
        generation_cost[shift.update :] *= shift.generation_cost
        training_cost[shift.update :] *= shift.training_cost
    rounds = 1.0 + (_rng(seed, "rounds").random(batches) < lengths.rounds_share)
    generated = total * rounds
    throughput = costs.generation_fixed_s + costs.per_generated_s * generated
    throughput += costs.generation_square_s * square * rounds
    latency = costs.per_longest_s * longest * rounds
    training = costs.training_fixed_s + costs.per_trained_s * total + costs.training_square_s * square
    return {
        "generated": generated.astype(int).tolist(),
        "longest": longest.astype(int).tolist(),
        "valid": valid.astype(int).tolist(),
        "throughput_s": (throughput * generation_cost).tolist(),
        "latency_s": (latency * generation_cost).tolist(),
        "training_s": (training * training_cost).tolist(),
    }


@lru_cache(maxsize=64)
def _token_sums(lengths: Lengths, shifts: tuple[Shift, ...], batches: int, seed: int) -> Array:
    """:func:`batch_sums` of all batches of a run, with the drift of its lengths. Not to be written to."""
    wandering = np.cumsum(_rng(seed, "wander").normal(0.0, 1.0, batches))
    drift = lengths.growth * np.arange(batches) + wandering * lengths.wander
    for shift in shifts:
        drift[shift.update :] += shift.log_length
    rng = _rng(seed, "lengths")
    return np.concatenate(
        [batch_sums(lengths, drift[i : i + CHUNK_BATCHES], rng) for i in range(0, batches, CHUNK_BATCHES)]
    )


def batch_sums(lengths: Lengths, drift: Array, rng: np.random.Generator) -> Array:
    """For at most a chunk of batches, each with its drift of the log mean: all tokens, the longest response,
    valid tokens, and the sum of squares by 1,000.
    """
    spread = math.hypot(lengths.spread, lengths.prompt_spread)
    log_mean = math.log(lengths.mean_tokens) - spread**2 / 2 + drift
    # Drawn in whole chunks, so that the stream does not depend on how many updates are wanted.
    shape = (CHUNK_BATCHES, lengths.prompts, lengths.responses_per_prompt)
    logs = lengths.spread * rng.standard_normal(shape)
    logs += lengths.prompt_spread * rng.standard_normal((CHUNK_BATCHES, lengths.prompts, 1))
    masked = rng.random(shape)
    count = len(log_mean)
    tokens = np.exp(logs[:count] + log_mean[:, None, None])
    cut = tokens >= lengths.limit_tokens
    tokens = np.clip(tokens, 1.0, lengths.limit_tokens).reshape(count, -1)
    out_share = lengths.masked_share + lengths.overlong_masked * cut
    kept = masked[:count].reshape(count, -1) >= out_share.reshape(count, -1)
    # A batch never loses all its responses: the trainer would have nothing to step on.
    kept[:, 0] = True
    return np.stack(
        [
            tokens.sum(axis=1),
            tokens.max(axis=1),
            (tokens * kept).sum(axis=1),
            (tokens * tokens).sum(axis=1) / 1000.0,
        ],
        axis=1,
    )


def _correlated(rng: np.random.Generator, count: int, sd: float, correlation: float, tail_df: float) -> Array:
    """An AR(1) series of this sd whose innovations have Student's tails."""
    scale = math.sqrt((tail_df - 2.0) / tail_df) if tail_df > 2.0 else 1.0
    shocks = rng.standard_t(tail_df, count) * scale * sd
    shocks[1:] *= math.sqrt(1.0 - correlation**2)
    level, out = 0.0, np.empty(count)
    for i, shock in enumerate(shocks.tolist()):
        level = correlation * level + shock
        out[i] = level
    return out


def _chance(world: World, updates: int, seed: int, work: dict[str, Any]) -> dict[str, Any]:
    """Noise, visits and faults by update. Every topic has a generator of its own."""
    noise, faults, visits, costs = world.noise, world.faults, world.visits, world.costs
    steps = np.arange(updates)

    def series(topic: str, sd: float, correlation: float) -> Array:
        return _correlated(_rng(seed, topic), updates, sd, correlation, noise.tail_df)

    level = series("level", noise.level_sd, noise.level_correlation)
    largest = math.log(LARGEST_DEVIATION)
    multipliers = {}
    for name, drift in (
        ("generation", world.ageing.generation_time),
        ("training", world.ageing.training_time),
    ):
        own = series(f"{name} time", noise.phase_sd, noise.phase_correlation)
        factor = np.exp(np.clip(level + own, -largest, largest) + drift * steps)
        factor[: len(noise.slow_start)] *= np.array(noise.slow_start[:updates])
        multipliers[f"{name}_time"] = factor.tolist()
        power = series(f"{name} power", noise.power_sd, noise.power_correlation)
        multipliers[f"{name}_power"] = np.exp(power + world.ageing.power * steps).tolist()
    # What is short varies more: its noise is a fixed time rather than a fixed share.
    small = {
        name: (seconds * np.exp(_rng(seed, name).normal(0.0, 5.0 * noise.phase_sd, updates))).tolist()
        for name, seconds in (
            ("reward_s", costs.reward_s),
            ("refit_s", costs.refit_s),
            ("rest_s", costs.rest_s),
        )
    }
    straggles = _happens(seed, "straggler", updates, noise.straggler_share)
    extra = straggles * _rng(seed, "stuck").random(updates) * (noise.straggler_factor - 1.0)
    base = np.array(work["throughput_s"][:updates]) + np.array(work["latency_s"][:updates])
    sensitivity, lock_cost = np.ones((2, updates)), np.zeros(updates)
    for shift in world.shifts:
        sensitivity[0, shift.update :] *= shift.generation_sensitivity
        sensitivity[1, shift.update :] *= shift.training_sensitivity
        lock_cost[shift.update :] += shift.lock_cost
    starts = _happens(seed, "throttle", updates, faults.throttle_share / max(faults.throttle_updates, 1))
    throttled = np.zeros(updates, dtype=bool)
    for start in np.flatnonzero(starts).tolist():
        throttled[start : start + faults.throttle_updates] = True
    late = _rng(seed, "late by").integers(1, max(faults.late_max, 1) + 1, updates)
    delay = np.where(_happens(seed, "late", updates, faults.late_share), late, 0)
    delay[_happens(seed, "lost", updates, faults.lost_share)] = -1
    return {
        **multipliers,
        **small,
        "generation_sensitivity": sensitivity[0].tolist(),
        "training_sensitivity": sensitivity[1].tolist(),
        "lock_cost": lock_cost.tolist(),
        "straggling_s": (extra * base).tolist(),
        "validation_s": _every(updates, visits.validation_every, visits.validation_s),
        "checkpoint_s": _every(updates, visits.checkpoint_every, visits.checkpoint_s),
        "reward": (
            0.6 - 0.4 * np.exp(-steps / 100.0) + _rng(seed, "reward").normal(0.0, 0.02, updates)
        ).tolist(),
        "throttled": throttled.tolist(),
        "partial_energy": _happens(seed, "energy", updates, faults.partial_energy_share).tolist(),
        "missing_counts": _happens(seed, "counts", updates, faults.missing_counts_share).tolist(),
        "mixed": _happens(seed, "mixed", updates, faults.mixed_share).tolist(),
        "delay": delay.tolist(),
    }


def _happens(seed: int, topic: str, updates: int, share: float) -> NDArray[np.bool_]:
    """In which updates something of this probability happens."""
    return _rng(seed, topic).random(updates) < share


def _every(updates: int, every: int, seconds: float) -> list[float]:
    """Seconds of a visit by update: after every ``every`` updates, never for 0."""
    return [seconds if every and (i + 1) % every == 0 else 0.0 for i in range(updates)]
