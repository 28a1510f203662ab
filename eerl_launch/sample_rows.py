"""One GPU's reading as it travels from an agent to the session. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from eerl_launch.devices.base import GpuSample

Row = list[int | None]
_WIDTH = 8


def pack(sample: GpuSample | None, newest_ns: int) -> Row | None:
    """A reading as a row; its instant is told as nanoseconds before ``newest_ns``, the message's own.

    What is unknown at the end of a row is left out, which in most rows is all but the first few numbers.
    """
    if sample is None:
        return None
    row: Row = [
        sample.energy_mj,
        sample.sm_mhz,
        sample.power_mw,
        sample.util_pct,
        sample.reasons,
        sample.error_code,
        sample.limit_mw,
        newest_ns - sample.t_ns or None,
    ]
    while row and row[-1] is None:
        row.pop()
    return row


def unpack(row: Sequence[int | None] | None, newest_ns: int) -> GpuSample | None:
    """The reading of a row; raises ValueError for one that is too long."""
    if row is None:
        return None
    filled: Row = [*row, *[None] * (_WIDTH - len(row))]
    energy_mj, sm_mhz, power_mw, util_pct, reasons, error_code, limit_mw, age_ns = filled
    return GpuSample(
        t_ns=newest_ns - (age_ns or 0),
        energy_mj=energy_mj,
        sm_mhz=sm_mhz,
        power_mw=power_mw,
        util_pct=util_pct,
        reasons=reasons,
        error_code=error_code,
        limit_mw=limit_mw,
    )
