"""What one GPU alone draws, and what it may draw: beside its energy counter, which may cover a whole module.

On a Grace Hopper module the counter includes CPU and memory (field case N12), power samples do not. The enforced
power limit is the lowest of the operator's, the rack's and the board's, so it changes without anybody asking the
driver (C08); a clock or an energy from before such a change says little about the time after it.
"""

from __future__ import annotations

from eerl_launch.curve import MAX_GAP_S
from eerl_launch.devices.base import GpuSample
from eerl_launch.meter import Notice

#: Limits are whole watts or tenths of them; less is no change.
_SAME_W = 1.0


class PowerWatch:
    """One GPU's power samples summed up, and its power limit watched. Times are run time in seconds."""

    def __init__(self, uuid: str, max_gap_s: float = MAX_GAP_S) -> None:
        self.uuid = uuid
        self.limit_w: float | None = None
        self._max_gap_s = max_gap_s
        self._newest: tuple[float, float] | None = None  # instant, watts
        self._joules = 0.0
        self._seconds = 0.0

    @property
    def mean_w(self) -> float | None:
        """Mean draw of the GPU alone over the time its power was sampled; None when it never was."""
        return self._joules / self._seconds if self._seconds > 0 else None

    def read(self, t_s: float, sample: GpuSample | None) -> list[Notice]:
        """Take one sample in; what the report must tell of it."""
        if sample is None:
            return []
        if sample.power_mw is not None:
            power_w = sample.power_mw / 1000.0
            if self._newest is not None and 0.0 < t_s - self._newest[0] <= self._max_gap_s:
                step_s = t_s - self._newest[0]
                self._joules += (self._newest[1] + power_w) / 2 * step_s
                self._seconds += step_s
            self._newest = (t_s, power_w)
        return self._watch_limit(t_s, sample.limit_mw)

    def _watch_limit(self, t_s: float, limit_mw: int | None) -> list[Notice]:
        if not limit_mw:
            return []
        before_w, now_w = self.limit_w, limit_mw / 1000.0
        if before_w is not None and abs(now_w - before_w) < _SAME_W:
            return []
        self.limit_w = now_w
        if before_w is None:
            return []
        text = f"the enforced power limit went from {before_w:.0f} W to {now_w:.0f} W"
        return [
            Notice(
                "power_limit_changed", self.uuid, t_s, text, {"limit_before_w": before_w, "limit_w": now_w}
            )
        ]
