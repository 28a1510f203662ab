"""One GPU's energy: counter readings turned into cumulative joules, and a curve to interpolate on.

The counter (``nvmlDeviceGetTotalEnergyConsumption``, mJ since the driver was loaded) is the truth where it is
offered. Where it is not, or stands still, power samples are integrated by trapezoid and the result is called
estimated. A counter that restarts (driver reload, GPU reset) or jumps is bridged with power and reported, never
subtracted. All times are run time in seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from eerl_launch.curve import MAX_GAP_S, MAX_POINTS, Curve
from eerl_launch.devices.base import GpuSample

#: No GPU or superchip module draws more (GB300 module limit: 2900 W); a faster counter is not counting joules.
_MAX_POWER_W = 5000.0
#: Slack for two counter periods (100 ms each): a publication can fall between two close samples.
_SLACK_S = 0.2


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a GPU that the report must tell; ``values``: its numbers, with the unit in each name."""

    kind: str
    uuid: str
    t_s: float
    text: str
    values: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """One GPU's readings turned into joules since the first of them."""

    def __init__(self, uuid: str, max_gap_s: float = MAX_GAP_S, counter_period_s: float = 0.0) -> None:
        self.uuid = uuid
        self.energy_j: float | None = None
        self.estimated_j = 0.0
        self.measured_s = 0.0
        self.lost_at_s: float | None = None
        # GPUs that thin at the same sample would stop the loop together, so each has a limit of its own.
        points = MAX_POINTS + zlib.crc32(uuid.encode()) % 1000
        self.curve = Curve(max_gap_s, points, counter_period_s / 2)
        self._max_gap_s = max_gap_s
        self._counting = False  # whether the counter is what energy comes from now
        self._last_t_s = 0.0  # of the newest point of the curve
        self._last_mj: int | None = None
        self._attempt_t_s: float | None = None  # of the newest sample, answered or not
        self._mean_w = 0.0  # over the newest stretch that was counted
        self._power: tuple[float, float] | None = None  # newest power sample: instant, watts
        self._since_j: float | None = None  # integral of power since the newest point of the curve
        self._silent = False
        self._told_estimated = False

    @property
    def estimating(self) -> bool:
        """Whether energy comes from power samples now."""
        return self.energy_j is not None and not self._counting

    @property
    def absent(self) -> bool:
        """Whether nobody should wait for a reading: lost, or without one for long although it was asked."""
        return self.lost_at_s is not None or self._silent

    def read(self, t_s: float, sample: GpuSample | None) -> list[Notice]:
        """Take one sample in; None where the GPU gave nothing. One that is not later than the last is passed over."""
        if self._attempt_t_s is None:
            self._attempt_t_s = self._last_t_s = t_s
        elif t_s <= self._attempt_t_s:
            return []
        attempt_s = t_s - self._attempt_t_s
        self._attempt_t_s = t_s
        if sample is None or (sample.energy_mj is None and sample.power_mw is None):
            return self._missing(t_s, sample)
        notices = []
        if self.lost_at_s is not None:
            notices.append(Notice("gpu_back", self.uuid, t_s, "answers again"))
            self.lost_at_s = None
        self._silent = False
        self._integrate(t_s, sample.power_mw)
        step_s = t_s - self._last_t_s
        # The counter is published about every 100 ms: an equal reading is the old one, not "no energy used".
        news = sample.energy_mj is not None and sample.energy_mj != self._last_mj
        if self.energy_j is None:
            self.energy_j = 0.0
            self._counting = sample.energy_mj is not None
        elif news and self._counting:
            notices += self._count(t_s, sample.energy_mj or 0, step_s, attempt_s)
        elif news:
            self._estimate(t_s, step_s, attempt_s)
            self._counting = True
        elif self._counting and step_s <= self._max_gap_s:
            return notices  # its next publication tells about this time too
        elif sample.power_mw is None:
            return notices  # nothing to go by
        else:
            self._counting = False
            self._estimate(t_s, step_s, attempt_s)
            notices += self._tell_estimated(t_s, sample.energy_mj)
        self._last_t_s = t_s
        self._last_mj = self._last_mj if sample.energy_mj is None else sample.energy_mj
        if self._power is not None:
            self._power, self._since_j = (t_s, self._power[1]), 0.0
        self.curve.add(t_s, self.energy_j)
        return notices

    def _missing(self, t_s: float, sample: GpuSample | None) -> list[Notice]:
        if self.lost_at_s is not None:
            return []
        if sample is not None and sample.error_code is not None:
            self.lost_at_s = t_s
            return [Notice("gpu_lost", self.uuid, t_s, f"cannot be read (NVML code {sample.error_code})")]
        if self._silent or t_s - self._last_t_s <= self._max_gap_s:
            return []
        self._silent = True
        return [
            Notice(
                "sample_gap", self.uuid, t_s, f"gives neither energy nor power since {self._last_t_s:.1f} s"
            )
        ]

    def _integrate(self, t_s: float, power_mw: int | None) -> None:
        """Add the trapezoid between the last power sample and this one."""
        if power_mw is None:
            return
        power_w = power_mw / 1000.0
        if self._power is not None:
            before_s, before_w = self._power
            self._since_j = (self._since_j or 0.0) + (before_w + power_w) / 2 * (t_s - before_s)
        self._power = (t_s, power_w)

    def _count(self, t_s: float, energy_mj: int, step_s: float, attempt_s: float) -> list[Notice]:
        delta_j = (energy_mj - (self._last_mj or 0)) / 1000.0
        if 0.0 <= delta_j <= _MAX_POWER_W * (step_s + _SLACK_S):
            self.energy_j = (self.energy_j or 0.0) + delta_j
            self.measured_s += step_s
            self._mean_w = delta_j / step_s
            return []
        bridged_j = self._estimate(t_s, step_s, attempt_s)
        text = f"energy counter went from {self._last_mj} to {energy_mj} mJ; "
        text += f"{step_s:.1f} s bridged with {bridged_j:.0f} J from power"
        return [Notice("counter_restart", self.uuid, t_s, text)]

    def _estimate(self, t_s: float, step_s: float, attempt_s: float) -> float:
        """Book power × time for the stretch since the newest point; covered is only what was really sampled."""
        estimated_j = self._mean_w * step_s
        if self._power is not None and self._since_j is not None:
            power_t_s, power_w = self._power
            estimated_j = self._since_j + power_w * (t_s - power_t_s)
        self.energy_j = (self.energy_j or 0.0) + estimated_j
        self.estimated_j += estimated_j
        self.measured_s += min(step_s, attempt_s)
        self._mean_w = estimated_j / step_s
        return estimated_j

    def _tell_estimated(self, t_s: float, energy_mj: int | None) -> list[Notice]:
        if self._told_estimated:
            return []
        self._told_estimated = True
        why = (
            "no energy counter" if energy_mj is None else f"the energy counter stands still at {energy_mj} mJ"
        )
        return [Notice("energy_estimated", self.uuid, t_s, f"{why}: power samples are integrated")]
