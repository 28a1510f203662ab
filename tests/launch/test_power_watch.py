"""A GPU's own power and its enforced limit, beside the energy counter (field cases N12, C08)."""

from __future__ import annotations

import pytest

from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import Allocation, NodeEnergy
from eerl_launch.power_watch import PowerWatch


def sample(power_w: float | None = None, limit_w: float | None = None) -> GpuSample:
    power_mw, limit_mw = (None if watts is None else round(1000 * watts) for watts in (power_w, limit_w))
    return GpuSample(0, power_mw=power_mw, limit_mw=limit_mw)


def test_mean_power_is_by_time() -> None:
    """Samples count by the time between them, and a gap counts neither as power nor as time."""
    watch = PowerWatch("GPU-0", max_gap_s=3.0)
    assert watch.mean_w is None

    for t_s, power_w in ((0.0, 400.0), (1.0, 400.0), (3.0, 400.0), (103.0, 100.0), (104.0, 100.0)):
        watch.read(t_s, sample(power_w))

    assert watch.mean_w == pytest.approx((3 * 400 + 100) / 4)


def test_a_limit_is_told_when_it_changes_and_only_then() -> None:
    """The first limit is what there is; each change is told once, with both limits; unknown is no change."""
    watch = PowerWatch("GPU-0")
    limits_w = [None, 700.0, 700.0, 700.4, 400.0, None, 400.0, 0.0, 700.0]

    notices = [
        notice for i, limit_w in enumerate(limits_w) for notice in watch.read(0.2 * i, sample(300, limit_w))
    ]

    assert [(n.kind, n.values) for n in notices] == [
        ("power_limit_changed", {"limit_before_w": 700.0, "limit_w": 400.0}),
        ("power_limit_changed", {"limit_before_w": 400.0, "limit_w": 700.0}),
    ]
    assert [n.t_s for n in notices] == pytest.approx([0.8, 1.6])


def test_a_module_counter_and_its_gpu() -> None:
    """The counter's joules are those of the module, the mean power is the GPU's alone."""
    node = NodeEnergy("n1", ["GPU-0"])
    for i in range(51):
        node.add(0.2 * i, [GpuSample(0, round(550_000 * 0.2 * i), power_mw=400_000)])

    allocation = Allocation({"n1": node})

    assert allocation.cumulative_j() == {"GPU-0": pytest.approx(5500.0)}
    assert allocation.mean_power_w() == {"GPU-0": pytest.approx(400.0)}
