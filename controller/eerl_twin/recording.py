"""From an update's outcome to the record that a session would have written (contract 3.7)."""

from __future__ import annotations

import numpy as np

from eerl_controller import ClockPlan, ExecutionMode, PhaseRecord, PoolRecord, UpdateRecord
from eerl_twin.conditions import Conditions
from eerl_twin.inflight import InFlight
from eerl_twin.machine import Setting
from eerl_twin.step import Step
from eerl_twin.world import SYNCHRONOUS, World


class Recorder:
    """Writes the records of one run; updates are numbered from 1."""

    def __init__(self, world: World, conditions: Conditions, queue: InFlight[float] | None) -> None:
        self._world = world
        self._conditions = conditions
        self._queue = queue
        #: In-flight, by batch not yet consumed: update and plan under which it was begun.
        self._begun: dict[int, tuple[int, int]] = {}
        self._tokens = np.cumsum([0, *conditions.generated]) if queue else np.zeros(1)

    def record(
        self,
        update: int,
        step: Step[float],
        setting: Setting[float],
        clocks: tuple[int | None, int | None],
        plan_id: int | None,
        wished: ClockPlan,
    ) -> UpdateRecord:
        """The record of the update with this index; ``clocks`` and ``plan_id`` are of what was in force."""
        c, world = self._conditions, self._world
        unknown = c.partial_energy[update]
        flags = [
            name
            for name, is_so in (
                ("validation", c.validation_s[update] > 0.0),
                ("checkpoint", c.checkpoint_s[update] > 0.0),
                ("hardware_slowdown", c.throttled[update]),
                ("partial_energy", unknown),
            )
            if is_so
        ]
        asynchronous = world.mode not in SYNCHRONOUS
        counts, age, oldest = self._work(update, step, wished)
        return UpdateRecord(
            update=update + 1,
            plan_id=plan_id,
            elapsed_s=step.elapsed_s,
            energy_j=None if unknown else step.energy_j,
            phases={
                name: PhaseRecord(elapsed_s=seconds, energy_j=None if unknown else joules)
                for name, (seconds, joules) in step.phases.items()
            },
            pools={
                "generation": PoolRecord(
                    requested_mhz=clocks[0],
                    achieved_mhz=setting.generation_mhz,
                    energy_j=None if unknown else step.generation_energy_j,
                    busy_s=step.generation_busy_s,
                    wait_s=step.generation_wait_s,
                ),
                "training": PoolRecord(
                    requested_mhz=clocks[1],
                    achieved_mhz=setting.training_mhz,
                    energy_j=None if unknown else step.training_energy_j,
                    busy_s=step.training_busy_s,
                    wait_s=step.training_wait_s,
                ),
            },
            generated_tokens=counts[0],
            longest_generated_tokens=counts[1],
            valid_tokens=None if c.missing_counts[update] else c.valid[update],
            longest_consumed_tokens=None if c.missing_counts[update] else c.longest[update],
            policy_age_max=age,
            oldest_request_plan_id=oldest,
            generation_arrival_s=step.generation_arrival_s,
            training_arrival_s=step.training_arrival_s,
            generation_busy_fraction=step.generation_busy_s / step.elapsed_s if asynchronous else None,
            training_busy_fraction=step.training_busy_s / step.elapsed_s if asynchronous else None,
            remaining_updates=c.updates - update - 1 if world.tells_remaining else None,
            reward=c.reward[update] - world.staleness_cost * (age or 0.0),
            flags=frozenset(flags),
        )

    def _work(
        self, update: int, step: Step[float], wished: ClockPlan
    ) -> tuple[tuple[int | None, int | None], float | None, int | None]:
        """Generated tokens and the longest of them, policy age and oldest plan of what this update did."""
        counts, age, oldest = self._generated(update, step, wished)
        return ((None, None) if self._conditions.missing_counts[update] else counts), age, oldest

    def _generated(
        self, update: int, step: Step[float], wished: ClockPlan
    ) -> tuple[tuple[int, int], float | None, int | None]:
        c = self._conditions
        if self._world.mode in SYNCHRONOUS:
            return (c.generated[update], c.longest[update]), None, None
        if self._world.mode is ExecutionMode.ASYNC_DRAINED:
            return (c.generated[update + 1], c.longest[update + 1]), 1.0, None
        assert self._queue is not None and step.progress is not None
        begun_in, begun_under = self._begun.pop(update, (update, wished.plan_id))
        for batch in step.started:
            self._begun[batch] = (update, wished.plan_id)
        ends_s = [0.0, *self._queue.done_after_s]
        first, last = np.interp(step.progress, ends_s, self._tokens)
        # The longest of the batches that became whole in this update; of the latest whole one when none did.
        bounds = np.searchsorted(self._queue.done_after_s, step.progress, side="right").tolist()
        longest = max(c.longest[min(bounds[0], max(bounds[1] - 1, 0)) : max(bounds[1], 1)])
        return (round(float(last - first)), longest), float(update - begun_in), begun_under
