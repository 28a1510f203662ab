"""One update's outcome, and the parts that several execution modes share.

All of it works on one setting (floats) and on many settings at once (arrays): the oracle and the running twin
are the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from eerl_twin.conditions import Conditions
from eerl_twin.machine import Setting
from eerl_twin.response import Value
from eerl_twin.world import World


@dataclass(slots=True)
class Step(Generic[Value]):
    """What one update took: seconds and joules, by phase and by pool.

    ``phases`` holds (seconds, joules) and joules are of all GPUs in the synchronous modes, of the phase's own
    pool in the asynchronous ones. Arrivals are seconds from the update's start; progress is of in-flight only.
    """

    elapsed_s: Value
    energy_j: Value
    phases: Mapping[str, tuple[Value, Value]]
    generation_energy_j: Value
    training_energy_j: Value
    generation_busy_s: Value
    training_busy_s: Value
    generation_wait_s: Value
    training_wait_s: Value
    generation_arrival_s: Value | None = None
    training_arrival_s: Value | None = None
    #: Generation work done before and after the update, governor seconds.
    progress: tuple[Value, Value] | None = None
    #: Batches whose first response was started in this update.
    started: list[int] = field(default_factory=list)


def larger(a: Value, b: Value) -> Value:
    """The larger, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        both: Any = np.maximum(a, b)
        return both  # type: ignore[no-any-return]
    return a if a >= b else b


def smaller(a: Value, b: Value) -> Value:
    """The smaller, element by element."""
    return -larger(-a, -b)


def choose(condition: bool | NDArray[np.bool_], one: Value, other: Value) -> Value:
    """``one`` where the condition holds and ``other`` elsewhere."""
    if isinstance(condition, np.ndarray):
        either: Any = np.where(condition, one, other)
        return either  # type: ignore[no-any-return]
    return one if condition else other


def total(values: Iterable[Value], start: Value) -> Value:
    """The sum, element by element."""
    for value in values:
        start = start + value
    return start


def _changed(slow: Value, sensitivity: float, ratio: Value) -> Value:
    """A slowdown whose excess has been multiplied, never more than the clocks' own ratio."""
    return slow if sensitivity == 1.0 else smaller(1.0 + (slow - 1.0) * sensitivity, larger(slow, ratio))


class Work:
    """Busy phases of a world under given conditions: seconds and joules per GPU at a setting."""

    def __init__(self, world: World, conditions: Conditions) -> None:
        self.world = world
        self.conditions = conditions

    def generation_slow(self, update: int, setting: Setting[Value]) -> Value:
        """How much longer than its governor work generation takes in this update."""
        c = self.conditions
        slow = _changed(setting.generation_slow, c.generation_sensitivity[update], setting.generation_ratio)
        offset = self.world.lock_offset_generation + c.lock_cost[update]
        return slow * (1.0 + offset * setting.generation_locked) * c.generation_time[update]

    def generation(self, update: int, batch: int, setting: Setting[Value]) -> tuple[Value, Value]:
        """Generating a batch: its tail, when few responses are left, draws less; a straggler only waits."""
        c, tail_load = self.conditions, self.world.power.tail_load
        slow = self.generation_slow(update, setting)
        tail_s = c.latency_s[batch] * slow
        busy_s = c.throughput_s[batch] * slow
        stuck_s = c.straggling_s[update]
        waits_w = setting.generation_wait_w
        joules = setting.generation_w * (busy_s + tail_load * tail_s)
        joules = joules + waits_w * ((1.0 - tail_load) * tail_s + stuck_s)
        return busy_s + tail_s + stuck_s, joules * c.generation_power[update]

    def training(self, update: int, batch: int, setting: Setting[Value]) -> dict[str, tuple[Value, Value]]:
        """Log-prob, critic and training on a batch, which all run under the training clock."""
        c, costs = self.conditions, self.world.costs
        slow = _changed(setting.training_slow, c.training_sensitivity[update], setting.training_ratio)
        offset = self.world.lock_offset_training + c.lock_cost[update]
        slow = slow * (1.0 + offset * setting.training_locked)
        whole_s = c.training_s[batch] * slow * c.training_time[update]
        watts = setting.training_w * c.training_power[update]
        shares = {
            "logprob": costs.logprob_share,
            "critic": costs.critic_share,
            "training": 1.0 - costs.logprob_share - costs.critic_share,
        }
        return {
            name: (whole_s * share, whole_s * share * watts) for name, share in shares.items() if share > 0.0
        }

    def validation(self, update: int, setting: Setting[Value]) -> tuple[Value, Value]:
        """Validation: generation under the generation clock."""
        seconds = self.conditions.validation_s[update] * self.generation_slow(update, setting)
        return seconds, seconds * setting.generation_w * self.conditions.generation_power[update]
