"""The first update under other clocks (field case C06), and one phase compared beside the other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from controller.examples import controller_for, simple
from controller.workload import BALANCED, Job, play
from hypothesis import given
from hypothesis import strategies as st

from eerl_controller.bayes.comparing import compare
from eerl_controller.bayes.firsts import Firsts, Odd
from eerl_controller.bayes.governor_reach import GovernorReach
from eerl_controller.bayes.plan import choice
from eerl_controller.bayes.sample import GOVERNED, Clocks, Three
from eerl_controller.bayes.strategy import BayesSync
from eerl_controller.bayes.table import Table
from eerl_controller.bayes.time_prior import Layout
from eerl_controller.bayes.times import Times
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.settling import is_long
from eerl_controller.states import Reason, State
from eerl_controller.work import observe_work

NOISE = (0.01, 0.01)
WORK = {"valid": 1000.0}
GOVERNOR_S = (30.0, 20.0, 1.0)
COUNTS = {"generated": 1e6, "steps": 4000.0, "valid": 9e5}


def residuals(seconds: Three, work: Mapping[str, float]) -> list[float]:
    """Against the governor's seconds: what is expected has no part in it."""
    return [math.log(seconds[part] / GOVERNOR_S[part]) for part in (0, 1)]


def told(firsts: Firsts, carried: float, blocks: int, seed: int, slow: float = 0.05) -> Firsts:
    """Blocks of three updates, lowered and the governor's; of each first one ``carried`` runs as before."""
    rng = np.random.default_rng(seed)
    before = 0.0
    for block in range(blocks):
        lowered = block % 2
        for update in range(3):
            now = lowered * slow
            log = carried * before + (1.0 - carried) * now if update == 0 else now
            a, b = (GOVERNOR_S[part] * math.exp(log + rng.normal(0.0, 0.01)) for part in (0, 1))
            depth = 0.3 * lowered
            firsts.add((depth, depth), (a, b, 1.0), WORK, residuals, NOISE)
        before = lowered * slow
    return firsts


@pytest.mark.parametrize("seed", range(5))
def test_first_updates_that_carry_the_old_clocks_are_trusted_no_more(seed: int) -> None:
    """Within a dozen changes of 5 %, five times the noise of an update, or 120 of which a fifth is carried; those
    that carry nothing stay trusted.
    """
    assert not told(Firsts(), 1.0, 12, seed).trusted
    assert told(Firsts(), 0.0, 300, seed).trusted
    assert told(Firsts(), 0.05, 60, seed).trusted
    assert not told(Firsts(), 0.2, 120, seed).trusted


@pytest.mark.parametrize("seed", range(5))
def test_first_updates_that_are_slow_whatever_the_clocks_are_told_from_leaning_ones(seed: int) -> None:
    """3 % slower after every change is a cost of changes, and no reason to mistrust what clocks show."""
    rng = np.random.default_rng(seed)
    firsts, odd = Firsts(), []
    for update in range(60):
        depth, slow = 0.3 * (update // 3 % 2), 1.03 if update % 3 == 0 else 1.0
        a, b = (GOVERNOR_S[part] * slow * math.exp(rng.normal(0.0, 0.01)) for part in (0, 1))
        odd.append(firsts.add((depth, depth), (a, b, 1.0), WORK, residuals, NOISE))

    assert set(odd) == {None, Odd.SLOW}
    assert firsts.trusted


@given(st.integers(min_value=0, max_value=40), st.integers(min_value=0, max_value=9))
def test_trust_goes_on_alike_after_json(cut: int, seed: int) -> None:
    """Wherever it is written and read."""
    plain, copied = Firsts(), Firsts()
    rng = np.random.default_rng(seed)
    for update in range(40):
        if update == cut:
            written, copied = json.loads(json.dumps(copied.to_list())), Firsts()
            copied.load(written)
        depth = 0.2 * (update // 2 % 3)
        seconds = (30.0 * math.exp(rng.normal(0.0, 0.03)), 20.0 * math.exp(rng.normal(0.0, 0.03)), 1.0)
        for firsts in (plain, copied):
            firsts.add((depth, 0.0), seconds, WORK, residuals, NOISE)

    assert plain.to_list() == copied.to_list()


def test_a_turn_is_three_updates_where_the_first_one_does_not_count() -> None:
    """Long updates make turns of two; where first ones still carry the old clocks, those settle first."""
    assert not is_long(None) and not is_long(19.0) and is_long(20.0)
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 1)
    play(controller, job, 40)
    strategy = controller._strategy
    assert isinstance(strategy, BayesSync) and strategy._menu is not None

    turns = []
    for trusted in (True, False):
        strategy._learner._firsts.trusted = trusted
        turns.append(Table(strategy._menu, strategy._learner).turn_updates)

    assert turns == [2.0, 3.0]


def test_one_phase_is_compared_beside_the_other_where_noise_is_common() -> None:
    """Half the saving goes on; what both phases have in common is taken out of the noise, and of no other way's."""
    saving, lost_s = np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
    saving[0] = [[0.0, 0.1], [0.1, 0.2]]
    lost_s[0] = [[0.0, 1.0], [1.0, 2.0]]

    alike = compare(saving, lost_s, (1.0, 1.0, 0.0), 0.9)
    apart = compare(saving, lost_s, (1.0, 1.0, 0.0), 0.0)

    assert alike.apart[0].tolist() == [[False, False], [False, True]]
    assert alike.saving[0, 1, 1] == pytest.approx(0.1)
    assert alike.lost_s[0, 1, 1] == pytest.approx(1.0)
    # Four times a phase's own variance: each has half of the turns.
    assert alike.noise_s2[0, 1, 1] == pytest.approx(4.0 * (1.0 - 0.81))
    assert alike.noise_s2[0, 0, 1] == pytest.approx(1.0 - 0.81)
    # Without anything in common, two half turns tell no more than whole ones of the same cost.
    assert not apart.apart.any()
    assert apart.noise_s2[0, 1, 1] == pytest.approx(2.0)


@given(
    st.floats(min_value=0.01, max_value=10.0),
    st.floats(min_value=0.01, max_value=10.0),
    st.floats(min_value=0.0, max_value=0.95),
)
def test_a_comparison_never_costs_more_than_the_whole_governors(
    generation_s: float, training_s: float, common: float
) -> None:
    """By what it tells: noise times the saving that is given up is never more than that of whole turns."""
    rng = np.random.default_rng(7)
    saving = np.sort(rng.uniform(0.0, 0.3, (1, 3, 3)), axis=None).reshape(1, 3, 3)
    saving[0, 0, 0] = 0.0

    found = compare(saving, 10.0 * saving, (generation_s, training_s, 0.0), common)

    whole = generation_s**2 + training_s**2 + 2.0 * common * generation_s * training_s
    assert (found.noise_s2 * (saving - found.saving) <= whole * saving * (1.0 + 1e-9)).all()
    assert (found.saving <= saving + 1e-12).all()


def test_what_a_change_of_clocks_costs_is_learnt_and_counted() -> None:
    """First updates 3 % slower whatever the clocks: lost, the governor's too, and no cost of the lowered clock."""
    rng = np.random.default_rng(3)
    lowered = Clocks((0.3, 0.0), (True, False), idles=False, switches=True)
    times = Times()
    times.begin(GOVERNOR_S, COUNTS)
    lost_s = 0.0
    for update in range(120):
        block, place = divmod(update, 3)
        clocks, fresh = (lowered if block % 2 else GOVERNED), place == 0 and block > 0
        slow = 1.03 if fresh else 1.0
        seconds = (
            GOVERNOR_S[0] * slow * (1.02 if block % 2 else 1.0) * math.exp(rng.normal(0.0, 0.005)),
            GOVERNOR_S[1] * slow * math.exp(rng.normal(0.0, 0.005)),
            1.0,
        )
        times.advance()
        times.read(seconds, COUNTS, clocks, fresh=fresh)
        if block % 2 or fresh:
            times.lose(seconds, clocks, fresh=fresh)
            lost_s += seconds[0] * (1.0 - 1.0 / (slow * (1.02 if block % 2 else 1.0)))
            lost_s += seconds[1] * (1.0 - 1.0 / slow)

    assert times.change_s(GOVERNOR_S) == pytest.approx(0.03 * 50.0, rel=0.2)
    assert times.slow(lowered)[0] == pytest.approx(0.02, abs=0.004)
    assert times.bank.pooled_mean()[Layout.lost] == pytest.approx(lost_s, rel=0.15)


def test_a_probe_of_one_phase_that_proves_best_is_held_and_interrupted_again() -> None:
    """It was a probe and is none any more, so the governor has its turn; an alarm meanwhile keeps what was held."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 1)
    play(controller, job, 40)
    strategy = controller._strategy
    assert isinstance(strategy, BayesSync) and strategy._menu is not None
    held, half = Pair(1500, 1500), Pair(None, 1500)
    table = Table(strategy._menu, strategy._learner)
    best = choice(table, (0, 0, 5), 0.2, 0.1)
    strategy.state = State.LOCKED
    strategy._enter(State.LOCKED, held, Reason.CONFIRMED, "")
    strategy._probe(replace(best, probe=half))
    assert (strategy._alternation.held, strategy._probing) == (held, True)

    strategy._probe(replace(best, probe=GOVERNOR))
    assert (strategy._alternation.held, strategy._probing) == (held, True)
    strategy._enter(State.REMEASURE, half, Reason.REFERENCE_AGE, "")
    strategy._probing = True
    strategy._hold(replace(best, pair=half))

    assert (strategy.book.pair, strategy._alternation.held, strategy._probing) == (half, half, False)


@pytest.mark.parametrize("lacking", [("energy_j",), ("valid_tokens", "generated_tokens")])
def test_clocks_that_change_all_the_time_do_not_hide_that_evidence_stopped(lacking: tuple[str, ...]) -> None:
    """The governor's turns begin no new count: after 20 updates without energy, or counts, it has the clocks."""
    controller, job = controller_for(BALANCED, policy="eerl"), Job(BALANCED, 1)

    truth = play(
        controller,
        job,
        100,
        edit=lambda index: dict.fromkeys(lacking) if index >= 40 else {},
        tell_remaining=True,
    )

    assert "suspended" not in truth.states[:40]
    assert "suspended" in truth.states[40:75]


def test_a_new_reach_of_the_governor_is_seen_in_a_turn_of_two() -> None:
    """Both updates below what was reached tell it; the first alone, still partly lowered, does not."""
    reach, partly = GovernorReach(), GovernorReach()
    plain = observe_work(simple(1))
    assert plain is not None
    for first, second, found in ((1350.0, 1350.0, reach), (1700.0, 1980.0, partly)):
        for mhz in (first, second):
            found.add(GOVERNOR, replace(plain, generation_achieved_mhz=mhz, training_achieved_mhz=mhz))

    assert reach.moved((1980.0, 1980.0), 1980.0, 2)
    assert not partly.moved((1980.0, 1980.0), 1980.0, 2)
