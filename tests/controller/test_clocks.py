from __future__ import annotations

import pytest

from eerl_controller import ClockGrid, Reason, Settings
from eerl_controller.clocks import GOVERNOR, Pair, PlanBook, allowed_clocks, lowered, raised, snap

UNEVEN = (345, 360, 510, 615, 870, 1080, 1260, 1410, 1980)


def test_limits_cut_the_table() -> None:
    """Only supported clocks within the policy's limits can ever be asked for."""
    grid = ClockGrid(UNEVEN, 1980)

    assert allowed_clocks(grid, Settings(min_mhz=500, max_mhz=1300)) == (510, 615, 870, 1080, 1260)
    assert allowed_clocks(grid, Settings(min_mhz=361, max_mhz=500)) == ()


def test_snap_takes_the_nearest_and_the_lower_of_two() -> None:
    """A nominal step on an uneven table lands on a clock that exists."""
    assert snap(1234, UNEVEN) == 1260
    assert snap(435, UNEVEN) == 360
    with pytest.raises(ValueError, match="no supported clock"):
        snap(1000, ())


def test_a_step_moves_at_least_one_clock() -> None:
    """Where clocks lie further apart than the step, the next one is taken."""
    assert raised(615, 45, UNEVEN, 1980) == 870
    assert lowered(870, 45, UNEVEN, 1980) == 615
    assert raised(1200, 45, range(345, 1981, 15), 1980) == 1245


def test_the_ceiling_is_the_governor() -> None:
    """At the top a phase is given back instead of being locked at the clock it has anyway."""
    assert raised(1410, 45, UNEVEN, 1980) is None
    assert raised(1950, 45, range(345, 1981, 15), 1980) is None
    assert lowered(None, 90, range(345, 1981, 15), 1980) == 1890


def test_nothing_is_below_the_lowest() -> None:
    """The lowest clock stays where it is."""
    assert lowered(345, 45, UNEVEN, 1980) == 345


def test_a_new_wish_gets_a_new_id_and_an_unchanged_one_keeps_it() -> None:
    """Records name plans by id: an id means one pair of clocks for ever."""
    book = PlanBook(Reason.CALIBRATING, "")

    first = book.wish(GOVERNOR, Reason.BETWEEN_TRIALS, "still the governor")
    second = book.wish(Pair(1500, None), Reason.TRIAL, "")
    third = book.wish(Pair(1500, None), Reason.CONFIRMING, "")
    fourth = book.wish(GOVERNOR, Reason.BETWEEN_TRIALS, "")

    assert [plan.plan_id for plan in (first, second, third, fourth)] == [0, 1, 1, 2]
    assert book.pair_of(1) == Pair(1500, None)
    assert book.pair_of(None) is None
    assert third.reason is Reason.CONFIRMING


def test_old_plans_are_forgotten_but_known_to_have_existed() -> None:
    """Memory is bounded however long the run."""
    book = PlanBook(Reason.CALIBRATING, "")

    for index in range(PlanBook.MEMORY + 10):
        book.wish(Pair(1000 + index, None), Reason.TRIAL, "")

    assert book.pair_of(0) is None
    assert book.was_issued(0)
    assert not book.was_issued(PlanBook.MEMORY + 11)
