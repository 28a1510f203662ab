"""The kinds of GPU that a population is made of: clock tables that drivers show, watts drawn around anchors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eerl_twin.response import PowerShape
from eerl_twin.world import Activity, Power


@dataclass(frozen=True, slots=True)
class Gpu:
    """A clock table in MHz and a power limit in watts."""

    name: str
    supported_mhz: tuple[int, ...]
    limit_w: float


#: Steps of 15 MHz, of 7.5 MHz shown as 8 and 7, and a coarse, uneven table.
GPUS = (
    Gpu("H100", tuple(range(345, 1981, 15)), 700.0),
    Gpu("GB200", tuple(int(120 + 7.5 * step) for step in range(260)), 1200.0),
    Gpu("A100", tuple(range(210, 1411, 15)), 400.0),
    Gpu("coarse", (345, 360, 510, 615, 720, 870, 960, 1080, 1155, 1260, 1335, 1410, 1530, 1620), 350.0),
)


def draw_gpu(rng: np.random.Generator) -> Gpu:
    """One of the kinds; an H100 in half of the worlds, since that is what the paper measured."""
    return GPUS[int(rng.choice(len(GPUS), p=[0.5, 0.2, 0.2, 0.1]))]


def draw_power(rng: np.random.Generator, gpu: Gpu) -> Power:
    """Watts by activity: an H100's anchors (waiting 71 to 122 W, decode 137 to 600 W, training at the 700 W
    limit) drawn widely and scaled by the power limit.
    """
    scale = gpu.limit_w / 700.0

    def watts(low: float, high: float) -> float:
        return float(scale * rng.uniform(low, high))

    wait = Activity(watts(45.0, 90.0), watts(20.0, 70.0))
    return Power(
        shape=draw_shape(rng),
        wait=wait,
        generation=Activity(
            wait.floor_w + watts(30.0, 150.0),
            wait.clock_w + watts(50.0, 350.0),
            float(rng.uniform(0.86, 1.0)),
        ),
        training=Activity(
            wait.floor_w + watts(50.0, 180.0),
            wait.clock_w + watts(150.0, 560.0),
            float(rng.uniform(0.8, 1.0)),
        ),
        refit=Activity(wait.floor_w + watts(10.0, 80.0), wait.clock_w + watts(0.0, 80.0)),
        tail_load=float(rng.uniform(0.3, 1.0)),
        cap_w=gpu.limit_w,
        governor_waits_at=1.0 if rng.random() < 0.75 else float(rng.uniform(0.2, 1.0)),
    )


def draw_shape(rng: np.random.Generator) -> PowerShape:
    """The clock-dependent part of power in any form: from nearly linear to a third of the power at half the clock."""
    form = str(rng.choice(["voltage", "quadratic", "table"]))
    knee, lowest = float(rng.uniform(0.4, 0.75)), float(rng.uniform(0.6, 0.9))
    if form != "table":
        return PowerShape(form, knee=knee, lowest_voltage=lowest)
    clocks = np.concatenate([[0.1], np.sort(rng.uniform(0.2, 0.95, 6)), [1.0]])
    smooth = PowerShape(knee=knee, lowest_voltage=lowest).relative_power(clocks)
    steps = np.diff(smooth) * rng.gamma(4.0, 0.25, len(clocks) - 1)
    values = smooth[0] + np.concatenate([[0.0], np.cumsum(steps)])
    values /= values[-1]
    return PowerShape("table", clocks=tuple(clocks.tolist()), values=tuple(values.tolist()))
