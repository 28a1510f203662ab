"""Whether a GPU runs at the clock that was asked for, or somebody else's: achieved clocks beside the lock. No I/O.

Above its lock a GPU cannot run, so a few samples show another writer. Below it a GPU may well run, for reasons that
the driver names (power, heat, idling); only a busy GPU that runs lower for long and without any such reason has
somebody else's lower lock.
"""

from __future__ import annotations

from eerl_launch.devices.base import GpuSample

#: Samples in a row that make a clock broken, above and below the lock.
ABOVE_SAMPLES, BELOW_SAMPLES = 3, 15
#: One clock step, with its rounding.
_STEP_MHZ = 16
#: A clock this share below the lock is not the lock's; a GPU less in use than this may rest in between (percent).
_BELOW_FRACTION = 0.05
_BUSY_PCT = 50
#: Clock-event reasons (nvml.h) that explain a lower clock: idle, power cap, hardware slowdown, sync boost, heat
#: twice, power brake, display. Not among them: 0x2, application clocks, which are what another writer sets.
_EXPLAINED = 0x1 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x100


class ClockWatch:
    """Counts, per GPU, samples in a row at a clock that is not the one asked for."""

    def __init__(self) -> None:
        self._above: dict[str, int] = {}
        self._below: dict[str, int] = {}

    def restart(self) -> None:
        """Clocks are changing: what was seen before says nothing about what is asked for now."""
        self._above.clear()
        self._below.clear()

    def judge(self, uuid: str, asked_mhz: int, sample: GpuSample) -> str | None:
        """What is wrong with this GPU's clock once it is sure, else None."""
        mhz = sample.sm_mhz
        if mhz is None:
            return None
        above = mhz > asked_mhz + _STEP_MHZ
        below = (
            mhz < asked_mhz * (1 - _BELOW_FRACTION) - _STEP_MHZ
            and (sample.util_pct or 0) >= _BUSY_PCT
            and sample.reasons is not None
            and not sample.reasons & _EXPLAINED
        )
        self._above[uuid] = self._above.get(uuid, 0) + 1 if above else 0
        self._below[uuid] = self._below.get(uuid, 0) + 1 if below else 0
        if self._above[uuid] >= ABOVE_SAMPLES:
            return f"runs at {mhz} MHz although {asked_mhz} was asked for"
        if self._below[uuid] >= BELOW_SAMPLES:
            return f"runs at {mhz} MHz although {asked_mhz} was asked for, and the driver names no reason"
        return None
