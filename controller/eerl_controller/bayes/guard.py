"""The learning guard: what training learns from must not suffer from clocks (asynchronous modes).

Timing decides which responses training consumes and how old they are. Policy age, the share of generated tokens that
training uses, and reward of the updates under lowered clocks are compared with those under the governor; what is
further off than the tolerance, and surely so, fails and is not chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from eerl_controller.bayes.outcomes import Flags
from eerl_controller.bayes.pool_menu import PoolMenu
from eerl_controller.clocks import Pair
from eerl_controller.records import UpdateRecord

#: Consumed responses may be older by one more version of the policy, on average.
AGE_TOLERANCE = 1.0
#: A smaller share of the generated tokens may be used, by a tenth. A queue that fills once looks like tokens that are
#: dropped: with it, a few batches of the forty that are compared.
USED_TOLERANCE = 0.1
#: Reward may be lower by a twentieth of what it was under the governor before. It mostly grows while a job learns, so
#: that an earlier governor's is no hard measure.
REWARD_TOLERANCE = 0.05
#: Usable updates under one setting, and under the governor, before anything is said: two monitoring windows, and the
#: least that has a spread.
LEAST_UPDATES, LEAST_GOVERNOR = 40, 5
#: Standard errors by which a difference must pass its tolerance.
SURE = 2.326
#: Settings whose clocks are within this of each other (a log) are taken together; so many settings are remembered.
LIKE, SETTINGS = 0.2, 16
#: Updates that count under a setting, and under the governor: four monitoring windows, and one, since what a job
#: learns from changes while it learns.
MEMORY, GOVERNOR_MEMORY = 80.0, 20.0


@dataclass(slots=True)
class Mean:
    """Count, mean and variance of values."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float, memory: float) -> None:
        """One more value; the oldest of more than ``memory`` values count less."""
        self.merge(Mean(1.0, value), min(self.count, memory - 1.0))

    def merge(self, other: Mean, own: float | None = None) -> None:
        """Take in what another one has seen; this one's own counts as so many values."""
        own = self.count if own is None else own
        count = own + other.count
        if count <= 0.0:
            return
        share, off = other.count / count, other.mean - self.mean
        self.variance = (
            (1.0 - share) * self.variance + share * other.variance + share * (1.0 - share) * off**2
        )
        self.mean += share * off
        self.count = count

    @property
    def error2(self) -> float:
        """The square of the mean's standard error."""
        return self.variance / max(self.count - 1.0, 1.0)

    def to_list(self) -> list[float]:
        """Ready for JSON."""
        return [self.count, self.mean, self.variance]


Means = list[Mean]
#: What is compared: name in words, tolerance, whether that is a share of the governor's, and whether less is worse.
COMPARED = (
    ("policy age", AGE_TOLERANCE, False, False),
    ("used share of generated tokens", USED_TOLERANCE, True, True),
    ("reward", REWARD_TOLERANCE, True, True),
)


class Guard:
    """Compares the setting that runs with the governor, and remembers what failed."""

    def __init__(self, top_mhz: float) -> None:
        self._top_mhz = top_mhz
        #: What was seen under the latest settings less the governor's before it, the oldest setting first.
        self._seen: dict[Pair, Means] = {}
        self._governor: Means = [Mean() for _ in COMPARED]
        #: No clock of generation, or of training, up to this one is chosen again, MHz.
        self._limits = [0.0, 0.0]

    def add(self, pair: Pair, record: UpdateRecord) -> None:
        """One usable update under these clocks."""
        used = None
        if record.generated_tokens and record.valid_tokens is not None:
            used = record.valid_tokens / record.generated_tokens
        values = (record.policy_age_max, used, record.reward)
        if not pair.is_lowered:
            for mean, value in zip(self._governor, values, strict=True):
                if value is not None:
                    mean.add(float(value), GOVERNOR_MEMORY)
            return
        means = self._seen.pop(pair, [Mean() for _ in COMPARED])
        self._seen[pair] = means
        if len(self._seen) > SETTINGS:
            del self._seen[next(iter(self._seen))]
        for mean, value, governor in zip(means, values, self._governor, strict=True):
            if value is not None and governor.count >= LEAST_GOVERNOR:
                mean.add(float(value) - governor.mean, MEMORY)

    def _around(self, pair: Pair) -> Means:
        """What was seen under these clocks and those that are like them, less the governor's before it."""
        found = [Mean() for _ in COMPARED]
        for other, means in self._seen.items():
            if _are_like(pair, other, self._top_mhz):
                for mean, more in zip(found, means, strict=True):
                    mean.merge(more)
        return found

    def verdict(self, pair: Pair) -> str | None:
        """Why these clocks fail, in words; None as long as they do not."""
        if pair not in self._seen:
            return None
        for (name, tolerance, relative, less), own, governor in zip(
            COMPARED, self._around(pair), self._governor, strict=True
        ):
            if own.count < LEAST_UPDATES:
                continue
            worse = -own.mean if less else own.mean
            allowed = tolerance * abs(governor.mean) if relative else tolerance
            if worse > allowed + SURE * math.sqrt(own.error2 + governor.error2):
                return (
                    f"{name} {own.mean:+.3g} over {own.count:.0f} updates at {pair} and the like, against "
                    f"{governor.mean:.3g} under the governor: these clocks are left for good"
                )
        return None

    def fail(self, pair: Pair) -> None:
        """The lower clock of this setting is to blame: it, all that are like it and all lower ones are left."""
        low = [math.log(self._top_mhz / (mhz or self._top_mhz)) for mhz in pair.phases]
        axis = 0 if low[0] > low[1] else 1
        limit = min(self._top_mhz, (pair.phases[axis] or self._top_mhz) * math.exp(LIKE))
        self._limits[axis] = max(self._limits[axis], limit)
        self._seen = {}

    def barred(self, menu: PoolMenu) -> Flags | None:
        """The settings that may not be chosen; None when all may."""
        if not any(self._limits):
            return None
        low = [
            np.array([mhz is not None and mhz <= limit for mhz in column])
            for limit, column in zip(self._limits, menu.mhz, strict=True)
        ]
        return np.asarray(low[0][:, None] | low[1][None, :])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "seen": [[list(pair), [mean.to_list() for mean in means]] for pair, means in self._seen.items()],
            "governor": [mean.to_list() for mean in self._governor],
            "limits_mhz": list(self._limits),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._seen = {Pair(*pair): [Mean(*mean) for mean in means] for pair, means in values["seen"]}
        self._governor = [Mean(*mean) for mean in values["governor"]]
        self._limits = list(values["limits_mhz"])


@lru_cache(maxsize=512)
def _are_like(one: Pair, other: Pair, top_mhz: float) -> bool:
    apart = [
        abs(math.log((a or top_mhz) / (b or top_mhz))) for a, b in zip(one.phases, other.phases, strict=True)
    ]
    return max(apart) <= LIKE
