"""Asynchronous updates with a rendezvous: the next batch is generated while this one is trained on (age 1)."""

from __future__ import annotations

from typing import Generic

from eerl_twin.machine import Setting
from eerl_twin.response import Value
from eerl_twin.step import Step, Work, larger, total
from eerl_twin.synchronous import lowered_for, repays


class Drained(Generic[Value]):
    """From refit end to refit end. The pool that arrives first waits, at the idle clock where that repays.

    In the update with index i batch i is consumed and batch i + 1 generated. Validation comes before both.
    """

    def __init__(self, work: Work) -> None:
        self._work = work

    def step(self, update: int, setting: Setting[Value]) -> Step[Value]:
        """The update with this index."""
        work, c, world = self._work, self._work.conditions, self._work.world
        generation_gpus, training_gpus = world.generation_gpus, world.training_gpus
        power = (c.generation_power[update] * generation_gpus, c.training_power[update] * training_gpus)
        generation = work.generation(update, update + 1, setting)
        training = work.training(update, update, setting)
        reward_s = c.reward_s[update] + 0.0 * setting.training_w
        training_s = total((seconds for seconds, _ in training.values()), reward_s)
        validation = work.validation(update, setting) if c.validation_s[update] else None
        visit_s = (validation[0] if validation else 0.0) + c.checkpoint_s[update]
        rendezvous_s = larger(generation[0], training_s)
        waits_s = (rendezvous_s - generation[0], rendezvous_s - training_s)
        waits_w = (
            lowered_for(
                repays(waits_s[0], world.idle_min_gap_s, setting),
                setting.generation_idle_w,
                setting.generation_wait_w,
            )
            * power[0],
            lowered_for(
                repays(waits_s[1], world.idle_min_gap_s, setting),
                setting.training_idle_w,
                setting.training_wait_w,
            )
            * power[1],
        )
        refit_s = c.refit_s[update] * setting.refit_slow
        own_w = (setting.generation_wait_w * power[0], setting.training_wait_w * power[1])
        phases = {
            "generation": (generation[0], generation[1] * generation_gpus),
            "reward": (reward_s, reward_s * own_w[1]),
            **{name: (seconds, joules * training_gpus) for name, (seconds, joules) in training.items()},
            "refit": (
                refit_s,
                refit_s * (setting.generation_refit_w * power[0] + setting.training_refit_w * power[1]),
            ),
        }
        generation_j = phases["generation"][1] + waits_s[0] * waits_w[0]
        training_j = total(
            (phases[name][1] for name in training), reward_s * own_w[1] + waits_s[1] * waits_w[1]
        )
        if validation is not None:
            phases["validation"] = (validation[0], validation[1] * generation_gpus)
            generation_j = generation_j + phases["validation"][1]
            training_j = training_j + validation[0] * own_w[1]
        if c.checkpoint_s[update]:
            saved_s = c.checkpoint_s[update] + 0.0 * refit_s
            phases["checkpoint"] = (saved_s, saved_s * own_w[1])
            generation_j = generation_j + saved_s * own_w[0]
            training_j = training_j + saved_s * own_w[1]
        together_s = c.rest_s[update]
        generation_j = generation_j + refit_s * setting.generation_refit_w * power[0] + together_s * own_w[0]
        training_j = training_j + refit_s * setting.training_refit_w * power[1] + together_s * own_w[1]
        return Step(
            elapsed_s=visit_s + rendezvous_s + refit_s + together_s,
            energy_j=generation_j + training_j,
            phases=phases,
            generation_energy_j=generation_j,
            training_energy_j=training_j,
            generation_busy_s=generation[0] + (validation[0] if validation else 0.0),
            training_busy_s=training_s,
            generation_wait_s=waits_s[0],
            training_wait_s=waits_s[1],
            generation_arrival_s=visit_s + generation[0],
            training_arrival_s=visit_s + training_s,
        )
