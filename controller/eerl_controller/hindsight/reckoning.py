"""A run against the governor on the same work: totals, and intervals that hold the truth as often as they say.

An update under lowered clocks would have taken the governor its measured seconds and joules, divided by what its
setting did to them (:mod:`~eerl_controller.hindsight.series`). So the chance that an update met is its own in both
worlds, and only the settings' effects are estimated. Joules are seconds times watts: watts know nothing of how long
the responses were, so their effects are the better known ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eerl_controller.hindsight.entries import Entry, with_idle
from eerl_controller.hindsight.parts import (
    GENERATING,
    LEAST_SHARE,
    Key,
    Part,
    Plan,
    generating_joules,
    generating_seconds,
    likeness,
    plan_of,
    rows_of,
)
from eerl_controller.hindsight.series import Array, Series
from eerl_controller.records import ExecutionMode

#: An update longer than its fit by more than 3.5 robust standard deviations (Iglewicz and Hoaglin), and by 5 %, waited
#: for something that no clock moves: nothing is claimed for the excess.
STRAGGLER_SD, STRAGGLER_FLOOR = 3.5, 0.05
#: Until it is reckoned with, a later update is taken to be a straggler beyond this many times the longest claimed.
STRAGGLER_ROOM = 1.05
#: Elasticity of time, all counts together: more tokens take more time, nearly in proportion. Watts hardly follow them.
TIME_ELASTICITY = 0.8
#: Generation must be known in so many updates, as a fraction, to tell of validation.
LEAST_GENERATION = 0.5


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the updates: claimed seconds and joules (0 where nothing is claimed), and what clocks did to them.

    ``time`` and ``power`` are numbers of series; None when the part's share of that is too small to be followed.
    """

    seconds: Array
    joules: Array
    time: int | None
    power: int | None


@dataclass(frozen=True, slots=True)
class Total:
    """Governor seconds or joules of some updates, the standard error, and Student's 97.5 % point for it."""

    governor: float
    se: float
    student: float


class Reckoning:
    """A run as the governor would have had it, update by update. ``top_mhz`` is the governor's clock under load."""

    def __init__(self, entries: Sequence[Entry], mode: ExecutionMode, top_mhz: float) -> None:
        self.entries = entries = with_idle(entries)
        self._top_mhz = top_mhz
        self._claimed = np.array([entry.claimed for entry in entries])
        #: Stragglers under lowered clocks, and their seconds and joules beyond what work and clocks explain.
        self.straggling = np.zeros(len(entries), dtype=bool)
        self.excess_s, self.excess_j = np.zeros(len(entries)), np.zeros(len(entries))
        self._series: list[Series] = []
        self._keys: list[dict[Key, float]] = []
        self.plan = plan = plan_of(entries, mode)
        self._overlapping = plan.overlapping
        self._shares = self._follow(plan)
        self._whole = self._follow_whole(plan) if plan.joules is None else None
        self._visits = self._follow_visits(plan)
        elapsed_s = np.array([entry.elapsed_s for entry in entries])
        energy_j = np.array([math.nan if entry.energy_j is None else entry.energy_j for entry in entries])
        self.governor_s = elapsed_s + self._added_s()
        self.governor_j = energy_j + self._added_j()

    # -- following parts through time ----------------------------------------------------------------------------

    def _follow(self, plan: Plan) -> list[Share]:
        found = [plan.seconds(entry) for entry in self.entries]
        joules = [plan.joules(entry) if plan.joules else None for entry in self.entries]
        own_s = float(np.median([entry.own_s for entry in self.entries]))
        shares = []
        for axis, part in enumerate(plan.parts):
            seconds = [None if item is None else item[axis] for item in found]
            raw_s = _plain(seconds)
            small = float(np.median(raw_s)) < LEAST_SHARE * own_s
            time, cut = (None, np.ones(len(raw_s))) if small else self._time(part, seconds)
            power, raw_j = None, np.zeros(len(raw_s))
            if plan.joules is not None:
                own = [None if item is None else item[axis] for item in joules]
                raw_j = _plain(own)
                power = None if small else self._power(plan.powered[axis], own, seconds)
                if power is not None:
                    # While something hangs the GPUs wait: what is left is work at the usual watts.
                    usual_j = raw_s * cut * np.exp(self._series[power].fitted)
                    kept_j = np.where(cut < 1.0, np.minimum(raw_j, usual_j), raw_j)
                    self.excess_j += raw_j - kept_j
                    raw_j = kept_j
            self.excess_s += raw_s * (1.0 - cut)
            shares.append(Share(raw_s * cut * self._claimed, raw_j * self._claimed, time, power))
        return shares

    def _time(self, part: Part, seconds: Sequence[float | None]) -> tuple[int, Array]:
        """The number of a new series of seconds, and what is left of each update when stragglers are cut."""
        raw = _plain(seconds)
        series = self._add(part, seconds, TIME_ELASTICITY)
        known = series.residual[np.isfinite(series.residual)]
        spread = 1.4826 * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0
        most = np.exp(series.fitted + max(STRAGGLER_SD * spread, STRAGGLER_FLOOR))
        self.straggling |= (self._claimed > 0.0) & (raw > most)
        return len(self._series) - 1, np.minimum(most / np.maximum(raw, 1e-9), 1.0)

    def _power(self, part: Part, joules: Sequence[float | None], seconds: Sequence[float | None]) -> int:
        watts = [
            j / s if j is not None and s is not None and s > 0.0 else None for j, s in zip(joules, seconds, strict=True)
        ]
        self._add(part, watts, 0.0)
        return len(self._series) - 1

    def _add(self, part: Part, values: Sequence[float | None], elasticity: float) -> Series:
        rows, keys = rows_of(self.entries, part, values)
        series = Series(rows, len(keys), likeness(keys, part, self._top_mhz), elasticity)
        self._series.append(series)
        at = {int(group): float(effect) for group, effect in zip(rows.group, series.effect, strict=True)}
        self._keys.append({key: at[number] for number, key in enumerate(keys)})
        return series

    def _follow_whole(self, plan: Plan) -> Share | None:
        """Mean watts of whole updates, where pools overlap and each one's waiting depends on the other."""
        joules = [entry.own_j for entry in self.entries]
        if not any(value is not None for value in joules):
            return None
        seconds = np.array([entry.own_s for entry in self.entries])
        power = self._power(plan.powered[0], joules, seconds.tolist())
        return Share(seconds, _plain(joules) * self._claimed, None, power)

    def _follow_visits(self, plan: Plan) -> Share | None:
        """Validation answers to its clock as generation does."""
        seconds = self._claimed * np.array([entry.validation[0] for entry in self.entries])
        joules = self._claimed * _plain([entry.validation[1] for entry in self.entries])
        if not seconds.any():
            return None
        if plan.parts[0].name == "generation" and (plan.joules is not None):
            return Share(seconds, joules, self._shares[0].time, self._shares[0].power)
        own_s = [generating_seconds(entry) for entry in self.entries]
        own_j = [generating_joules(entry) for entry in self.entries]
        if sum(value is not None for value in own_j) < LEAST_GENERATION * len(own_j):
            return None
        self._add(GENERATING, own_s, TIME_ELASTICITY)
        time = len(self._series) - 1
        return Share(seconds, joules, time, self._power(GENERATING, own_j, own_s))

    # -- what the governor would have taken more -----------------------------------------------------------------

    def _effect(self, number: int | None) -> Array:
        return np.zeros(len(self.entries)) if number is None else self._series[number].effect

    def _added_s(self) -> Array:
        more, first = np.zeros(len(self.entries)), 0
        if self._overlapping:
            first, (one, two) = 2, self._shares[:2]
            now = np.maximum(one.seconds, two.seconds)
            more += np.maximum(*(item.seconds * np.exp(-self._effect(item.time)) for item in (one, two))) - now
        for share in [*self._shares[first:], *([self._visits] if self._visits else [])]:
            more += share.seconds * np.expm1(-self._effect(share.time))
        return more

    def _added_j(self) -> Array:
        more = np.zeros(len(self.entries))
        for share in [*self._shares, *([self._visits] if self._visits else [])]:
            more += share.joules * np.expm1(-self._effect(share.time) - self._effect(share.power))
        if self._whole is not None:
            more += self._whole.joules * (self._whole_ratio() * np.exp(-self._effect(self._whole.power)) - 1.0)
        return more

    def _whole_ratio(self) -> Array:
        """Governor seconds over measured ones of the update without its visits."""
        assert self._whole is not None
        visit = self._visits
        visiting = 0.0 if visit is None else visit.seconds * np.expm1(-self._effect(visit.time))
        return np.asarray(1.0 + (self._added_s() - visiting) / self._whole.seconds)

    def _gradients(self, *, energy: bool) -> dict[int, Array]:
        """How each update's governor seconds, or joules, answer to the effects of each series."""
        found = {i: np.zeros(len(self.entries)) for i in range(len(self._series))}
        whole = self._whole if energy else None
        for axis, share in enumerate(self._shares):
            if share.time is None:
                continue
            slope = -share.seconds * np.exp(-self._effect(share.time))
            if self._overlapping and axis < 2:
                other = self._shares[1 - axis]
                slope = np.where(slope <= -other.seconds * np.exp(-self._effect(other.time)), slope, 0.0)
            if not energy:
                found[share.time] += slope
            elif whole is not None:
                found[share.time] += slope * whole.joules * np.exp(-self._effect(whole.power)) / whole.seconds
        for share in [*(self._shares if energy else ()), *([self._visits] if self._visits else [])]:
            if energy:
                slope = -share.joules * np.exp(-self._effect(share.time) - self._effect(share.power))
            else:
                slope = -share.seconds * np.exp(-self._effect(share.time))
            if share.time is not None:
                found[share.time] += slope
            if energy and share.power is not None:
                found[share.power] += slope
        if whole is not None and whole.power is not None:
            found[whole.power] -= whole.joules * self._whole_ratio() * np.exp(-self._effect(whole.power))
        return found

    def price(self, entry: Entry) -> tuple[float, float | None]:
        """Governor seconds and joules of an update that came later, by what its clocks did before; 0 if never used."""
        blame = entry.claimed
        found, joules = self.plan.seconds(entry), self.plan.joules(entry) if self.plan.joules else None
        if not blame or found is None:
            return entry.elapsed_s, entry.energy_j
        slow, cheap, cut = [], [], []
        for axis, (part, share) in enumerate(zip(self.plan.parts, self._shares, strict=True)):
            slow.append(self._known(share.time, part, entry))
            cheap.append(slow[-1] + self._known(share.power, self.plan.powered[min(axis, len(self.plan.powered) - 1)], entry))
            cut.append(min(found[axis], STRAGGLER_ROOM * float(share.seconds.max())) * blame)
        more_s, first = 0.0, 0
        if self._overlapping:
            first, more_s = 2, max(cut[i] * math.exp(-slow[i]) for i in (0, 1)) - max(cut[:2])
        more_s += sum(value * math.expm1(-effect) for value, effect in zip(cut[first:], slow[first:], strict=True))
        if entry.energy_j is None or entry.own_j is None:
            return entry.elapsed_s + more_s, None
        if self._whole is not None:
            power = self._known(self._whole.power, self.plan.powered[0], entry)
            ratio = (1.0 + more_s / entry.own_s) * math.exp(-power) - 1.0
            return entry.elapsed_s + more_s, entry.energy_j + blame * entry.own_j * ratio
        more_j = 0.0
        for axis, value in enumerate(joules or ()):
            more_j += value * cut[axis] / max(found[axis], 1e-9) * math.expm1(-cheap[axis])
        return entry.elapsed_s + more_s, entry.energy_j + more_j

    def _known(self, number: int | None, part: Part, entry: Entry) -> float:
        key = tuple(entry.pair[axis] for axis in part.clocks)
        return 0.0 if number is None else self._keys[number].get(key, 0.0)

    # -- totals --------------------------------------------------------------------------------------------------

    def totals(self, wanted: Array, *, energy: bool) -> list[Total]:
        """Governor totals over stretches: rows of how many updates each entry stands for in it, 0 for none.

        Where joules are asked for, entries of unknown energy must stand for none.
        """
        values = np.nan_to_num(self.governor_j if energy else self.governor_s)
        used, spreads = [], []
        for number, gradient in self._gradients(energy=energy).items():
            if not gradient.any():
                continue
            series = self._series[number]
            means, variances = series.spread(wanted * gradient)
            weights = series.weights[:, None]
            middle = (weights * means).sum(axis=0)
            used.append(series)
            spreads.append(np.sqrt((weights * (variances + (means - middle) ** 2)).sum(axis=0)))
        if not used:
            return [Total(float(value), 0.0, 1.96) for value in wanted @ values]
        stacked = np.array(spreads)
        variance = np.maximum(np.einsum("as,ab,bs->s", stacked, _likeness(used), stacked), 0.0)
        # What is claimed of hot updates lies anywhere between nothing and twice as much.
        hot = np.array([entry.claimed not in (0.0, 1.0) for entry in self.entries])
        added = np.nan_to_num(self._added_j() if energy else self._added_s())
        errors = np.sqrt(variance + (wanted @ (hot * added)) ** 2 / 3.0)
        point = student_point(min(series.freedom for series in used))
        return [
            Total(float(value), float(error), point) for value, error in zip(wanted @ values, errors, strict=True)
        ]


def student_point(freedom: int) -> float:
    """Student's 97.5 % point by Cornish and Fisher's expansion."""
    spare = max(freedom, 3)
    return 1.96 + 2.37 / spare + 2.82 / spare**2


def _plain(values: Sequence[float | None]) -> Array:
    return np.array([0.0 if value is None else value for value in values])


def _likeness(series: Sequence[Series]) -> Array:
    """Correlation of the series' errors, from their deviations: noise that they have in common adds up."""
    off = np.array([item.deviation for item in series])
    both = np.isfinite(off).all(axis=0)
    if len(series) == 1 or both.sum() < 5:
        return np.ones((len(series), len(series)))
    off = off[:, both] - np.median(off[:, both], axis=1, keepdims=True)
    limit = 3.0 * 1.4826 * np.median(np.abs(off), axis=1, keepdims=True)
    found = np.nan_to_num(np.corrcoef(np.clip(off, -limit, limit)), nan=0.0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)
