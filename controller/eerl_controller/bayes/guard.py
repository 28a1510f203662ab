"""The learning guard: what training learns from must not suffer from clocks (asynchronous modes).

Timing decides which responses training consumes and how old they are. Policy age, the share of generated tokens that
training uses, and reward of the updates under lowered clocks are compared with those under the governor; what is
further off than the tolerance, and surely so, fails and is not chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.pool_table import PoolMenu
from eerl_controller.clocks import Pair
from eerl_controller.records import UpdateRecord

Flags = NDArray[np.bool_]

#: Consumed responses may be older by one more version of the policy, on average.
AGE_TOLERANCE = 1.0
#: A smaller share of the generated tokens may be used, by a tenth. A queue that fills once looks like tokens that are
#: dropped: with it, a few batches of the forty that are compared.
USED_TOLERANCE = 0.1
#: Reward may be lower by a twentieth of what it is under the governor. It mostly grows while a job learns, so that an
#: earlier governor's is no hard measure.
REWARD_TOLERANCE = 0.05
#: Usable updates under one setting, and under the governor, before anything is said: two monitoring windows, and the
#: least that has a spread.
LEAST_UPDATES, LEAST_GOVERNOR = 40, 5
#: Standard errors by which a difference must pass its tolerance.
SURE = 2.326
#: Updates that count: four monitoring windows.
MEMORY = 80.0


@dataclass(slots=True)
class Mean:
    """A mean over the latest values with its variance."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.count = min(self.count + 1.0, MEMORY)
        off = value - self.mean
        self.mean += off / self.count
        self.variance += (off * off * (1.0 - 1.0 / self.count) - self.variance) / self.count

    @property
    def error2(self) -> float:
        """The square of its standard error."""
        return self.variance / max(self.count - 1.0, 1.0)

    def to_list(self) -> list[float]:
        """Ready for JSON."""
        return [self.count, self.mean, self.variance]


#: What is compared: name in words, tolerance, whether that is a share of the governor's, and whether less is worse.
COMPARED = (
    ("policy age", AGE_TOLERANCE, False, False),
    ("used share of generated tokens", USED_TOLERANCE, True, True),
    ("reward", REWARD_TOLERANCE, True, True),
)


class Guard:
    """Compares the setting that runs with the governor, and remembers what failed."""

    def __init__(self) -> None:
        self._pair: Pair | None = None
        self._own = [Mean() for _ in COMPARED]
        self._governor = [Mean() for _ in COMPARED]
        self._failed: list[Pair] = []

    def add(self, pair: Pair, record: UpdateRecord) -> None:
        """One usable update under these clocks."""
        if not pair.is_lowered:
            means = self._governor
        else:
            if pair != self._pair:
                self._pair, self._own = pair, [Mean() for _ in COMPARED]
            means = self._own
        used = None
        if record.generated_tokens and record.valid_tokens is not None:
            used = record.valid_tokens / record.generated_tokens
        for mean, value in zip(means, (record.policy_age_max, used, record.reward), strict=True):
            if value is not None:
                mean.add(float(value))

    def verdict(self, pair: Pair) -> str | None:
        """Why these clocks fail, in words; None as long as they do not."""
        if pair != self._pair:
            return None
        for (name, tolerance, relative, less), own, governor in zip(
            COMPARED, self._own, self._governor, strict=True
        ):
            if own.count < LEAST_UPDATES or governor.count < LEAST_GOVERNOR:
                continue
            worse = governor.mean - own.mean if less else own.mean - governor.mean
            allowed = tolerance * abs(governor.mean) if relative else tolerance
            if worse > allowed + SURE * math.sqrt(own.error2 + governor.error2):
                return (
                    f"{name} {own.mean:.3g} over {own.count:.0f} updates at {pair}, {governor.mean:.3g} under the "
                    "governor: these clocks are left for good"
                )
        return None

    def fail(self, pair: Pair) -> None:
        """These clocks, and all at least as low on both sides, are not chosen again."""
        self._failed = [*(item for item in self._failed if not _covers(pair, item)), pair]
        self._pair, self._own = None, [Mean() for _ in COMPARED]

    def barred(self, menu: PoolMenu) -> Flags | None:
        """The settings that may not be chosen; None when all may."""
        if not self._failed:
            return None
        found = np.zeros((len(menu.mhz[0]), len(menu.mhz[1])), dtype=bool)
        for pair in self._failed:
            low = [
                np.array([mhz is not None and mhz <= clock for mhz in column])
                if clock is not None
                else np.ones(len(column), dtype=bool)
                for clock, column in zip(pair.phases, menu.mhz, strict=True)
            ]
            found |= low[0][:, None] & low[1][None, :]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pair": list(self._pair) if self._pair else None,
            "own": [mean.to_list() for mean in self._own],
            "governor": [mean.to_list() for mean in self._governor],
            "failed": [list(pair) for pair in self._failed],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._pair = Pair(*values["pair"]) if values["pair"] else None
        self._own = [Mean(*mean) for mean in values["own"]]
        self._governor = [Mean(*mean) for mean in values["governor"]]
        self._failed = [Pair(*pair) for pair in values["failed"]]


def _covers(one: Pair, other: Pair) -> bool:
    """Whether all that the other bars is barred by this one too."""
    return all(
        own is None or (clock is not None and clock <= own)
        for own, clock in zip(one.phases, other.phases, strict=True)
    )
