"""Who sets the clocks: what is seen above and below a lock (field case C07)."""

from __future__ import annotations

import pytest

from eerl_launch.clock_watch import ABOVE_SAMPLES, BELOW_SAMPLES, ClockWatch
from eerl_launch.devices.base import GpuSample

ASKED_MHZ = 1500


def first_verdict(sample: GpuSample, samples: int = 100) -> int | None:
    """After how many equal samples a clock is called wrong."""
    watch = ClockWatch()
    return next((i + 1 for i in range(samples) if watch.judge("GPU-0", ASKED_MHZ, sample)), None)


@pytest.mark.parametrize(
    ("sample", "after"),
    [
        (GpuSample(0, sm_mhz=1980), ABOVE_SAMPLES),
        (GpuSample(0, sm_mhz=1200, util_pct=100, reasons=0), BELOW_SAMPLES),
        (GpuSample(0, sm_mhz=1200, util_pct=100, reasons=0x2), BELOW_SAMPLES),
        (GpuSample(0, sm_mhz=1200, util_pct=100, reasons=0x4), None),
        (GpuSample(0, sm_mhz=1200, util_pct=100, reasons=0x20), None),
        (GpuSample(0, sm_mhz=1200, util_pct=100), None),
        (GpuSample(0, sm_mhz=345, util_pct=0, reasons=0x1), None),
        (GpuSample(0, sm_mhz=1200, util_pct=20, reasons=0), None),
        (GpuSample(0, sm_mhz=1440, util_pct=100, reasons=0), None),
        (GpuSample(0, sm_mhz=1515, util_pct=100, reasons=0), None),
        (GpuSample(0, util_pct=100, reasons=0), None),
    ],
)
def test_what_is_somebody_elses_clock(sample: GpuSample, after: int | None) -> None:
    """Above the lock at once, below it when busy for long with no reason named; all else is the GPU's own affair."""
    assert first_verdict(sample) == after


def test_one_good_sample_starts_the_count_again() -> None:
    """Only samples in a row count, of one GPU, since the clocks were last changed."""
    watch = ClockWatch()
    low, right = (GpuSample(0, sm_mhz=mhz, util_pct=100, reasons=0) for mhz in (1200, ASKED_MHZ))

    for _ in range(3):
        assert all(watch.judge("GPU-0", ASKED_MHZ, low) is None for _ in range(BELOW_SAMPLES - 1))
        watch.judge("GPU-0", ASKED_MHZ, right)
    for _ in range(3):
        assert all(watch.judge("GPU-1", ASKED_MHZ, low) is None for _ in range(BELOW_SAMPLES - 1))
        watch.restart()
