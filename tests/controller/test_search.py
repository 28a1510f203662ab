from __future__ import annotations

from collections.abc import Callable

import pytest

from eerl_controller import Settings
from eerl_controller.clocks import Pair
from eerl_controller.comparison import Change, Comparison
from eerl_controller.response import fit_response
from eerl_controller.rounds import Levels, Shares, lattice
from eerl_controller.search import Search

H100 = tuple(range(345, 1980, 15))
SHARES = Shares(0.5, 0.45, 0.4, 0.55)


def search(**settings: object) -> Search:
    """A search on an H100."""
    return Search(Settings(**settings), H100, (1980.0, 1980.0), SHARES)  # type: ignore[arg-type]


def judged(
    generation_time: float,
    training_time: float,
    energy: float = -0.05,
    *,
    updates: int = 3,
    se: float = 0.002,
) -> Comparison:
    """A judgement with this added time by clock."""
    return Comparison(
        Change(generation_time, training_time, 0.0), Change(energy / 2, energy / 2, 0.0), se, se, updates
    )


def physics(
    generation_bound: float, training_bound: float, dynamic: float = 0.6
) -> Callable[[Search, Levels], Comparison]:
    """A job that answers exactly as phases do."""

    def answer(running: Search, levels: Levels) -> Comparison:
        pair = running.pair(levels)
        xs = [0.0 if mhz is None else 1980.0 / mhz - 1.0 for mhz in pair]
        times = [
            SHARES.generation_time * generation_bound * xs[0],
            SHARES.training_time * training_bound * xs[1],
        ]
        energies = []
        for share, bound, x in (
            (SHARES.generation_energy, generation_bound, xs[0]),
            (SHARES.training_energy, training_bound, xs[1]),
        ):
            power = 1 - dynamic * (1 - (1 + x) ** -2.2)
            energies.append(share * ((1 + bound * x) * power - 1))
        return Comparison(Change(*times, 0.0), Change(*energies, 0.0), 0.001, 0.001, 3)

    return answer


def test_the_lattice_is_nominal_steps_snapped_to_the_table() -> None:
    """90 MHz steps below the ceiling; on an uneven table each clock once."""
    assert lattice(1980.0, H100, 90)[:3] == (1890, 1800, 1710)
    uneven = lattice(1410.0, (345, 360, 510, 870, 1335), 90)
    assert list(uneven) == sorted(set(uneven), reverse=True)
    assert uneven[0] == 1335 and uneven[-1] in (345, 360)
    assert lattice(345.0, H100, 90) == ()


def test_it_starts_with_both_clocks_reduced() -> None:
    """Section 6.1; a tenth below what the governor reaches."""
    running = search()

    start = running.next()

    assert start is not None
    assert running.pair(start) == Pair(1800, 1800)


def test_under_a_power_cap_the_start_is_below_the_achieved_clock() -> None:
    """Settings above the clock that the governor reaches are all the same setting (field case C01)."""
    running = Search(Settings(), H100, (1980.0, 1500.0), SHARES)

    start = running.next()

    assert start is not None
    pair = running.pair(start)
    assert pair.training_mhz is not None and pair.training_mhz < 1410
    assert all(clock < 1500 for clock in lattice(1500.0, H100, 90))


def test_too_slow_raises_the_responsible_clock() -> None:
    """Training added most of the time: its clock rises, generation's stays."""
    running = search()
    running.record(Levels(2, 2), judged(0.005, 0.04))

    proposal = running.next()

    assert proposal is not None
    assert proposal.generation == 2
    assert proposal.training < 2


def test_a_pass_goes_lower() -> None:
    """With margin left, at least one clock falls further."""
    running = search()
    running.record(Levels(2, 2), judged(0.002, 0.002, -0.08))

    proposal = running.next()

    assert proposal is not None
    assert proposal.generation > 2 or proposal.training > 2


def test_a_clearly_slow_setting_rules_out_everything_at_or_below_it() -> None:
    """Lower clocks are not faster."""
    running = search()
    running.record(Levels(3, 1), judged(0.08, 0.001))
    tried = [running.trials[0].levels]

    while (proposal := running.next()) is not None:
        tried.append(proposal)
        running.record(proposal, judged(0.004 * proposal.generation, 0.002 * proposal.training, -0.04))

    assert all(not (levels.generation >= 3 and levels.training >= 1) for levels in tried[1:])


@pytest.mark.parametrize(
    ("generation_bound", "training_bound"), [(0.05, 0.1), (0.3, 0.3), (0.9, 0.05), (0.02, 1.0), (0.6, 0.6)]
)
def test_it_ends_near_the_best_setting_in_few_trials(generation_bound: float, training_bound: float) -> None:
    """On phases that answer exactly, the chosen setting saves nearly all that the lattice offers."""
    running, answer = search(), physics(generation_bound, training_bound)
    best = max(
        (
            -answer(running, Levels(g, t)).energy_change
            for g in range(18)
            for t in range(18)
            if (g, t) != (0, 0) and answer(running, Levels(g, t)).passes(0.02)
        ),
        default=0.0,
    )

    while (proposal := running.next()) is not None:
        running.record(proposal, answer(running, proposal))

    chosen = running.passing()[0]
    assert len(running.trials) <= 10
    assert -answer(running, chosen).energy_change >= 0.85 * best


def test_it_always_ends_and_tries_nothing_more_than_twice() -> None:
    """Whatever the trials show, there is an end."""
    running = search()
    tried: list[Levels] = []
    showing = [judged(0.03, 0.0), judged(0.001, 0.001), judged(0.0, 0.05), judged(0.0, 0.0, 0.01)]

    while (proposal := running.next()) is not None:
        tried.append(proposal)
        running.record(proposal, showing[len(tried) % 4])

    assert len(tried) <= Settings().max_trials
    assert max(tried.count(levels) for levels in tried) <= 2


def test_an_unlucky_trial_may_be_repeated_when_nothing_else_is_left() -> None:
    """Noise of 3 % must not send a job to the governor for the rest of its life."""
    running = search(max_trials=4)
    running.record(Levels(1, 0), judged(0.025, 0.0, -0.06, se=0.02))
    running.record(Levels(0, 1), judged(0.0, 0.025, -0.03, se=0.02))
    running.record(Levels(1, 1), judged(0.02, 0.025, -0.02, se=0.02))

    assert running.next() == Levels(1, 0)


def test_a_failed_confirmation_outranks_the_trials() -> None:
    """A setting that failed on fresh updates is not confirmed again."""
    running = search()
    running.record(Levels(2, 2), judged(0.005, 0.005, -0.10))
    running.record(Levels(1, 1), judged(0.002, 0.002, -0.05))
    running.record(Levels(2, 2), judged(0.02, 0.02, -0.09, updates=6), confirming=True)

    assert running.passing() == [Levels(1, 1)]


def test_the_answer_to_a_clock_is_learned_from_all_trials() -> None:
    """Exact measurements give back the phase they came from."""
    xs = [0.1, 0.3, 0.5]
    time = [0.5 * 0.2 * x for x in xs]
    energy = [0.4 * ((1 + 0.2 * x) * (1 - 0.6 * (1 - (1 + x) ** -2)) - 1) for x in xs]

    response = fit_response(xs, time, energy, [3.0] * 3, 0.5, 0.4)

    assert response.clock_bound == pytest.approx(0.2)
    assert response.dynamic == pytest.approx(0.6)
    assert response.added_energy(0.2) == pytest.approx(0.4 * (1.04 * (1 - 0.6 * (1 - 1.2**-2)) - 1))


def test_an_untried_clock_promises_nothing() -> None:
    """Before any trial a phase is taken as bound by its clock."""
    response = fit_response([], [], [], [], 0.5, 0.4)

    assert response.added_time(0.1) == pytest.approx(0.05)
    assert response.added_energy(0.05) > -0.01


def test_a_search_survives_its_dictionary() -> None:
    """A restored search proposes the same setting."""
    running = search()
    running.record(Levels(2, 2), judged(0.003, 0.004, -0.06))

    restored = Search.from_dict(running.to_dict(), Settings(), H100)

    assert restored.next() == running.next()
    assert restored.trials == running.trials


def test_after_a_failed_confirmation_a_setting_between_is_tried_first() -> None:
    """Far apart, the failed setting and the next passing one leave room for a better one than the latter."""
    running, answer = search(), physics(0.1, 0.9)
    for levels in (Levels(2, 2), Levels(2, 0), Levels(4, 0), Levels(8, 0)):
        running.record(levels, answer(running, levels))
    running.record(Levels(8, 0), judged(0.03, 0.0, -0.14, updates=6), confirming=True)

    proposal = running.next()

    assert proposal is not None
    assert 4 < proposal.generation < 8
    assert running.passing()[0] == Levels(4, 0)


def test_a_raise_that_promises_less_than_what_passed_is_not_tried() -> None:
    """Raising the responsible clock must lead somewhere better than the best setting so far."""
    running = search()
    running.record(Levels(6, 1), judged(0.004, 0.004, -0.12))
    running.record(Levels(1, 4), judged(0.001, 0.03, -0.03))

    proposal = running.next()

    assert proposal is None or proposal.generation > 1
