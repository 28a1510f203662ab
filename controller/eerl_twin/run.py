"""A run: a world and a plan source, update by update, with what the governor would have done beside it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from eerl_controller import ClockPlan, Reason, State, UpdateRecord
from eerl_twin.conditions import Conditions, draw
from eerl_twin.inflight import InFlight
from eerl_twin.machine import Machine, Setting
from eerl_twin.recording import Recorder
from eerl_twin.timeline import timeline
from eerl_twin.world import World


class PlanSource(Protocol):
    """What decides the clocks: a Controller, or anything like it."""

    @property
    def plan(self) -> ClockPlan:
        """The plan wished for now."""
        ...

    def observe(self, record: UpdateRecord) -> ClockPlan:
        """Take one update in."""
        ...


class FixedPlan:
    """Holds the same clocks from the first update on; all None is the governor."""

    def __init__(
        self,
        generation_mhz: int | None = None,
        training_mhz: int | None = None,
        idle_mhz: int | None = None,
    ) -> None:
        self._plan = ClockPlan(0, generation_mhz, training_mhz, idle_mhz, Reason.POLICY_FIXED)

    @property
    def plan(self) -> ClockPlan:
        """The one plan."""
        return self._plan

    def observe(self, record: UpdateRecord) -> ClockPlan:
        """Nothing changes the plan."""
        return self._plan


@dataclass(frozen=True, slots=True)
class Totals:
    """A stretch of updates against the governor on the same work and noise, as fractions.

    ``energy_saving`` is per valid training token (the tokens are the same); ``throughput_change`` is negative
    when slower.
    """

    energy_saving: float
    throughput_change: float
    updates: int


@dataclass(slots=True)
class Run:
    """What happened, by update: records as written, plans in force (None: mixed), states, and the truth."""

    world: World
    seed: int
    records: list[UpdateRecord] = field(default_factory=list)
    plans: list[ClockPlan | None] = field(default_factory=list)
    states: list[State | None] = field(default_factory=list)
    elapsed_s: list[float] = field(default_factory=list)
    energy_j: list[float] = field(default_factory=list)
    governor_elapsed_s: list[float] = field(default_factory=list)
    governor_energy_j: list[float] = field(default_factory=list)

    @property
    def lock_update(self) -> int | None:
        """The index of the first update after the controller locked; None when it never did."""
        return self.states.index(State.LOCKED) + 1 if State.LOCKED in self.states else None

    @property
    def clock_changes(self) -> int:
        """How often the clocks in force changed from one update to the next."""
        seen = [
            (plan.generation_mhz, plan.training_mhz, plan.idle_mhz) for plan in self.plans if plan is not None
        ]
        return sum(one != other for one, other in pairwise(seen))

    def totals(self, first: int = 0, last: int | None = None) -> Totals | None:
        """The truth from one update index up to, not including, another; None for no updates."""
        part = slice(first, last)
        elapsed_s, energy_j = sum(self.elapsed_s[part]), sum(self.energy_j[part])
        if elapsed_s <= 0.0:
            return None
        return Totals(
            energy_saving=1.0 - energy_j / sum(self.governor_energy_j[part]),
            throughput_change=sum(self.governor_elapsed_s[part]) / elapsed_s - 1.0,
            updates=len(self.elapsed_s[part]),
        )


class Settings:
    """Settings by clocks, each worked out once, with and without throttling."""

    def __init__(self, world: World) -> None:
        self._machines = (Machine(world), Machine(world, world.faults.throttle_factor))
        self._known: dict[tuple[int | None, int | None, int | None, bool], Setting[float]] = {}

    def of(
        self, generation_mhz: int | None, training_mhz: int | None, idle_mhz: int | None, throttled: bool
    ) -> Setting[float]:
        """The setting of these clocks in MHz."""
        key = (generation_mhz, training_mhz, idle_mhz, throttled)
        if key not in self._known:
            self._known[key] = self._machines[throttled].one(generation_mhz, training_mhz, idle_mhz)
        return self._known[key]


def simulate(
    world: World, source: PlanSource, updates: int, seed: int, *, conditions: Conditions | None = None
) -> Run:
    """Run ``updates`` updates of a world under a plan source.

    The plan in force is the one wished for at the update's begin, ``world.plan_lag`` updates before. A mixed
    update generates under the old plan and trains under the new one. Late records arrive in order, after the
    update that the delay names; lost ones never. ``conditions`` are drawn from the seed unless given.
    """
    conditions = conditions or draw(world, updates, seed)
    actual, governor = timeline(world, conditions), timeline(world, conditions)
    recorder = Recorder(world, conditions, actual if isinstance(actual, InFlight) else None)
    settings = Settings(world)
    run = Run(world, seed)
    wishes: deque[ClockPlan] = deque(maxlen=world.plan_lag + 1)
    underway: deque[tuple[int, UpdateRecord]] = deque()
    previous = source.plan
    for update in range(updates):
        wishes.append(source.plan)
        plan, throttled = wishes[0], conditions.throttled[update]
        mixed = plan.plan_id != previous.plan_id and conditions.mixed[update]
        generation_mhz = previous.generation_mhz if mixed else plan.generation_mhz
        setting = settings.of(generation_mhz, plan.training_mhz, plan.idle_mhz, throttled)
        step = actual.step(update, setting)
        reference = governor.step(update, settings.of(None, None, None, throttled))
        run.elapsed_s.append(step.elapsed_s)
        run.energy_j.append(step.energy_j)
        run.governor_elapsed_s.append(reference.elapsed_s)
        run.governor_energy_j.append(reference.energy_j)
        run.plans.append(None if mixed else plan)
        record = recorder.record(
            update, step, setting, (generation_mhz, plan.training_mhz), None if mixed else plan.plan_id, plan
        )
        run.records.append(record)
        if conditions.delay[update] >= 0:
            underway.append((update + conditions.delay[update], record))
        while underway and underway[0][0] <= update:
            source.observe(underway.popleft()[1])
        run.states.append(getattr(source, "state", None))
        previous = plan
    return run
