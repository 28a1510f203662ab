"""A reading comes out of its row as it went in, at its own instant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eerl_launch.devices.base import GpuSample
from eerl_launch.sample_rows import pack, unpack

NUMBER = st.none() | st.integers(0, 2**63)
NEWEST_NS = 10**18


@given(age_ns=st.integers(0, 10**10), values=st.lists(NUMBER, min_size=7, max_size=7))
def test_a_row_brings_everything(age_ns: int, values: list[int | None]) -> None:
    """Any reading, with any of its numbers unknown, is the same at the other end."""
    sample = GpuSample(NEWEST_NS - age_ns, *values)

    row = pack(sample, NEWEST_NS)

    assert unpack(row, NEWEST_NS) == sample


def test_rows_are_short() -> None:
    """What is unknown at the end of a row takes no room, and no reading stays none."""
    assert pack(GpuSample(NEWEST_NS, 5, 1500), NEWEST_NS) == [5, 1500]
    assert pack(GpuSample(NEWEST_NS), NEWEST_NS) == []
    assert unpack([], NEWEST_NS) == GpuSample(NEWEST_NS)
    assert unpack(pack(None, NEWEST_NS), NEWEST_NS) is None
