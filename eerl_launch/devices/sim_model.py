"""What a simulated GPU draws and how fast it works at a clock. Synthetic; standard library only.

Clock tables, idle draws and power limits are those of public ``nvidia-smi -q`` captures; the curves between
them are invented, with these shapes: voltage flat over the lower clocks and rising above, dynamic power with
V²f, decoding bound by memory over the upper clocks, training bound by the clock and, on an H100, by the power cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

#: Clock-event reasons (nvml.h, nvmlClocksEventReason*).
REASON_IDLE, REASON_SW_POWER_CAP = 0x1, 0x4

#: What a GPU can be doing. Training stands for everything bound by compute (log-probabilities too).
IDLE, GENERATION, TRAINING = 0, 1, 2
KINDS = {"idle": IDLE, "generation": GENERATION, "training": TRAINING}

#: Time of a decode step over clock is a smooth maximum of a constant and a term in 1/f: order of that maximum.
_KNEE_ORDER = 8
#: Training rate over clock: a little under linear, as for matrix products with some communication.
_TRAINING_EXPONENT = 0.9


@lru_cache(maxsize=16)
def _table(first_mhz: float, step_mhz: float, clocks: int) -> tuple[int, ...]:
    return tuple(int(first_mhz + step_mhz * step) for step in range(clocks))


@lru_cache(maxsize=1024)
def _settle(model: Model, ceiling_mhz: int, kind: int, load: float) -> tuple[int, int]:
    """What :meth:`Model.settle` says; asked again and again for the GPUs of a node, and slow under the cap."""
    reasons = REASON_IDLE if kind == IDLE else 0
    if model.power_w(ceiling_mhz, kind, load) <= model.power_limit_w:
        return ceiling_mhz, reasons
    for mhz in reversed(model.supported_mhz):
        if mhz <= ceiling_mhz and model.power_w(mhz, kind, load) <= model.power_limit_w:
            return mhz, reasons | REASON_SW_POWER_CAP
    return model.supported_mhz[0], reasons | REASON_SW_POWER_CAP


@dataclass(frozen=True, slots=True)
class Model:
    """One GPU model: MHz, watts, and the fraction of the top clock where decoding turns compute-bound."""

    name: str
    first_mhz: float
    step_mhz: float
    clocks: int
    power_limit_w: float
    idle_w: float
    clock_w: float
    generation_w: float
    generation_dynamic_w: float
    training_w: float
    training_dynamic_w: float
    flat_fraction: float = 0.556
    lowest_voltage: float = 0.72
    knee_fraction: float = 0.5

    @property
    def supported_mhz(self) -> tuple[int, ...]:
        """Clocks that can be locked, ascending; steps of 7.5 MHz appear as 8 and 7, as the driver shows them."""
        return _table(self.first_mhz, self.step_mhz, self.clocks)

    @property
    def max_mhz(self) -> int:
        """The highest clock in MHz."""
        return int(self.first_mhz + self.step_mhz * (self.clocks - 1))

    def power_w(self, mhz: int, kind: int, load: float) -> float:
        """Draw in watts at a clock; ``load`` (0..1) scales what the work adds to idle."""
        share = mhz / self.max_mhz
        above = max(0.0, share - self.flat_fraction) / (1 - self.flat_fraction)
        v2f = (self.lowest_voltage + (1 - self.lowest_voltage) * above) ** 2 * share
        watts = self.idle_w + self.clock_w * v2f
        if kind == GENERATION:
            watts += load * (self.generation_w + self.generation_dynamic_w * v2f)
        elif kind == TRAINING:
            watts += load * (self.training_w + self.training_dynamic_w * v2f)
        return watts

    def speed(self, mhz: int, kind: int) -> float:
        """Rate of work, 1 at the highest clock; idle time passes at 1 whatever the clock."""
        if kind == TRAINING:
            return float((mhz / self.max_mhz) ** _TRAINING_EXPONENT)
        if kind == GENERATION:
            return self._decode_time(self.max_mhz) / self._decode_time(mhz)
        return 1.0

    def _decode_time(self, mhz: int) -> float:
        compute = self.knee_fraction * self.max_mhz / mhz
        return float((1 + compute**_KNEE_ORDER) ** (1 / _KNEE_ORDER))

    def snap_mhz(self, mhz: int) -> int:
        """The supported clock nearest to ``mhz``."""
        return min(self.supported_mhz, key=lambda clock: (abs(clock - mhz), clock))

    def settle(self, ceiling_mhz: int, kind: int, load: float) -> tuple[int, int]:
        """The clock that is reached under a ceiling, and the clock-event reasons."""
        return _settle(self, ceiling_mhz, kind, load)


MODELS = {
    "a100": Model("NVIDIA A100-SXM4-40GB", 210, 15, 81, 400, 50, 30, 50, 90, 70, 300, 0.574, 0.74),
    "h100": Model("NVIDIA H100 80GB HBM3", 345, 15, 110, 700, 68, 54, 80, 148, 120, 578),
    "b200": Model("NVIDIA B200", 120, 7.5, 247, 1000, 198, 60, 110, 230, 180, 720),
    "gb200": Model("NVIDIA GB200", 120, 7.5, 260, 1200, 164, 66, 130, 270, 220, 900),
}
