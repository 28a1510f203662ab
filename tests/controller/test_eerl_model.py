"""The model of policy eerl: curves, filters, times. Known truths go in, beliefs must come out near them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from eerl_controller.bayes.curve import DEEPEST, EDGES, PIECES, SlopePrior, basis
from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.sample import GENERATION, GOVERNED, TRAINING, Clocks
from eerl_controller.bayes.time_prior import Layout, response_row
from eerl_controller.bayes.times import Times

LOWERED = Clocks((0.2, 0.0), (True, False), idles=False, switches=True)
COUNTS = {"generated": 1e6, "longest": 4000.0, "valid": 9e5}


def test_the_pieces_of_a_curve_add_up_to_its_depth() -> None:
    """With every slope 1 the curve is the depth itself: work that follows the clock."""
    depths = np.linspace(0.0, DEEPEST, 23)

    assert basis(depths).sum(axis=-1) == pytest.approx(depths)
    assert basis(0.05)[1:].sum() == 0.0
    assert len(EDGES) == PIECES + 1


def test_neighbouring_slopes_are_believed_to_be_alike() -> None:
    """The prior is a covariance, and what is near is more alike than what is far."""
    covariance = SlopePrior(0.4, 0.3).covariance()

    assert np.linalg.eigvalsh(covariance).min() > 0.0
    assert covariance[0, 1] > covariance[0, 3] > covariance[0, 5] > 0.0


def _constant_bank() -> FilterBank:
    """One unknown constant, and a state that adds up losses."""
    states = np.ones((1, 2))
    return FilterBank(np.zeros(2), np.diag([1.0, 0.0]), states, np.zeros((1, 2)), np.array([0.1]))


def test_a_filter_finds_a_constant_in_noise() -> None:
    """A hundred readings of 0.5 with noise 0.1: believed within three standard errors, and as sure as that."""
    bank, rng = _constant_bank(), np.random.default_rng(1)

    for _ in range(100):
        bank.read(0, np.array([[1.0, 0.0]]), np.array([0.01]), 0.5 + rng.normal(0.0, 0.1))
    mean, covariance = bank.pooled()

    assert mean[0] == pytest.approx(0.5, abs=0.03)
    assert 0.005 < math.sqrt(covariance[0, 0]) < 0.02


def test_one_reading_far_off_moves_little() -> None:
    """Tails are heavy: after many readings of 0, one of 5 is a straggler."""
    bank = _constant_bank()

    for _ in range(30):
        bank.read(0, np.array([[1.0, 0.0]]), np.array([0.01]), 0.0)
    bank.read(0, np.array([[1.0, 0.0]]), np.array([0.01]), 5.0)

    assert abs(bank.pooled()[0][0]) < 0.02


def test_a_surprise_about_what_was_never_seen_is_believed() -> None:
    """The first reading is 20 noises off, but a unit is what was thought possible: it is taken for what it says."""
    bank = _constant_bank()

    bank.read(0, np.array([[1.0, 0.0]]), np.array([0.01]), 2.0)

    assert bank.pooled()[0][0] == pytest.approx(2.0, rel=0.1)


def test_the_noise_scale_is_learnt() -> None:
    """Noise three times as large as supposed, or a third of it: known within a third after 200 readings."""
    for truth in (0.3, 0.033):
        bank, rng = _constant_bank(), np.random.default_rng(2)

        for _ in range(200):
            scale = bank.scales[:, 0]
            bank.read(0, np.array([[1.0, 0.0]]), scale**2, rng.normal(0.0, truth))

        assert float(bank.scales[0, 0]) == pytest.approx(truth, rel=0.34)


def test_what_is_learnt_later_corrects_what_was_lost_before() -> None:
    """Losses are booked at the belief of the time; a later reading of the same constant puts the sum right."""
    bank = _constant_bank()

    for _ in range(10):
        bank.accumulate(1, np.array([2.0, 0.0]), 0.0)
    before = bank.pooled()[0][1]
    for _ in range(50):
        bank.read(0, np.array([[1.0, 0.0]]), np.array([0.01]), 0.7)

    assert before == 0.0
    assert bank.pooled()[0][1] == pytest.approx(10 * 2.0 * 0.7, rel=0.02)


def _play(times: Times, seed: int, slow: float, blocks: int, noise: float = 0.01) -> float:
    """Alternating blocks of three; generation is slower by ``slow`` (a log) when lowered. Returns seconds lost."""
    rng, lost_s = np.random.default_rng(seed), 0.0
    for update in range(3 * blocks):
        lowered = update // 3 % 2 == 1
        work = math.exp(rng.normal(0.0, 0.1))
        level = rng.normal(0.0, noise)
        seconds = [100.0 * work**0.8, 40.0 * work, 5.0]
        seconds = [value * math.exp(level + rng.normal(0.0, noise / 2)) for value in seconds]
        governor_s = seconds[0]
        seconds[0] *= math.exp(slow * lowered)
        counts = {name: value * work for name, value in COUNTS.items()}
        clocks = LOWERED if lowered else GOVERNED
        times.advance()
        times.read((seconds[0], seconds[1], seconds[2]), counts, clocks)
        if lowered:
            times.lose((seconds[0], seconds[1], seconds[2]), clocks)
            lost_s += seconds[0] - governor_s
    return lost_s


def _times() -> Times:
    times = Times()
    times.begin((100.0, 40.0, 5.0), COUNTS)
    return times


@pytest.mark.parametrize("slow", [0.0, 0.03, 0.15])
def test_a_slowdown_is_found_and_its_error_is_honest(slow: float) -> None:
    """Twenty seeds of 20 blocks: the mean error is small, and errors are as large as they claim to be."""
    scores = []

    for seed in range(20):
        times = _times()
        _play(times, seed, slow, 20)
        mean, covariance = times.bank.pooled()
        row = response_row(GENERATION, LOWERED)
        scores.append((float(row @ mean) - slow) / math.sqrt(float(row @ covariance @ row)))

    assert abs(float(np.mean(scores))) < 1.0
    assert 0.4 < float(np.std(scores)) < 1.6


def test_the_seconds_lost_are_known_within_their_error() -> None:
    """Ten seeds: what lowered clocks took is within three standard deviations each time."""
    for seed in range(10):
        times = _times()
        lost_s = _play(times, seed, 0.05, 16)
        mean, covariance = times.bank.pooled()

        assert abs(float(mean[Layout.lost]) - lost_s) < 3.0 * math.sqrt(
            float(covariance[Layout.lost, Layout.lost])
        )


def test_loud_beginnings_do_not_make_sure() -> None:
    """Noise ten times as large as supposed at first: readings taken at the guess are weighed again."""
    times = _times()

    _play(times, 3, 0.0, 4, noise=0.15)
    _, covariance = times.bank.pooled()
    row = response_row(GENERATION, LOWERED)

    assert math.sqrt(float(row @ covariance @ row)) > 0.03


def test_another_governor_does_not_undo_what_was_lost() -> None:
    """Models begin anew; the seconds lost and their error stay."""
    times = _times()
    _play(times, 4, 0.05, 8)
    mean, covariance = times.bank.pooled()
    lost, sd = float(mean[Layout.lost]), math.sqrt(float(covariance[Layout.lost, Layout.lost]))

    times.begin((200.0, 80.0, 10.0), COUNTS)
    mean, covariance = times.bank.pooled()

    assert float(mean[Layout.lost]) == pytest.approx(lost)
    assert math.sqrt(float(covariance[Layout.lost, Layout.lost])) == pytest.approx(sd)
    assert float(response_row(TRAINING, LOWERED) @ mean) == 0.0


def test_times_written_and_read_go_on_alike() -> None:
    """In mid-learning, through JSON: the same readings lead to the same beliefs, bit for bit."""
    times = _times()
    _play(times, 5, 0.05, 3)

    copy = Times()
    copy.load(json.loads(json.dumps(times.to_dict())))
    _play(times, 6, 0.05, 12)
    _play(copy, 6, 0.05, 12)

    assert (times.bank.mean == copy.bank.mean).all()
    assert (times.bank.covariance == copy.bank.covariance).all()
