"""A clock below which a phase is suddenly as slow as its clock: repeated outliers are the clocks, not stragglers."""

from __future__ import annotations

import math

import pytest

from eerl_controller.bayes.sample import GOVERNED, Clocks
from eerl_controller.bayes.times import Times

#: Counts of every update here.
WORK = {"generated": 1e6, "longest": 4000.0, "valid": 9e5}
GOVERNOR_S = (30.0, 20.0, 1.0)
#: Two clocks next to each other: the first is free, from the second on generation is bound by its clock.
ABOVE = Clocks((0.62, 0.0), (True, False), idles=False, switches=True)
BELOW = Clocks((0.68, 0.0), (True, False), idles=False, switches=True)
FALLEN_S = (GOVERNOR_S[0] * math.exp(0.68), GOVERNOR_S[1], GOVERNOR_S[2])


def beside_a_cliff() -> Times:
    """Thirty updates have shown, in turn, that the clock above the cliff costs nothing."""
    times = Times()
    times.begin(GOVERNOR_S, WORK)
    for update in range(30):
        times.advance()
        wave = 1.0 + 0.004 * math.sin(update)
        seconds = (GOVERNOR_S[0] * wave, GOVERNOR_S[1] / wave, GOVERNOR_S[2])
        times.read(seconds, WORK, ABOVE if update % 3 else GOVERNED)
    return times


def test_one_outlier_is_not_believed_and_two_are() -> None:
    """One update that took twice as long moves little; insisting on two brings the belief to what they showed."""
    times = beside_a_cliff()
    for _ in range(2):
        times.advance()
        times.read(FALLEN_S, WORK, BELOW)
    doubted = times.distance(FALLEN_S, WORK, BELOW)

    for _ in range(2):
        times.insist(FALLEN_S, WORK, BELOW)

    assert doubted > 0.3
    assert times.distance(FALLEN_S, WORK, BELOW) < 0.15


def test_what_was_lost_below_the_cliff_is_booked_once_it_is_known() -> None:
    """Seconds that were taken for a straggler's count against the allowance after all."""
    from eerl_controller.bayes.time_prior import Layout

    times = beside_a_cliff()
    for _ in range(2):
        times.advance()
        times.read(FALLEN_S, WORK, BELOW)
        times.lose(FALLEN_S, BELOW)
    before_s = float(times.bank.pooled_mean()[Layout.lost])

    for _ in range(2):
        times.insist(FALLEN_S, WORK, BELOW)

    truth_s = 2.0 * (FALLEN_S[0] - GOVERNOR_S[0])
    assert before_s < 0.4 * truth_s
    assert float(times.bank.pooled_mean()[Layout.lost]) > 0.6 * truth_s


def test_a_jump_of_one_part_leaves_the_other_and_what_was_lost_alone() -> None:
    """Generation, under the governor, suddenly takes a third longer: training's lowered clock costs what it did."""
    from eerl_controller.bayes.time_prior import Layout, response_row

    lowered = Clocks((0.0, 0.4), (False, True), idles=False, switches=True)
    times = Times()
    times.begin(GOVERNOR_S, WORK)
    for update in range(40):
        times.advance()
        wave = 1.0 + 0.006 * math.sin(update)  # noise that both parts have in common
        slower = 1.05 if update % 3 else 1.0
        seconds = (GOVERNOR_S[0] * wave, GOVERNOR_S[1] * wave * slower, GOVERNOR_S[2])
        times.read(seconds, WORK, lowered if update % 3 else GOVERNED)
        if update % 3:
            times.lose(seconds, lowered)
    row = response_row(1, lowered)
    before, lost_s = float(row @ times.bank.pooled_mean()), float(times.bank.pooled_mean()[Layout.lost])

    after = (GOVERNOR_S[0] * 1.35, GOVERNOR_S[1] * 1.05, GOVERNOR_S[2])
    for _ in range(2):
        times.insist(after, WORK, lowered)

    mean = times.bank.pooled_mean()
    assert float(row @ mean) == pytest.approx(before, abs=0.003)
    assert float(mean[Layout.lost]) == pytest.approx(lost_s, rel=0.03)
    assert times.distance(after, WORK, lowered) < 0.05
