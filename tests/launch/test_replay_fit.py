"""What clocks did to a run, told from its own updates: known effects are found again, stragglers do not bend them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_controller import ClockGrid, ExecutionMode, PhaseRecord, PoolRecord, UpdateRecord
from eerl_launch.clock_effect import ClockEffect
from eerl_launch.log_fit import fit
from eerl_launch.moved_update import move
from eerl_launch.work_parts import GOVERNOR, Clocks, part_of

GRID = ClockGrid(range(345, 1981, 15), 1980)


def rows(deep: int, shallow: int) -> list[dict[str, float]]:
    """Features of so many governor updates and then so many at two thirds of the clock."""
    return [{"depth": 0.0, "locked": 0.0}] * shallow + [{"depth": math.log(1.5), "locked": 1.0}] * deep


def test_a_known_slope_is_found_again() -> None:
    """Time that follows tokens and half of the clock, with noise of 1 %."""
    rng = np.random.default_rng(1)
    counts = [{"valid": float(n)} for n in rng.integers(50_000, 150_000, 80)]
    clocks = rows(40, 40)
    values = [
        row["valid"] / 1000 * math.exp(0.5 * clock["depth"] + rng.normal(0, 0.01))
        for row, clock in zip(counts, clocks, strict=True)
    ]

    found = fit(values, counts, ("valid",), clocks, ("depth", "locked"))

    assert found.log_at(clocks[-1]) == pytest.approx(0.5 * math.log(1.5), abs=0.01)
    assert found.residual_sd == pytest.approx(0.01, rel=0.3)


def test_work_that_one_update_does_not_tell_costs_nothing() -> None:
    """One of 80 updates comes without its count: the slope is found all the same."""
    rng = np.random.default_rng(2)
    counts = [{"valid": float(n)} for n in rng.integers(50_000, 150_000, 80)]
    clocks = rows(40, 40)
    values = [
        row["valid"] / 1000 * math.exp(0.5 * clock["depth"])
        for row, clock in zip(counts, clocks, strict=True)
    ]

    found = fit(values, [*counts[:30], {}, *counts[31:]], ("valid",), clocks, ("depth", "locked"))

    assert found.log_at(clocks[-1]) == pytest.approx(0.5 * math.log(1.5), abs=0.01)


def test_stragglers_do_not_bend_it_and_no_setting_is_one() -> None:
    """Few governor updates among many lowered ones are no stragglers; four times as long for no reason is."""
    values = [100.0] * 8 + [150.0] * 150
    values[3] = values[60] = 400.0

    found = fit(values, [{}] * 158, (), rows(150, 8), ("depth", "locked"))

    assert found.log_at({"depth": math.log(1.5), "locked": 1.0}) == pytest.approx(math.log(1.5), abs=0.01)


def test_two_that_contradict_each_other_are_both_kept() -> None:
    """With nothing but values far apart there is no straggler to be told, and still a finite answer."""
    found = fit([1e-3, 1e6], [{}, {}], (), rows(2, 0), ("depth", "locked"))

    assert math.isfinite(found.residual_sd) and found.residual_sd > 1.0


def test_physics_bounds_it() -> None:
    """A lowered clock that seems to gain time, or to cost more than its ratio, is held to what can be."""
    faster = fit([100.0] * 20 + [90.0] * 20, [{}] * 40, (), rows(20, 20), ("depth", "locked"))
    slower = fit([100.0] * 20 + [200.0] * 20, [{}] * 40, (), rows(20, 20), ("depth", "locked"))

    assert faster.log_at(rows(1, 0)[0]) == pytest.approx(0.0, abs=1e-6)
    assert slower.log_at(rows(1, 0)[0]) == pytest.approx(math.log(1.5) + 0.03, abs=1e-3)


def record(update: int, clocks: Clocks) -> UpdateRecord:
    """A colocated update: decoding does not care for the clock, training does; power falls with its square."""
    slow = (clocks.training_mhz or 1980) / 1980
    share = (clocks.generation_mhz or 1980) / 1980
    generation_s, training_s = 40.0, 20.0 / slow
    phases = {
        "generation": PhaseRecord(elapsed_s=generation_s, energy_j=generation_s * (100 + 300 * share**2)),
        "training": PhaseRecord(elapsed_s=training_s, energy_j=training_s * (100 + 600 * slow**2)),
    }
    return UpdateRecord(
        update=update,
        plan_id=0,
        elapsed_s=generation_s + training_s + 5.0,
        energy_j=sum(phase.energy_j or 0.0 for phase in phases.values()) + 5.0 * 100,
        phases=phases,
        pools={"training": PoolRecord(requested_mhz=clocks.training_mhz, achieved_mhz=1980 * slow)},
        generated_tokens=100_000,
        valid_tokens=90_000,
        longest_generated_tokens=3000,
    )


def test_an_update_is_moved_to_other_clocks() -> None:
    """Between two recorded settings and back, an update becomes what it would have been."""
    low = Clocks(1200, 1200)
    known = [(record(n, GOVERNOR if n < 20 else low), GOVERNOR if n < 20 else low) for n in range(40)]
    effect = ClockEffect(known, ExecutionMode.COLOCATED_SYNC, GRID)

    moved, back = move(known[0][0], effect, GOVERNOR, low), move(known[30][0], effect, low, GOVERNOR)

    assert moved is not None and back is not None
    for made, wanted in ((moved, known[30][0]), (back, known[0][0])):
        assert made.elapsed_s == pytest.approx(wanted.elapsed_s, rel=0.005)
        assert made.energy_j == pytest.approx(wanted.energy_j, rel=0.01)
        assert made.pools["training"].achieved_mhz == wanted.pools["training"].achieved_mhz
    assert moved.pools["training"].requested_mhz == 1200


def test_what_a_run_does_not_tell() -> None:
    """A clock without an example is unknown, a deeper one extrapolated, an idle clock without an example so named."""
    low = Clocks(None, 1200)
    known = [(record(n, GOVERNOR if n < 20 else low), GOVERNOR if n < 20 else low) for n in range(40)]
    effect = ClockEffect(known, ExecutionMode.COLOCATED_SYNC, GRID)

    assert effect.unknown(Clocks(1500, None)) is not None
    assert effect.unknown(Clocks(None, 900)) is None
    assert effect.extrapolates(Clocks(None, 900)) and not effect.extrapolates(Clocks(None, 1500))
    assert effect.idle_unknown(Clocks(None, 1200, 345))
    with pytest.raises(ValueError, match="generation at 1500 MHz"):
        move(known[0][0], effect, GOVERNOR, Clocks(1500, None))


def test_an_update_without_phases_is_not_moved() -> None:
    """Which part would be slower is not known, so nothing is said."""
    low = Clocks(1200, 1200)
    known = [(record(n, GOVERNOR if n < 20 else low), GOVERNOR if n < 20 else low) for n in range(40)]
    effect = ClockEffect(known, ExecutionMode.COLOCATED_SYNC, GRID)

    assert move(UpdateRecord(update=1, plan_id=0, elapsed_s=10.0), effect, GOVERNOR, low) is None


def test_phases_answer_to_the_clock_of_the_contract() -> None:
    """Validation to generation's, critic and log-prob to training's, refit to neither alone."""
    assert [part_of(name) for name in ("generation", "validation", "logprob/old", "critic", "refit")] == [
        0,
        0,
        1,
        1,
        2,
    ]


numbers = st.one_of(st.none(), st.floats(0.0, 1e15), st.floats(0.0, 500.0))
anything = st.builds(
    UpdateRecord,
    update=st.integers(0, 9),
    plan_id=st.just(0),
    elapsed_s=st.one_of(st.none(), st.floats(1e-6, 1e4), st.just(1e15)),
    energy_j=numbers,
    phases=st.dictionaries(
        st.sampled_from(["generation", "training", "logprob", "refit", "validation", "generation/x"]),
        st.builds(PhaseRecord, elapsed_s=numbers, energy_j=numbers),
    ),
    pools=st.dictionaries(
        st.sampled_from(["generation", "training"]),
        st.builds(PoolRecord, energy_j=numbers, busy_s=numbers, wait_s=numbers, achieved_mhz=numbers),
    ),
    generated_tokens=st.one_of(st.none(), st.integers(0, 10**6)),
    valid_tokens=st.one_of(st.none(), st.integers(0, 10**6)),
    generation_arrival_s=numbers,
    training_arrival_s=numbers,
    generation_busy_fraction=numbers,
    training_busy_fraction=numbers,
)


@given(mode=st.sampled_from(ExecutionMode), odd=st.lists(anything, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_record_is_moved_or_left_out(mode: ExecutionMode, odd: list[UpdateRecord]) -> None:
    """Among sound updates or alone: another valid record, or None, and never anything else."""
    low = Clocks(1200, 1200, 345)
    sound = [(record(n, GOVERNOR if n < 5 else low), GOVERNOR if n < 5 else low) for n in range(10)]
    effect = ClockEffect([*sound, *((item, low) for item in odd)], mode, GRID)

    for item in odd:
        if effect.unknown(low) is None:
            moved = move(item, effect, low, GOVERNOR)
            assert moved is None or moved.update == item.update
