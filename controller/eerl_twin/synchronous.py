"""Updates in which generation and training take turns: on the same GPUs, or on a pool each."""

from __future__ import annotations

from typing import Generic

from eerl_twin.machine import Setting
from eerl_twin.response import Value
from eerl_twin.step import Step, Work, choose, total


class Colocated(Generic[Value]):
    """One pool: generation and validation under the generation clock, all else under the training clock.

    Reward keeps generation's clock; refit, checkpoint and what is unmarked keep training's (contract 3.7).
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._gpus = work.world.generation_gpus

    def step(self, update: int, setting: Setting[Value]) -> Step[Value]:
        """The update with this index."""
        work, c, gpus = self._work, self._work.conditions, self._gpus
        power = c.training_power[update]
        zero = 0.0 * setting.generation_w
        phases = {"generation": work.generation(update, update, setting)}
        reward_s = c.reward_s[update] + zero
        phases["reward"] = (reward_s, reward_s * setting.generation_wait_w * c.generation_power[update])
        phases.update(work.training(update, update, setting))
        refit_s = c.refit_s[update] * setting.refit_slow
        phases["refit"] = (refit_s, refit_s * setting.training_refit_w * power)
        if c.checkpoint_s[update]:
            checkpoint_s = c.checkpoint_s[update] + zero
            phases["checkpoint"] = (checkpoint_s, checkpoint_s * setting.training_wait_w * power)
        if c.validation_s[update]:
            phases["validation"] = work.validation(update, setting)
        phases = {name: (seconds, joules * gpus) for name, (seconds, joules) in phases.items()}
        rest_s = c.rest_s[update] + work.world.costs.switch_s * setting.switches
        rest_j = rest_s * setting.training_wait_w * power * gpus
        own = {"generation": ("generation", "validation"), "training": ("logprob", "critic", "training")}
        busy = {pool: [phases[name] for name in names if name in phases] for pool, names in own.items()}
        return Step(
            elapsed_s=total((seconds for seconds, _ in phases.values()), rest_s),
            energy_j=total((joules for _, joules in phases.values()), rest_j),
            phases=phases,
            generation_energy_j=total((joules for _, joules in busy["generation"]), zero),
            training_energy_j=total((joules for _, joules in busy["training"]), zero),
            generation_busy_s=total((seconds for seconds, _ in busy["generation"]), zero),
            training_busy_s=total((seconds for seconds, _ in busy["training"]), zero),
            generation_wait_s=zero,
            training_wait_s=zero,
        )


class Disaggregated(Generic[Value]):
    """Two pools that take turns: each waits, at the idle clock where the gap repays it, for the other.

    Refit is work for both. The idle clock is lifted when the predecessor's phase ends and costs one switch.
    """

    def __init__(self, work: Work) -> None:
        self._work = work

    def step(self, update: int, setting: Setting[Value]) -> Step[Value]:
        """The update with this index."""
        work, c, world = self._work, self._work.conditions, self._work.world
        generation = work.generation(update, update, setting)
        training = work.training(update, update, setting)
        reward_s = c.reward_s[update] + 0.0 * setting.generation_w
        validation = work.validation(update, setting) if c.validation_s[update] else None
        checkpoint_s = c.checkpoint_s[update]
        refit_s = c.refit_s[update] * setting.refit_slow
        training_s = total((seconds for seconds, _ in training.values()), 0.0 * setting.training_w)
        # Generation waits while the others reward, train and save; training while the others generate.
        generation_gap_s = reward_s + training_s + checkpoint_s
        training_gap_s = generation[0] + reward_s + (validation[0] if validation else 0.0)
        dropped = [repays(gap, world.idle_min_gap_s, setting) for gap in (generation_gap_s, training_gap_s)]
        waits_w = (
            lowered_for(dropped[0], setting.generation_idle_w, setting.generation_wait_w)
            * c.generation_power[update]
            * world.generation_gpus,
            lowered_for(dropped[1], setting.training_idle_w, setting.training_wait_w)
            * c.training_power[update]
            * world.training_gpus,
        )
        parts: dict[str, tuple[Value, Value, Value]] = {
            "generation": (generation[0], generation[1] * world.generation_gpus, generation[0] * waits_w[1]),
            "reward": (reward_s, reward_s * waits_w[0], reward_s * waits_w[1]),
        }
        for name, (seconds, joules) in training.items():
            parts[name] = (seconds, seconds * waits_w[0], joules * world.training_gpus)
        parts["refit"] = (
            refit_s,
            refit_s * setting.generation_refit_w * c.generation_power[update] * world.generation_gpus,
            refit_s * setting.training_refit_w * c.training_power[update] * world.training_gpus,
        )
        if validation is not None:
            parts["validation"] = (
                validation[0],
                validation[1] * world.generation_gpus,
                validation[0] * waits_w[1],
            )
        if checkpoint_s:
            saved_s = checkpoint_s + 0.0 * reward_s
            own_w = setting.training_wait_w * c.training_power[update] * world.training_gpus
            parts["checkpoint"] = (saved_s, saved_s * waits_w[0], saved_s * own_w)
        rest_s = c.rest_s[update] + world.costs.switch_s * (dropped[0] + dropped[1])
        rest_w = (
            setting.generation_wait_w * c.generation_power[update] * world.generation_gpus,
            setting.training_wait_w * c.training_power[update] * world.training_gpus,
        )
        generation_j = total((part[1] for part in parts.values()), rest_s * rest_w[0])
        training_j = total((part[2] for part in parts.values()), rest_s * rest_w[1])
        return Step(
            elapsed_s=total((part[0] for part in parts.values()), rest_s),
            energy_j=generation_j + training_j,
            phases={name: (part[0], part[1] + part[2]) for name, part in parts.items()},
            generation_energy_j=generation_j,
            training_energy_j=training_j,
            generation_busy_s=generation[0] + (validation[0] if validation else 0.0),
            training_busy_s=training_s,
            generation_wait_s=generation_gap_s,
            training_wait_s=training_gap_s,
        )


def repays(gap_s: Value, least_s: float, setting: Setting[Value]) -> Value:
    """1 where a gap is long enough to lower the clock for it and the plan has an idle clock, else 0."""
    return choose(gap_s >= least_s, 0.0 * gap_s + float(setting.idles), 0.0 * gap_s)


def lowered_for(share: Value, one: Value, other: Value) -> Value:
    """``one`` where the share is 1 and ``other`` where it is 0."""
    return other + share * (one - other)
