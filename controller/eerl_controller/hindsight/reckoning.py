"""A run against the governor on the same work: totals, and intervals that hold the truth as often as they say.

An update under lowered clocks would have taken the governor its measured seconds and joules, divided by what its
setting did to them (:mod:`~eerl_controller.hindsight.series`). So the chance that an update met is its own in both
worlds, and only the settings' effects are estimated. Joules are seconds times watts: watts know nothing of how long
the responses were, so their effects are the better known ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eerl_controller.hindsight.claims import Claims, Effects, claims_maker
from eerl_controller.hindsight.entries import Entry, with_idle
from eerl_controller.hindsight.rows import Array
from eerl_controller.hindsight.series import Series
from eerl_controller.hindsight.slots import Key, Slot, likeness, rows_of
from eerl_controller.hindsight.warming import warmed
from eerl_controller.records import ExecutionMode

#: An update longer than its fit by more than 3.5 robust standard deviations (Iglewicz and Hoaglin), and by 5 %,
#: waited for something that no clock moves: nothing is claimed for the excess.
STRAGGLER_SD, STRAGGLER_FLOOR = 3.5, 0.05
#: A part below this share of the updates is no part of its own: its log would be noise.
LEAST_SHARE = 0.002
#: Until it is reckoned with, a later update is taken to be a straggler beyond this many times the longest claimed.
STRAGGLER_ROOM = 1.05
#: What no noise shows: edges of phases, counters, work that clocks move otherwise than by a factor. Standard error of
#: a lowered total as a fraction.
SYSTEMATIC = 0.001
_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Total:
    """Governor seconds or joules of some updates, the standard error, and Student's 97.5 % point for it."""

    governor: float
    se: float
    student: float


class Reckoning:
    """A run as the governor would have had it, update by update. ``top_mhz`` is the governor's clock under load."""

    def __init__(self, entries: Sequence[Entry], mode: ExecutionMode, top_mhz: float) -> None:
        self.entries = with_idle(warmed(entries))
        self._make = claims_maker(self.entries, mode)
        self._claims = self._make(self.entries)
        self._series: dict[str, Series] = {}
        self._known: dict[str, dict[Key, float]] = {}
        for slot in self._claims.slots:
            self._follow(slot, top_mhz)
        self._effects: Effects = {name: series.effect for name, series in self._series.items()}
        self.governor_s, self.governor_j = self._claims.governor(self._effects)

    @property
    def excess_s(self) -> Array:
        """Seconds of stragglers under lowered clocks beyond what work and clocks explain."""
        return self._claims.excess_s

    @property
    def excess_j(self) -> Array:
        """Joules of the same."""
        return self._claims.excess_j

    def _follow(self, slot: Slot, top_mhz: float) -> None:
        name = slot.name.rsplit(" ", 1)[0]
        seconds = self._claims.seconds[name]
        values = self._claims.values(slot)
        small = float(np.median(seconds)) < LEAST_SHARE * float(np.median(self._claims.elapsed_s))
        rows, keys = rows_of(self.entries, slot, values)
        if small or not keys or int(np.isfinite(rows.log).sum()) < 2:
            return
        prior = likeness(keys, slot, top_mhz)
        series = Series(rows, len(keys), prior)
        if slot.skewed:
            series = series.straight(prior)
        self._series[slot.name] = series
        at = {int(group): float(effect) for group, effect in zip(rows.group, series.effect, strict=True)}
        self._known[slot.name] = {key: at[number] for number, key in enumerate(keys)}
        if slot.is_time:
            of_one = np.sqrt(rows.updates)
            known = (series.residual * of_one)[np.isfinite(series.residual)]
            spread = 1.4826 * float(np.median(np.abs(known - np.median(known)))) / of_one
            self._claims.cut(name, np.exp(series.fitted + np.maximum(STRAGGLER_SD * spread, STRAGGLER_FLOOR)))
        else:
            self._claims.cut_joules(name, np.exp(series.fitted))

    def price(self, entries: Sequence[Entry]) -> tuple[Array, Array]:
        """Governor seconds and joules of updates that came later, by what their clocks did before; a setting that was
        never used before is taken to have done nothing.
        """
        claims = self._make(entries)
        for name, seconds in self._claims.seconds.items():
            claims.cut(name, np.full(len(entries), STRAGGLER_ROOM * float(seconds.max())))
        effects = {
            slot.name: np.array([self._known[slot.name].get(slot.key(entry), 0.0) for entry in entries])
            for slot in claims.slots
            if slot.name in self._known
        }
        return claims.governor(effects)

    def totals(self, wanted: Array, *, energy: bool) -> list[Total]:
        """Governor totals over stretches: rows of how many updates each entry stands for in it, 0 for none.

        Where joules are asked for, entries of unknown energy must stand for none.
        """
        values = np.nan_to_num(self._governor(self._effects, energy=energy))
        used, spreads = [], []
        for name, series in self._series.items():
            moved: Mapping[str, Array] = {**self._effects, name: self._effects[name] + _STEP}
            gradient = (np.nan_to_num(self._governor(moved, energy=energy)) - values) / _STEP
            if not gradient.any():
                continue
            means, variances = series.spread(wanted * gradient)
            weights = series.weights[:, None]
            middle = (weights * means).sum(axis=0)
            used.append(series)
            spreads.append(np.sqrt((weights * (variances + (means - middle) ** 2)).sum(axis=0)))
        if not used:
            return [Total(float(value), 0.0, student_point(0)) for value in wanted @ values]
        stacked = np.array(spreads)
        variance = np.maximum(np.einsum("as,ab,bs->s", stacked, _likeness(used), stacked), 0.0)
        # What is claimed of hot updates lies anywhere between nothing and twice as much.
        claims = self._claims
        added = values - np.nan_to_num(claims.energy_j if energy else claims.elapsed_s)
        variance += (wanted @ ((claims.blame % 1.0 != 0.0) * added)) ** 2 / 3.0
        variance += (SYSTEMATIC * (wanted @ ((claims.blame > 0.0) * values))) ** 2
        point = student_point(min(series.freedom for series in used))
        return [
            Total(float(value), math.sqrt(error), point)
            for value, error in zip(wanted @ values, variance, strict=True)
        ]

    def _governor(self, effects: Effects, *, energy: bool) -> Array:
        return self._claims.governor(effects)[1 if energy else 0]


def student_point(freedom: int) -> float:
    """Student's 97.5 % point by Cornish and Fisher's expansion."""
    spare = max(freedom, 3)
    return 1.96 + 2.37 / spare + 2.82 / spare**2


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


__all__ = ["Claims", "Reckoning", "Total", "student_point"]
