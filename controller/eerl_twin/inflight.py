"""Asynchronous updates without a rendezvous: generation goes on across updates and pauses only for each refit.

The queue in numbers. Generation does one governor second of work a second, divided by its slowdown. Slots that
become free take the next batch, so batch j is begun while batch j - 1 is worked on, but not before batch
j - ``max_policy_age`` is the one being consumed; further ahead generation waits. A batch can be consumed when all
work up to it is done and when its longer responses have had their latency (``latency_share``: the very longest
are carried into a later batch).
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, Generic

import numpy as np

from eerl_twin.machine import Setting
from eerl_twin.response import Value
from eerl_twin.step import Step, Work, choose, larger, smaller, total


class InFlight(Generic[Value]):
    """From pause end to pause end; remembers how far generation is. Steps come in order, each index once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        c, lengths, costs = work.conditions, work.world.lengths, work.world.costs
        # Refilled slots never thin out, so the decode step's own cost is shared by a whole batch of responses.
        shared_s = costs.per_longest_s / lengths.responses
        work_s = [busy + shared_s * tokens for busy, tokens in zip(c.throughput_s, c.generated, strict=True)]
        #: Work up to and including a batch, governor seconds.
        self.done_after_s = list(accumulate(work_s))
        step_s = costs.per_longest_s + costs.per_generated_s * lengths.responses
        self._latency_s = [step_s * lengths.latency_share * longest for longest in c.longest]
        self._position: Any = 0.0
        self._passed: Any = 0.0
        #: By batch not yet consumed: decode time that had passed when it was begun; infinite until then.
        self._begun: dict[int, Any] = {0: 0.0}

    def step(self, update: int, setting: Setting[Value]) -> Step[Value]:
        """The update with this index."""
        work, c, world = self._work, self._work.conditions, self._work.world
        power = (
            c.generation_power[update] * world.generation_gpus,
            c.training_power[update] * world.training_gpus,
        )
        slow = work.generation_slow(update, setting)
        zero = 0.0 * slow
        position, passed = self._position + zero, self._passed + zero
        done_s = self.done_after_s
        begun = smaller(self._begun.pop(update) + zero, passed)
        # A stuck response delays its own batch; the others go on being generated.
        latency_s = self._latency_s[update] + c.straggling_s[update]
        wanting_s = larger(done_s[update] - position, begun + latency_s - passed)
        data_wait_s = larger(wanting_s, zero) * slow
        training = work.training(update, update, setting)
        reward_s = c.reward_s[update] + zero
        training_s = total((seconds for seconds, _ in training.values()), reward_s)
        running_s = data_wait_s + training_s
        decoded_s = running_s / slow
        position_after = smaller(position + decoded_s, done_s[update + world.max_policy_age] + zero)
        started = self._begin(update, position, passed, position_after)
        busy_s = (position_after - position) * slow
        idle_s = larger(running_s - busy_s, zero)
        refit_s = c.refit_s[update] * setting.refit_slow
        validation = work.validation(update, setting) if c.validation_s[update] else None
        visit_s = (validation[0] if validation else 0.0) + c.checkpoint_s[update] + c.rest_s[update]
        own_w = (setting.generation_wait_w * power[0], setting.training_wait_w * power[1])
        phases = {
            "generation": (busy_s, busy_s * setting.generation_w * power[0]),
            "reward": (reward_s, reward_s * own_w[1]),
            **{name: (seconds, joules * world.training_gpus) for name, (seconds, joules) in training.items()},
            "refit": (
                refit_s,
                refit_s * (setting.generation_refit_w * power[0] + setting.training_refit_w * power[1]),
            ),
        }
        generation_j = phases["generation"][1] + idle_s * own_w[0]
        generation_j = generation_j + refit_s * setting.generation_refit_w * power[0] + visit_s * own_w[0]
        training_j = total(
            (phases[name][1] for name in training), (reward_s + data_wait_s + visit_s) * own_w[1]
        )
        training_j = training_j + refit_s * setting.training_refit_w * power[1]
        if validation is not None:
            phases["validation"] = (validation[0], validation[1] * world.generation_gpus)
            generation_j = generation_j + phases["validation"][1] - validation[0] * own_w[0]
        if c.checkpoint_s[update]:
            saved_s = c.checkpoint_s[update] + 0.0 * slow
            phases["checkpoint"] = (saved_s, saved_s * own_w[1])
        elapsed_s = running_s + refit_s + visit_s
        self._position, self._passed = position_after, passed + decoded_s
        return Step(
            elapsed_s=elapsed_s,
            energy_j=generation_j + training_j,
            phases=phases,
            generation_energy_j=generation_j,
            training_energy_j=training_j,
            generation_busy_s=busy_s,
            training_busy_s=training_s,
            generation_wait_s=idle_s,
            training_wait_s=data_wait_s,
            progress=(position, position_after),
            started=started,
        )

    def _begin(self, update: int, position: Value, passed: Value, position_after: Value) -> list[int]:
        """Begin the batches whose turn it is; returns those begun in every setting for the first time."""
        started = []
        for batch in range(update + 1, update + max(self._work.world.max_policy_age, 1) + 1):
            turn_s = self.done_after_s[batch - 2] if batch > 1 else 0.0
            before = self._begun.get(batch, math.inf) + 0.0 * passed
            now = passed + larger(turn_s - position, 0.0 * passed)
            after = choose((before == math.inf) & (turn_s <= position_after), now, before)
            self._begun[batch] = after
            if np.all(before == math.inf) and np.all(after < math.inf):
                started.append(batch)
        return started
