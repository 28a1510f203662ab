"""Joules between two instants, whatever the counter does (field cases N03, N07–N11)."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.curve import Curve
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import Allocation, NodeEnergy, Notice
from eerl_launch.meter import Meter

PERIOD_S = 0.2
#: How often a driver publishes the counter.
PUBLISHED_S = 0.1


class TrueGpu:
    """A GPU with known power, whose counter is published every 100 ms, as a real one's is."""

    def __init__(self, steps: list[tuple[float, float]]) -> None:
        """``steps``: from these instants on (ascending, from 0), these watts."""
        self.steps = steps

    def power_w(self, t_s: float) -> float:
        return next(watts for begin_s, watts in reversed(self.steps) if begin_s <= t_s)

    def joules(self, t_s: float) -> float:
        ends = [begin_s for begin_s, _ in self.steps[1:]] + [math.inf]
        return sum(
            watts * (min(end_s, t_s) - begin_s)
            for (begin_s, watts), end_s in zip(self.steps, ends, strict=True)
            if t_s > begin_s
        )

    def counter_mj(self, t_s: float) -> int:
        return round(1000 * self.joules(math.floor(t_s / PUBLISHED_S + 1e-9) * PUBLISHED_S))


def node_of(*uuids: str) -> NodeEnergy:
    return NodeEnergy("node01", uuids or ("GPU-0",))


def sampled(
    length_s: float, reading: Callable[[float], GpuSample | None], node: NodeEnergy | None = None
) -> tuple[NodeEnergy, list[Notice]]:
    """One GPU read every 200 ms for ``length_s`` seconds."""
    node = node or node_of()
    notices = []
    for i in range(round(length_s / PERIOD_S) + 1):
        notices += node.add(i * PERIOD_S, [reading(i * PERIOD_S)])
    return node, notices


def reading(t_s: float, energy_mj: int | None = None, power_w: float | None = None) -> GpuSample:
    return GpuSample(int(t_s * 1e9), energy_mj, power_mw=None if power_w is None else round(power_w * 1000))


def joules(node: NodeEnergy, begin_s: float, end_s: float) -> float:
    value = node.between_j(begin_s, end_s)["GPU-0"]
    assert value is not None
    return value


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.floats(0.3, 29.0), st.floats(60.0, 700.0)),
        min_size=1,
        max_size=8,
        unique_by=lambda x: x[0],
    ),
    begin_s=st.floats(0.5, 14.0),
    length_s=st.floats(0.5, 14.0),
)
def test_interpolation_error_is_bounded(
    changes: list[tuple[float, float]], begin_s: float, length_s: float
) -> None:
    """Power may step at any instant: an edge is wrong by at most one reading and one publication of power."""
    gpu = TrueGpu([(0.0, 100.0), *sorted(changes)])
    end_s = begin_s + length_s

    node, _ = sampled(30.0, lambda t: reading(t, gpu.counter_mj(t)))

    error_j = abs(joules(node, begin_s, end_s) - (gpu.joules(end_s) - gpu.joules(begin_s)))
    assert error_j <= 2 * 700.0 * (PERIOD_S + PUBLISHED_S)


def test_steady_power_is_exact_anywhere() -> None:
    """With steady power every stretch, however it lies to the samples, has its joules within a publication."""
    gpu = TrueGpu([(0.0, 250.0)])

    node, _ = sampled(20.0, lambda t: reading(t, gpu.counter_mj(t)))

    for begin_s, end_s in ((1.0, 2.0), (0.33, 17.9), (5.01, 5.02)):
        assert joules(node, begin_s, end_s) == pytest.approx(250.0 * (end_s - begin_s), abs=1.0)


def test_equal_reading_is_the_old_one() -> None:
    """Reading more often than the counter is published adds no zero-energy steps."""
    gpu = TrueGpu([(0.0, 400.0)])
    node = node_of()

    for i in range(400):
        node.add(i * 0.025, [reading(i * 0.025, gpu.counter_mj(i * 0.025))])

    steps = [joules(node, t, t + 0.05) for t in (1.0, 1.05, 1.1, 1.13, 2.2)]
    assert all(step == pytest.approx(20.0, rel=0.3) for step in steps)


def test_short_phases_add_up() -> None:
    """N09: 30 ms phases cost nothing nowhere, and their sum over many updates is right."""
    gpu = TrueGpu([(0.0, 250.0)])
    node, _ = sampled(87.0, lambda t: reading(t, gpu.counter_mj(t)))
    phases = [(0.5 + i * 0.43, 0.53 + i * 0.43) for i in range(200)]

    energies = [joules(node, *phase) for phase in phases]

    assert min(energies) > 0.0
    assert sum(energies) == pytest.approx(200 * 0.03 * 250.0, rel=0.15)


def test_restarted_counter_is_bridged() -> None:
    """N08: a counter that starts again costs nothing and gains nothing, and is told with its time."""

    def counter(t: float) -> int:
        return 5_000_000 + round(250_000 * t) if t < 30.0 else 1_200 + round(250_000 * (t - 30.0))

    node, notices = sampled(60.0, lambda t: reading(t, counter(t), 250.0))

    assert joules(node, 0.0, 60.0) == pytest.approx(60 * 250.0, rel=0.02)
    assert all(joules(node, t, t + 1.0) >= 0.0 for t in range(59))
    assert [(n.kind, round(n.t_s, 3)) for n in notices] == [("counter_restart", 30.0)]


def test_restarted_counter_without_power() -> None:
    """Where no power is known either, the stretch before the restart says what the gap cost: not zero."""
    node, _ = sampled(20.0, lambda t: reading(t, round(300_000 * (t if t < 10.1 else t - 10.1))))

    assert joules(node, 9.0, 12.0) == pytest.approx(900.0, rel=0.02)


def test_jump_is_not_energy() -> None:
    """A counter that leaps by a megajoule adds what the power says, once."""
    node, notices = sampled(20.0, lambda t: reading(t, round(200_000 * t) + (10**9 if t > 9.9 else 0), 200.0))

    assert joules(node, 0.0, 20.0) == pytest.approx(4000.0, rel=0.02)
    assert [n.kind for n in notices] == ["counter_restart"]


def test_power_only_square_wave() -> None:
    """N07: without a counter, power is integrated, called estimated once, and near the truth."""
    node, notices = sampled(60.0, lambda t: reading(t, None, 300.0 if t % 4.0 < 1.999 else 100.0))

    assert joules(node, 0.0, 60.0) == pytest.approx(12_000.0, rel=0.03)
    assert [n.kind for n in notices] == ["energy_estimated"]
    assert node.meters["GPU-0"].estimated_j == pytest.approx(12_000.0, rel=0.03)
    assert node.meters["GPU-0"].estimating


def test_power_only_with_holes() -> None:
    """N11: missing power samples are bridged, and coverage says how much was really seen."""

    def power(t: float) -> GpuSample | None:
        if round(t / PERIOD_S) % 3 == 2 or 50.0 <= t < 56.0:
            return reading(t)
        return reading(t, None, 250.0)

    node, notices = sampled(120.0, power)

    meter = node.meters["GPU-0"]
    assert meter.energy_j == pytest.approx(120 * 250.0, rel=0.05)
    assert 0.55 <= meter.measured_s / 120.0 <= 0.75
    assert sorted(n.kind for n in notices) == ["energy_estimated", "sample_gap"]


def test_counter_covers_missing_samples() -> None:
    """The counter counts on while samples are missing, so that time is measured, not estimated."""
    node, _ = sampled(60.0, lambda t: reading(t, round(200_000 * t)) if round(t * 5) % 3 else None)

    meter = node.meters["GPU-0"]
    assert meter.estimated_j == 0.0
    assert meter.measured_s == pytest.approx(60.0, abs=1.0)


def test_counter_that_skips_a_sample_stays_the_source() -> None:
    """A sample with power but no counter does not turn the GPU into an estimated one."""
    node, notices = sampled(
        20.0, lambda t: reading(t, None if round(t * 5) % 4 == 1 else round(200_000 * t), 500.0)
    )

    assert joules(node, 0.0, 20.0) == pytest.approx(4000.0)
    assert not notices


def test_counter_that_stands_still() -> None:
    """A frozen counter of a working GPU is not "no energy": power takes over until the counter moves again."""

    def counter(t: float) -> int:
        return round(300_000 * (t if t < 10.0 else 10.0 if t < 30.0 else t - 20.0))

    node, notices = sampled(40.0, lambda t: reading(t, counter(t), 300.0))

    assert joules(node, 0.0, 40.0) == pytest.approx(12_000.0, abs=10.0)
    assert [n.kind for n in notices] == ["energy_estimated"]
    assert "stands still" in notices[0].text
    assert not node.meters["GPU-0"].estimating


def test_frozen_counter_without_power_is_unknown() -> None:
    """With neither counter nor power a stretch is unknown, never zero."""
    node, _ = sampled(20.0, lambda t: reading(t, round(300_000 * min(t, 10.0))))

    assert node.between_j(9.0, 15.0)["GPU-0"] is None


def test_lost_gpu_keeps_what_it_had() -> None:
    """N03: a lost GPU is told once with its time, keeps its joules, and the others go on."""
    node = node_of("GPU-0", "GPU-1")
    notices = []
    for i in range(101):
        t = i * PERIOD_S
        alive = reading(t, round(100_000 * t))
        notices += node.add(t, [alive, alive if t < 8.0 else GpuSample(int(t * 1e9), error_code=15)])

    assert [(n.kind, n.uuid, round(n.t_s, 3)) for n in notices] == [("gpu_lost", "GPU-1", 8.0)]
    assert "15" in notices[0].text
    assert Allocation({"node01": node}).cumulative_j() == {
        "GPU-0": pytest.approx(2000.0),
        "GPU-1": pytest.approx(780.0),
    }
    assert node.between_j(2.0, 18.0) == {"GPU-0": pytest.approx(1600.0), "GPU-1": None}
    assert node.covered(20.0), "nobody waits for a lost GPU"


def test_a_gpu_read_earlier_than_the_others_counts_from_its_own_instant() -> None:
    """One GPU answers 0.9 s late all the time: the other's readings are not dated by it."""
    node = node_of("GPU-0", "GPU-1")

    for i in range(100):
        prompt_s, late_s = float(i), i + 0.9
        node.add(
            late_s,
            [reading(prompt_s, round(1000 * prompt_s**2)), reading(late_s, round(1000 * late_s**2))],
        )

    for uuid in ("GPU-0", "GPU-1"):
        assert node.between_j(20.0, 60.0)[uuid] == pytest.approx(60.0**2 - 20.0**2, abs=0.3)


def test_gpu_that_comes_back() -> None:
    """A GPU that answers again is told, and its counter tells the gap's energy."""
    node, notices = sampled(
        30.0,
        lambda t: GpuSample(0, error_code=15) if 10.0 < t < 20.0 else reading(t, round(100_000 * t)),
    )

    assert [n.kind for n in notices] == ["gpu_lost", "gpu_back"]
    assert joules(node, 5.0, 25.0) == pytest.approx(2000.0)
    assert node.between_j(5.0, 15.0)["GPU-0"] is None, "where in the gap the energy went is not known"


def test_gpu_left_out_of_samples() -> None:
    """A GPU that is simply missing from the samples is told once and not waited for."""
    node, notices = sampled(20.0, lambda t: reading(t, round(100_000 * t)) if t < 5.0 else None)

    assert [n.kind for n in notices] == ["sample_gap"]
    assert node.covered(20.0)


def test_gap_of_a_node() -> None:
    """An edge inside a long gap is unknown; totals across it are right, and the gap is told."""
    node = node_of()
    notices = []
    for t in [i * PERIOD_S for i in range(100) if not 25 <= i < 60]:
        notices += node.add(t, [reading(t, round(150_000 * t))])

    assert [n.kind for n in notices] == ["sample_gap"]
    assert node.between_j(1.0, 8.0)["GPU-0"] is None
    assert joules(node, 1.0, 15.0) == pytest.approx(2100.0)


def test_samples_out_of_order_are_passed_over() -> None:
    """A sample that is not later than the last one changes nothing."""
    node, _ = sampled(5.0, lambda t: reading(t, round(100_000 * t)))

    node.add(3.0, [reading(3.0, 10**9)])

    assert joules(node, 1.0, 5.0) == pytest.approx(400.0)


def test_nothing_outside_what_was_read() -> None:
    """Before the first and after the last reading energy is unknown."""
    node, _ = sampled(5.0, lambda t: reading(t, round(100_000 * t)))

    assert node.between_j(-1.0, 2.0)["GPU-0"] is None
    assert node.between_j(1.0, 5.5)["GPU-0"] is None
    assert node_of().between_j(0.0, 1.0)["GPU-0"] is None


def test_covered_means_a_fresh_reading() -> None:
    """A reading that repeats the counter does not cover an instant; the next publication does."""
    node, _ = sampled(5.0, lambda t: reading(t, round(100_000 * t)))

    node.add(5.2, [reading(5.2, 500_000)])

    assert not node.covered(5.1)
    node.add(5.3, [reading(5.3, 530_000)])
    assert node.covered(5.1)


def test_silent_node_is_not_waited_for() -> None:
    """A node far behind the others is silent: its energy is unknown, and updates do not wait for it."""
    allocation = Allocation({"a": NodeEnergy("a", ["GPU-a"]), "b": NodeEnergy("b", ["GPU-b"])})
    for i in range(100):
        allocation.nodes["a"].add(i * PERIOD_S, [reading(i * PERIOD_S, i)])
        if i < 50:
            allocation.nodes["b"].add(i * PERIOD_S, [reading(i * PERIOD_S, i)])

    assert allocation.covered(19.0)
    assert not allocation.covered(20.0)
    assert allocation.between_j(1.0, 19.0)["GPU-b"] is None


def test_thinning_keeps_totals_and_edges() -> None:
    """Points that go are those on straight lines: totals stay, and so do the steps at the edges of phases."""
    source = random.Random(4)
    curve, points, total_j = Curve(max_points=500), [], 0.0
    for i in range(20_000):
        t = i * PERIOD_S
        watts = (600.0 if t % 100.0 < 60.0 else 200.0) + source.uniform(-3.0, 3.0)
        curve.add(t, total_j)
        points.append((t, total_j))
        total_j += watts * PERIOD_S
    by_time = dict(points)

    assert len(curve) <= 500
    last_s = points[-1][0]
    assert curve.at(last_s) == by_time[last_s]
    assert curve.at(0.0) == 0.0
    errors = [abs((curve.at(t) or 0.0) - joules) for t, joules in points if last_s - 1000 < t < last_s]
    assert max(errors) < 100.0, "one part in twenty thousand of a 100 s update"


def test_thinned_curve_has_no_gaps() -> None:
    """Distances made by thinning are not gaps in the readings."""
    curve = Curve(max_points=64)
    for i in range(5000):
        curve.add(i * PERIOD_S, i * 10.0)

    assert curve.at(333.33) == pytest.approx(333.33 * 50.0)


def test_forgetting_keeps_what_is_needed() -> None:
    """After forgetting, later stretches have the same energy and statistics as before."""
    node, _ = sampled(60.0, lambda t: GpuSample(0, round(100_000 * t), 1500, None, 50, 4 if t > 40 else 0))
    allocation = Allocation({"node01": node})
    stretches = [(30.0, 50.0), (30.1, 50.0), (29.99, 31.0)]
    before = (joules(node, 30.1, 50.0), [allocation.statistics([stretch]) for stretch in stretches])

    allocation.forget_before(30.1)

    assert (joules(node, 30.1, 50.0), [allocation.statistics([s]) for s in stretches]) == before
    assert allocation.statistics([(30.1, 50.0)]).capped_fraction == pytest.approx(0.5, abs=0.02)
    assert node.between_j(10.0, 50.0)["GPU-0"] is None


def test_statistics_of_intervals() -> None:
    """Clocks count while busy only; unknown fields leave a share unknown, not zero (N05)."""
    node, _ = sampled(10.0, lambda t: GpuSample(0, None, 1200 if t < 5 else 300, 1000, 80 if t < 5 else 0))

    statistics = Allocation({"node01": node}).statistics([(1.0, 3.0), (6.0, 8.0)])

    assert statistics.samples == 20
    assert statistics.achieved_mhz == 1200.0
    assert statistics.busy_fraction == 0.5
    assert statistics.capped_fraction is None
    assert statistics.slowed_fraction is None


def test_statistics_of_a_pool() -> None:
    """Sums are kept by pool, so that a pool that waits does not count in the other's clock and load."""
    node = node_of("GPU-0", "GPU-1", "GPU-2")
    allocation = Allocation({"node01": node})
    engine, trainer = frozenset({"GPU-0", "elsewhere"}), frozenset({"GPU-1"})

    for i in range(51):
        if i == 5:
            allocation.group_by([engine, trainer])
        busy, idle = GpuSample(0, sm_mhz=1500, util_pct=90), GpuSample(0, sm_mhz=345, util_pct=0)
        node.add(i * PERIOD_S, [busy, idle, GpuSample(0, sm_mhz=1980, util_pct=50)])
    allocation.group_by([engine, trainer])  # nothing new: nothing is lost

    span = [(2.0, 6.0)]
    assert allocation.statistics(span, engine).achieved_mhz == 1500.0
    assert allocation.statistics(span, engine).busy_fraction == 1.0
    assert allocation.statistics(span, trainer).achieved_mhz is None
    assert allocation.statistics(span, trainer).busy_fraction == 0.0
    assert allocation.statistics(span, engine | trainer).busy_fraction == 0.5
    assert allocation.statistics(span).samples == 60
    assert allocation.statistics(span, frozenset({"GPU-9"})).samples == 0
    assert allocation.statistics([(0.0, 0.9)], engine).samples == 0, "before the pools were known"


def test_load_of_each_gpu_is_over_the_whole_run() -> None:
    """Every GPU has its own clock and shares over all samples, whatever was forgotten or regrouped meanwhile."""
    node = node_of("GPU-0", "GPU-1", "GPU-2")
    allocation = Allocation({"node01": node})

    for i in range(50):
        capped = GpuSample(0, sm_mhz=1500, util_pct=90, reasons=0x4 if i < 10 else 0)
        hot = GpuSample(0, sm_mhz=900 if i % 2 else 345, util_pct=90 * (i % 2), reasons=0x40)
        node.add(i * PERIOD_S, [capped, hot, None])
        if i == 25:
            allocation.forget_before(4.0)
            allocation.group_by([frozenset({"GPU-0"})])

    loads = allocation.loads()
    assert (loads["GPU-0"].achieved_mhz, loads["GPU-0"].busy_fraction) == (1500.0, 1.0)
    assert (loads["GPU-0"].capped_fraction, loads["GPU-0"].slowed_fraction) == (0.2, 0.0)
    assert (loads["GPU-1"].achieved_mhz, loads["GPU-1"].busy_fraction) == (900.0, 0.5)
    assert (loads["GPU-1"].capped_fraction, loads["GPU-1"].slowed_fraction) == (0.0, 1.0)
    assert (loads["GPU-2"].samples, loads["GPU-2"].slowed_fraction) == (0, None)


def test_statistics_before_any_sample() -> None:
    """Nothing sampled, nothing claimed."""
    statistics = Allocation({"node01": node_of()}).statistics([(0.0, 10.0)])

    assert (statistics.achieved_mhz, statistics.busy_fraction, statistics.samples) == (None, None, 0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.builds(
                GpuSample,
                t_ns=st.just(0),
                energy_mj=st.one_of(st.none(), st.integers(0, 2**63)),
                power_mw=st.one_of(st.none(), st.integers(0, 1_000_000)),
                error_code=st.sampled_from([None, None, 15, 999]),
            ),
        ),
        max_size=60,
    ),
    st.lists(st.floats(0.001, 20.0), min_size=60, max_size=60),
)
def test_any_readings_give_growing_energy(samples: list[GpuSample | None], steps: list[float]) -> None:
    """Whatever a GPU says, its energy never falls, is never NaN, and never grows faster than any GPU draws."""
    meter, t_s, before_j = Meter("GPU-0"), 0.0, 0.0
    for sample, step_s in zip(samples, steps, strict=False):
        t_s += step_s
        meter.read(t_s, sample)
        now_j = meter.energy_j or 0.0
        assert math.isfinite(now_j)
        assert now_j >= before_j - 1e-6
        before_j = now_j
        assert meter.measured_s <= t_s + 1e-6
    assert before_j <= 5000.0 * (t_s + 0.2 * len(samples) + 1.0)


def test_memory_is_bounded() -> None:
    """A day of samples in one update stays within half a megabyte a GPU."""
    node = node_of()
    tracemalloc.start()

    for i in range(60_000):
        node.add(i * PERIOD_S, [GpuSample(0, i * 50_000, 1500, 250_000, 90, 0)])

    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_000_000
    assert joules(node, 0.0, 59_999 * PERIOD_S) == pytest.approx(59_999 * 50.0)
