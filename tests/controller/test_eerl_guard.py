"""The learning guard: what training learns from is compared with the governor's; what fails is not chosen again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from controller.worlds import DRAINED, INFLIGHT, world

from eerl_controller import Controller, ExecutionMode, Reason, Settings, UpdateRecord
from eerl_controller.bayes.guard import LEAST_GOVERNOR, LEAST_UPDATES, Guard
from eerl_controller.bayes.pool_menu import PoolMenu
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_twin import simulate

LOW = Pair(1500, 1200)


def fed(governor: dict[str, Any], own: dict[str, Any], updates: int = LEAST_UPDATES) -> Guard:
    """A guard after updates with these fields under the governor and under lowered clocks."""
    guard = Guard(1980.0)
    for number in range(LEAST_GOVERNOR):
        guard.add(GOVERNOR, UpdateRecord(update=number, **governor))
    for number in range(updates):
        guard.add(LOW, UpdateRecord(update=number, **own))
    return guard


@pytest.mark.parametrize(
    ("governor", "own", "word"),
    [
        ({"policy_age_max": 2.0}, {"policy_age_max": 3.5}, "policy age"),
        (
            {"generated_tokens": 1000, "valid_tokens": 950},
            {"generated_tokens": 1000, "valid_tokens": 800},
            "used share",
        ),
        ({"reward": 0.5}, {"reward": 0.4}, "reward"),
        ({"reward": -0.5}, {"reward": -0.6}, "reward"),
    ],
)
def test_what_is_beyond_its_tolerance_fails(governor: Any, own: Any, word: str) -> None:
    """Older, fewer or worse responses, each by more than is tolerated, under this setting and no other."""
    guard = fed(governor, own)

    assert word in (guard.verdict(LOW) or "")
    assert guard.verdict(Pair(1485, 1185)) is None


@pytest.mark.parametrize(
    ("governor", "own"),
    [
        ({"policy_age_max": 2.0}, {"policy_age_max": 3.0}),
        (
            {"generated_tokens": 1000, "valid_tokens": 950},
            {"generated_tokens": 1000, "valid_tokens": 870},
        ),
        ({"reward": 0.5}, {"reward": 0.48}),
        ({"reward": 0.5}, {"reward": 0.9}),
        ({}, {}),
    ],
)
def test_what_is_within_it_passes(governor: Any, own: Any) -> None:
    """A little worse, or better, or not known at all."""
    assert fed(governor, own).verdict(LOW) is None


def test_settings_that_are_alike_are_taken_together() -> None:
    """Half of the updates each under two settings a step apart; a third one, far off, does not count."""
    guard = fed({"reward": 0.5}, {"reward": 0.4}, LEAST_UPDATES // 2)
    other = Pair(1560, 1200)

    for number in range(LEAST_UPDATES // 2):
        guard.add(Pair(900, 900), UpdateRecord(update=number, reward=0.1))
    before = guard.verdict(LOW)
    for number in range(LEAST_UPDATES // 2):
        guard.add(other, UpdateRecord(update=number, reward=0.4))

    assert before is None
    assert guard.verdict(LOW) is not None
    assert guard.verdict(other) is not None


def test_a_reward_that_grows_while_the_job_learns_is_no_fault() -> None:
    """Much lower than the governor's is now, but not lower than it was before."""
    guard = fed({"reward": 0.3}, {"reward": 0.32})

    for number in range(LEAST_UPDATES):
        guard.add(GOVERNOR, UpdateRecord(update=number, reward=0.6))

    assert guard.verdict(LOW) is None


def test_few_updates_say_nothing() -> None:
    """One update less than is wanted."""
    guard = fed({"reward": 0.5}, {"reward": 0.1}, LEAST_UPDATES - 1)

    assert guard.verdict(LOW) is None


def test_a_failed_setting_bars_its_lower_clock_and_all_that_are_like_it() -> None:
    """Training at 1200 MHz is to blame: nothing up to a fifth above it, whatever generation does."""
    guard, menu = Guard(1980.0), PoolMenu([900, 1200, 1400, 1500, 1800], (1980.0, 1980.0), 1980.0, None)

    guard.fail(LOW)

    barred = guard.barred(menu)
    assert barred is not None
    for pair, is_barred in (
        (LOW, True),
        (Pair(None, 900), True),
        (Pair(1800, 1400), True),
        (Pair(900, 1500), False),
        (GOVERNOR, False),
    ):
        at = menu.index(pair)
        assert at is not None
        assert barred[at[1:]] == is_barred


def test_it_is_remembered() -> None:
    """Written and loaded, it says the same and bars the same."""
    guard, other = fed({"reward": 0.5}, {"reward": 0.4}), Guard(1980.0)
    guard.fail(Pair(None, 900))

    other.load(guard.to_dict())

    assert other.to_dict() == guard.to_dict()


class Stale:
    """A plan source whose records have old requests as soon as training runs below a clock."""

    def __init__(self, controller: Controller, below_mhz: int) -> None:
        self.controller = controller
        self.below_mhz = below_mhz
        self.failed_at: int | None = None
        self.after: list[int | None] = []

    @property
    def plan(self) -> Any:
        """The plan wished for now."""
        return self.controller.plan

    def observe(self, record: UpdateRecord) -> Any:
        """Hand a record on, with its age made worse where training is low."""
        low = record.pools["training"].requested_mhz or 9999
        if low < self.below_mhz:
            record = replace(record, policy_age_max=(record.policy_age_max or 0.0) + 3.0)
        plan = self.controller.observe(record)
        if plan.reason is Reason.LEARNING:
            self.failed_at = self.failed_at or record.update
        elif self.failed_at is not None:
            self.after.append(plan.training_mhz)
        return plan


@pytest.mark.parametrize("mode", [DRAINED, INFLIGHT])
def test_a_run_leaves_clocks_that_make_responses_old(mode: ExecutionMode) -> None:
    """Below 1200 MHz training gets responses that are three versions older: such clocks fail, and do not return."""
    place = world(mode)
    source = Stale(Controller(Settings(), mode, place.grid), below_mhz=1200)

    run = simulate(place, source, 400, 1)

    totals = run.totals()
    assert totals is not None
    assert totals.throughput_change > -0.02
    assert source.failed_at is not None
    limit_mhz = source.controller.snapshot()["strategy"]["guard"]["limits_mhz"][1]
    assert limit_mhz > 1000
    lowered = [mhz for mhz in source.after[-100:] if mhz is not None]
    assert lowered
    assert min(lowered) > limit_mhz
