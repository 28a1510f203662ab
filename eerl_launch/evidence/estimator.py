"""Appendix A of the paper: a setting against the governor over matched seeds.

For seed s, throughput q = sum(N) / sum(T) and energy per valid training token e = sum(E) / sum(N) are formed for
the setting and for the governor; the ratio of the two is averaged over seeds as a geometric mean. The paper gives
no intervals. Here they are of a randomised block design: with every log q and log e, the governor's too, as
block + setting + noise, what blocks and settings leave unexplained is the noise, pooled over the settings of a
workload, and Student's t does the rest. One setting's own spread over two or four seeds says next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

#: Of every interval here, in percent.
CONFIDENCE_PERCENT = 95
_TAIL = 0.5 + CONFIDENCE_PERCENT / 200.0

Setting = tuple[int | None, int | None]
#: Generation and training clock in MHz, None being the governor.
GOVERNOR: Setting = (None, None)


def student_t(freedom: float) -> float:
    """How many standard errors half a 95 % interval is, for so many degrees of freedom."""
    return float(stdtrit(freedom, _TAIL))


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the updates of one run that are compared."""

    valid_tokens: float
    elapsed_s: float
    energy_j: float

    @property
    def log_throughput(self) -> float:
        """Log of valid training tokens per second."""
        return math.log(self.valid_tokens / self.elapsed_s)

    @property
    def log_energy(self) -> float:
        """Log of joules per valid training token."""
        return math.log(self.energy_j / self.valid_tokens)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study. Runs of one ``block`` (seed, repetition and allocation) are compared with each other."""

    seed: int
    block: str
    setting: Setting
    totals: Totals
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio to the governor; ``low`` and ``high`` are its interval, None when the noise is not known."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of_log(cls, log_ratio: float, half_width: float | None) -> Ratio:
        """The ratio of a mean log ratio and half its interval."""
        if half_width is None:
            return cls(math.exp(log_ratio))
        return cls(math.exp(log_ratio), math.exp(log_ratio - half_width), math.exp(log_ratio + half_width))

    @property
    def change_percent(self) -> float:
        """How much more than the governor, percent."""
        return 100.0 * (self.ratio - 1.0)

    @property
    def saving_percent(self) -> float:
        """How much less than the governor, percent."""
        return -self.change_percent

    def change_interval(self) -> tuple[float | None, float | None]:
        """The interval of :attr:`change_percent`, lower limit first."""
        return _percent(self.low), _percent(self.high)

    def saving_interval(self) -> tuple[float | None, float | None]:
        """The interval of :attr:`saving_percent`, lower limit first."""
        low, high = self.change_interval()
        return (None, None) if low is None or high is None else (-high, -low)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * (ratio - 1.0)


def power_ratio(throughput: float, energy: float) -> float:
    """Mean power relative to the governor: energy per token times tokens per second (equation 1, figure 2)."""
    return throughput * energy


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting against the governor; ``reward_delta`` is setting minus governor in reward units."""

    setting: Setting
    throughput: Ratio
    energy: Ratio
    power: Ratio
    seeds: int
    pairs: int
    reward_delta: float | None = None

    @property
    def throughput_change_percent(self) -> float:
        """Change of valid training tokens per second."""
        return self.throughput.change_percent

    @property
    def energy_saving_percent(self) -> float:
        """Less energy per valid training token."""
        return self.energy.saving_percent

    def within(self, allowed_loss: float) -> bool:
        """Whether the setting saves energy and keeps throughput (section 4.2); the loss is a fraction."""
        return self.throughput.ratio >= 1.0 - allowed_loss and self.energy.ratio < 1.0


def compare_settings(cells: Sequence[Cell]) -> list[Comparison]:
    """Every setting that has a governor run in one of its blocks, against the governor, in order of appearance.

    Cells without a governor run in their block take no part: there is nothing to compare them with.
    """
    governor = {cell.block: cell for cell in cells if cell.setting == GOVERNOR}
    matched = [cell for cell in cells if cell.block in governor]
    settings = list(dict.fromkeys(cell.setting for cell in matched if cell.setting != GOVERNOR))
    noise = {name: _noise(matched, name) for name in ("throughput", "energy", "power")}
    found = []
    for setting in settings:
        pairs = [(cell, governor[cell.block]) for cell in matched if cell.setting == setting]
        ratios = {}
        for name, spread in noise.items():
            by_seed: dict[int, list[float]] = {}
            for cell, reference in pairs:
                by_seed.setdefault(cell.seed, []).append(_log(cell, name) - _log(reference, name))
            mean = float(np.mean([np.mean(values) for values in by_seed.values()]))
            # Each pair has the noise of two runs; seeds weigh alike, however often they were repeated.
            share = 2.0 * sum(1.0 / len(values) for values in by_seed.values()) / len(by_seed) ** 2
            ratios[name] = Ratio.of_log(mean, None if spread is None else spread * math.sqrt(share))
        found.append(
            Comparison(
                setting,
                ratios["throughput"],
                ratios["energy"],
                ratios["power"],
                seeds=len({cell.seed for cell, _ in pairs}),
                pairs=len(pairs),
                reward_delta=_reward_delta(pairs),
            )
        )
    return found


def _log(cell: Cell, name: str) -> float:
    totals = cell.totals
    if name == "power":
        return totals.log_energy + totals.log_throughput
    return totals.log_energy if name == "energy" else totals.log_throughput


def _noise(cells: Sequence[Cell], name: str) -> float | None:
    """Standard deviation of one run's log around block plus setting, times Student's t; None without freedom."""
    blocks = {block: place for place, block in enumerate(dict.fromkeys(cell.block for cell in cells))}
    settings = {setting: place for place, setting in enumerate(dict.fromkeys(c.setting for c in cells))}
    design = np.zeros((len(cells), len(blocks) + len(settings)))
    for row, cell in enumerate(cells):
        design[row, blocks[cell.block]] = 1.0
        design[row, len(blocks) + settings[cell.setting]] = 1.0
    values = np.array([_log(cell, name) for cell in cells])
    if not len(values):
        return None
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(values) - int(rank)
    if freedom < 1:
        return None
    residuals = values - design @ solution
    return math.sqrt(float(residuals @ residuals) / freedom) * student_t(freedom)


def _reward_delta(pairs: Sequence[tuple[Cell, Cell]]) -> float | None:
    known = [
        cell.reward - reference.reward
        for cell, reference in pairs
        if cell.reward is not None and reference.reward is not None
    ]
    return float(np.mean(known)) if len(known) == len(pairs) and known else None


def best_setting(comparisons: Sequence[Comparison], allowed_loss: float) -> Comparison | None:
    """The setting with the lowest energy per valid token of those within the limit; None: keep the governor."""
    eligible = [item for item in comparisons if item.within(allowed_loss)]
    return min(eligible, key=lambda item: item.energy.ratio, default=None)
