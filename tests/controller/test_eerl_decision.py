"""The decision of policy eerl: the rest of a run as an alternation of the governor and one setting, and its hopes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from controller.examples import controller_for
from controller.workload import BALANCED, Job, play

from eerl_controller.bayes.alternation import lowered_updates
from eerl_controller.bayes.decision import SHARES, choose
from eerl_controller.bayes.effort import Effort
from eerl_controller.bayes.plan import Allowance, Choice, best_plan, within_limit
from eerl_controller.bayes.strategy import BayesSync
from eerl_controller.bayes.table import Hope, Table
from eerl_controller.clocks import GOVERNOR


def _strategy(updates: int = 90) -> BayesSync:
    """The strategy of a job that has been under way for some time."""
    controller = controller_for(BALANCED, policy="eerl")
    play(controller, Job(BALANCED, 3), updates, tell_remaining=True)
    strategy = controller._strategy
    assert isinstance(strategy, BayesSync)
    return strategy


@pytest.fixture(scope="module")
def strategy() -> BayesSync:
    """One for all that only look at it."""
    return _strategy()


def _table(strategy: BayesSync, hopeful: Hope | None = None) -> Table:
    assert strategy._menu is not None
    return Table(strategy._menu, strategy._learner, hopeful)


def _within(table: Table, allowance: Allowance, shares: Sequence[float]) -> set[tuple[int, int]]:
    """Places of shares and settings that are allowed together."""
    every = np.arange(table.saving.size)
    return set(zip(*within_limit(table, allowance, np.array(shares), every), strict=True))


def _allowance(strategy: BayesSync, **changes: object) -> Allowance:
    allowance = Allowance(0.02, strategy._learner.past_s, 200.0, (200.0,))
    return replace(allowance, **changes)  # type: ignore[arg-type]


def test_more_allowance_never_saves_less(strategy: BayesSync) -> None:
    """The value of the best plan rises with the limit, and without any only the governor is left."""
    table = _table(strategy)

    plans = [
        best_plan(table, _allowance(strategy, limit=limit), SHARES) for limit in (0.005, 0.01, 0.02, 0.04)
    ]

    values = [plan.worth if plan else 0.0 for plan in plans]
    assert values == sorted(values)
    assert values[-1] > values[1]
    assert best_plan(table, _allowance(strategy, limit=1e-6), SHARES) is None


def test_a_plan_must_hold_at_every_end(strategy: BayesSync) -> None:
    """What may end sooner too allows no setting that the later end alone would not."""
    table = _table(strategy)

    late = _within(table, _allowance(strategy), SHARES)
    both = _within(table, _allowance(strategy, ends=(20.0, 200.0)), SHARES)

    assert late >= both > set()


def test_the_governors_share_buys_deeper_clocks(strategy: BayesSync) -> None:
    """With a share for the governor settings are allowed that are too slow, or too little known, to be held alone."""
    table, allowance = _table(strategy), _allowance(strategy)

    alone, beside = ({at for _, at in _within(table, allowance, (share,))} for share in (0.0, 0.3))

    assert beside > alone > set()


def _worth(table: Table, share: float, at: tuple[int, ...]) -> float:
    return float((1.0 - share) * table.saving[at] + share * table.probe_saving[at])


def test_the_best_plan_is_the_largest_that_is_allowed(strategy: BayesSync) -> None:
    """Of all settings with all shares within the limit, one by one, none is worth more."""
    table, allowance = _table(strategy), _allowance(strategy)

    found = best_plan(table, allowance, SHARES)
    decided = choose(table, allowance, (1.0, 1.0), GOVERNOR)

    values = [
        _worth(table, SHARES[share], np.unravel_index(at, table.saving.shape))
        for share, at in _within(table, allowance, SHARES)
    ]
    assert found is not None
    assert found.worth == pytest.approx(max(values), rel=1e-12)
    assert found.worth == pytest.approx(_worth(table, found.governed, found.at), rel=1e-12)
    best = decided.best
    expected = (1.0 - best.governed) * best.saving + best.governed * best.probe_saving
    assert best.worth == pytest.approx(expected)
    assert best.loss * (1.0 - best.governed) < 0.03
    assert decided.price > 0.0


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_held_is_hoped_for_no_more(strategy: BayesSync, axis: int) -> None:
    """A hope beyond what a held clock tells leaves that clock as it is believed, and helps those far from it."""
    plain = _table(strategy)
    held = len(strategy._menu.axes[axis].mhz) // 3 if strategy._menu else 0

    hopeful = _table(strategy, Hope(axis, 2.0, held))

    at = (0, held, 0) if axis == 0 else (0, 0, held)
    deepest = (0, -1, 0) if axis == 0 else (0, 0, -1)
    assert hopeful.lost_s[at] == pytest.approx(plain.lost_s[at], abs=1e-9)
    assert hopeful.lost_s[deepest] < plain.lost_s[deepest]


def test_turns_have_the_planned_share() -> None:
    """Blocks of the governor and the lowered updates between them add up to the share."""
    made = Choice(GOVERNOR, GOVERNOR, 0.1, 0.01, 0.0, 0.0, 0.1, 0.0, turn_updates=3.0)

    for share in SHARES[1:]:
        assert 3.0 / (3.0 + lowered_updates(replace(made, governed=share))) == pytest.approx(share)
    assert lowered_updates(made) > 1000.0


def test_both_axes_offer_the_same_clocks(strategy: BayesSync) -> None:
    """One pool need not switch where phases take the same clock: every clock below both ceilings is on both axes."""
    assert strategy._menu is not None
    below = [
        {mhz for mhz in axis.mhz if mhz and mhz < min(strategy._learner.ceilings_mhz)}
        for axis in strategy._menu.axes
    ]

    shared = below[0] & below[1]
    deepest = max(min(below[0]), min(below[1]))
    assert {mhz for mhz in below[0] | below[1] if mhz >= deepest} <= shared


def test_rounds_that_training_never_saw_are_told_apart() -> None:
    """Twice the usual tokens beside the valid ones are two rounds: training saw half, two tails were waited for."""
    effort = Effort()

    for index in range(8):
        usual = effort.of({"generated": 1000.0 + index, "valid": 800.0, "longest": 50.0})
    double = effort.of({"generated": 2000.0, "valid": 790.0, "longest": 50.0})

    assert usual == {"generated": 1007.0, "valid": 800.0, "rounds": 1.0, "consumed": 1007.0, "steps": 50.0}
    assert double == {"generated": 2000.0, "valid": 790.0, "rounds": 2.0, "consumed": 1000.0, "steps": 100.0}


@pytest.mark.parametrize("again", [0.0, 0.3, 0.5])
def test_rounds_are_told_however_many_updates_need_several(again: float) -> None:
    """As long as a quarter of the latest updates needed one round, whatever the others needed."""
    effort, rng = Effort(), np.random.default_rng(4)
    true, found = [], []

    for _ in range(200):
        rounds = 1 + (rng.random() < again)
        generated = rounds * 1000.0 * rng.normal(1.0, 0.05)
        true.append(rounds)
        found.append(effort.of({"generated": generated, "valid": 800.0 * rng.normal(1.0, 0.05)})["rounds"])

    wrong = sum(a != b for a, b in zip(true[20:], found[20:], strict=True))
    assert wrong <= 9


def test_masked_tokens_are_no_rounds() -> None:
    """A third fewer valid tokens than usual leave everything as it is; unknown counts are left out."""
    effort = Effort()

    for _ in range(8):
        effort.of({"generated": 1000.0, "valid": 900.0})

    assert effort.of({"generated": 1000.0, "valid": 650.0})["consumed"] == 1000.0
    assert effort.of({"valid": 900.0}) == {"valid": 900.0}


def test_effort_written_and_read_goes_on_alike() -> None:
    """Through JSON the next update means the same."""
    effort, copy = Effort(), Effort()
    for index in range(30):
        effort.of({"generated": 1000.0 + 10.0 * index, "valid": 800.0})

    copy.load(json.loads(json.dumps(effort.to_list())))

    assert len(copy.to_list()) == 20
    counts = {"generated": 3000.0, "valid": 800.0, "longest": 7.0}
    assert copy.of(counts) == effort.of(counts)
