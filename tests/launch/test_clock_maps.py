"""Which clock a pool of its own should have when (contract 3.7: clock map, idle clock)."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_controller.records import ClockPlan
from eerl_launch.clock_maps import ClockMap, clock_map
from eerl_launch.modes import Mode


class Why(Enum):
    TEST = "test"


PLAN = ClockPlan(1, 1500, 1200, 345, Why.TEST)
GOVERNOR = ClockPlan(0, None, None, None, Why.TEST)


class Watch:
    """Plays phases into a map and notes what the pools should have after each step."""

    def __init__(self, mode: Mode) -> None:
        self.map: ClockMap = clock_map(mode)
        self.t_s = 0.0

    def step(self, *edges: str, after_s: float = 0.0) -> tuple[int | None, int | None]:
        """Edges such as ``+generation`` and ``-generation``, ``after_s`` seconds later."""
        self.t_s += after_s
        for edge in edges:
            if edge[0] == "+":
                self.map.begins(edge[1:], self.t_s)
            else:
                self.map.ends(edge[1:], self.t_s, after_s)
        return self.clocks(PLAN)

    def clocks(self, plan: ClockPlan) -> tuple[int | None, int | None]:
        return self.map.wanted_mhz(plan, "generation"), self.map.wanted_mhz(plan, "training")


def turn(watch: Watch, length_s: float = 10.0, reward_s: float = 0.0) -> list[tuple[Any, Any]]:
    """One disaggregated update; the clocks after every step."""
    seen = [watch.step("+generation"), watch.step("-generation", after_s=length_s)]
    if reward_s:
        seen += [watch.step("+reward"), watch.step("-reward", after_s=reward_s)]
    seen += [watch.step("+training"), watch.step("-training", after_s=length_s)]
    return [*seen, watch.step("+refit"), watch.step("-refit", after_s=1.0)]


BOTH, TRAINER_IDLES, ENGINE_IDLES = (1500, 1200), (1500, 345), (345, 1200)


def test_pools_that_take_turns() -> None:
    """A pool idles while the other works, and has its clock back when the other's phase ends; refit under both."""
    watch = Watch(Mode.DISAGGREGATED_SYNC)

    first, second, third = (turn(watch) for _ in range(3))

    assert first == [BOTH] * 6, "how long waits are is not known yet"
    assert second == third == [TRAINER_IDLES, ENGINE_IDLES, ENGINE_IDLES, BOTH, BOTH, BOTH]


def test_short_waits_do_not_switch() -> None:
    """A wait that does not repay two switches keeps the pool's own clock."""
    watch = Watch(Mode.DISAGGREGATED_SYNC)

    assert [turn(watch, length_s=0.4) for _ in range(4)] == [[BOTH] * 6] * 4


def test_rewards_never_run_under_the_idle_clock() -> None:
    """A reward model may be on the generation pool: where rewards follow generation, waiting begins after them."""
    watch = Watch(Mode.DISAGGREGATED_SYNC)
    turn(watch, reward_s=2.0)
    turn(watch, reward_s=2.0)

    seen = turn(watch, reward_s=2.0)

    assert seen == [TRAINER_IDLES, BOTH, BOTH, ENGINE_IDLES, ENGINE_IDLES, BOTH, BOTH, BOTH]


def test_several_rounds_of_generation() -> None:
    """Dynamic sampling: each round has the generation clock and sends the trainer waiting."""
    watch = Watch(Mode.DISAGGREGATED_SYNC)
    turn(watch)
    turn(watch)

    assert watch.step("+generation") == TRAINER_IDLES
    assert watch.step("-generation", after_s=5.0) == ENGINE_IDLES
    assert watch.step("+generation", after_s=2.0) == TRAINER_IDLES
    assert watch.step("-generation", after_s=5.0) == ENGINE_IDLES


@pytest.mark.parametrize("phase", ["logprob", "critic", "training"])
def test_own_phase_ends_a_wait(phase: str) -> None:
    """Whatever went missing, a pool's own phase has its own clock."""
    watch = Watch(Mode.DISAGGREGATED_SYNC)
    turn(watch)
    turn(watch)
    assert watch.step("+generation") == TRAINER_IDLES

    assert watch.step(f"+{phase}", after_s=5.0)[1] == 1200
    watch.step("-generation", "-training")
    assert watch.step("+validation")[0] == 1500


def meet(watch: Watch, generation_s: float, training_s: float) -> list[tuple[Any, Any]]:
    """One drained update; the clocks after every step."""
    first, second = sorted([(generation_s, "generation"), (training_s, "training")])
    return [
        watch.step("+generation", "+training"),
        watch.step(f"-{first[1]}", after_s=first[0]),
        watch.step(f"-{second[1]}", after_s=second[0] - first[0]),
        watch.step("+refit"),
        watch.step("-refit", after_s=1.0),
    ]


def test_who_arrives_first_idles() -> None:
    """Drained: the pool that is done first idles until the refit begins, the other one never."""
    watch = Watch(Mode.ASYNC_DRAINED)

    assert meet(watch, 10.0, 30.0) == [BOTH] * 5
    assert meet(watch, 10.0, 30.0) == [BOTH, ENGINE_IDLES, ENGINE_IDLES, BOTH, BOTH]
    assert meet(watch, 30.0, 10.0) == [BOTH] * 5
    assert meet(watch, 30.0, 10.0) == [BOTH, TRAINER_IDLES, TRAINER_IDLES, BOTH, BOTH]


def test_nobody_idles_in_flight() -> None:
    """In flight no phase switches anything."""
    watch = Watch(Mode.ASYNC_INFLIGHT)

    for _ in range(4):
        assert meet(watch, 10.0, 30.0) == [BOTH] * 5
        assert watch.step("+pause", "-pause") == BOTH


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode.separate])
def test_governor_plan_has_no_clocks(mode: Mode) -> None:
    """A plan without clocks leaves waiting pools to the governor too."""
    watch = Watch(mode)
    for _ in range(3):
        turn(watch)
        watch.step("+generation")

        assert watch.clocks(GOVERNOR) == (None, None)


EDGES = st.tuples(
    st.sampled_from("+-"),
    st.sampled_from(
        ["generation", "validation", "logprob", "training", "critic", "reward", "refit", "pause"]
    ),
).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    mode=st.sampled_from([mode for mode in Mode if mode.separate]),
    steps=st.lists(st.tuples(EDGES, st.floats(0.0, 20.0)), max_size=60),
)
def test_own_phases_never_begin_under_the_idle_clock(mode: Mode, steps: list[tuple[str, float]]) -> None:
    """Whatever markers come, a phase that has just begun runs under its own clock, never under the idle one."""
    watch = Watch(mode)
    own = {"generation": 0, "validation": 0, "logprob": 1, "training": 1, "critic": 1}
    for edge, after_s in steps:
        clocks = watch.step(edge, after_s=after_s)
        assert clocks[0] in (1500, 345) and clocks[1] in (1200, 345)
        if edge[0] == "+" and edge[1:] in own:
            assert clocks[own[edge[1:]]] == (1500, 1200)[own[edge[1:]]]
        if edge == "+refit" and mode is Mode.ASYNC_DRAINED:
            assert clocks == BOTH
