"""The joint search for a pair of clocks (paper, section 6.1 and Algorithm 1).

It starts with both clocks reduced. A pair that is too slow has the clock raised whose phase added most of the
time; a pair that passes is followed by a lower one. Settings lie on a lattice: level 0 is the governor, level k
is k nominal steps below the ceiling, snapped to the supported clocks.

Settings at or below one that was clearly too slow, in both clocks, and settings at or above one that passed, are
not tried. A setting is tried once; a second time only when noise alone can explain why it was too slow and
nothing else is left. So the lattice empties, and ``max_trials`` bounds what noise could prolong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eerl_controller.clocks import Pair, snap
from eerl_controller.comparison import Comparison, pooled
from eerl_controller.response import Response, fit_response
from eerl_controller.settings import Settings


class Levels(NamedTuple):
    """Steps below the ceiling for generation and training; 0 is the governor."""

    generation: int
    training: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Each clock's phases as a share of the governor's update time and energy."""

    generation_time: float
    training_time: float
    generation_energy: float
    training_energy: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A tried setting; ``confirming`` marks evidence of a confirmation, which outranks the trial's."""

    levels: Levels
    comparison: Comparison
    confirming: bool = False


def lattice(ceiling_mhz: float, clocks: Sequence[int], step_mhz: int) -> tuple[int, ...]:
    """Distinct supported clocks at nominal steps below the ceiling, descending in MHz."""
    lower = [clock for clock in clocks if clock < ceiling_mhz]
    found: list[int] = []
    nominal = ceiling_mhz - step_mhz
    while lower and nominal > lower[0] - step_mhz:
        clock = snap(nominal, lower)
        if not found or clock < found[-1]:
            found.append(clock)
        nominal -= step_mhz
    return tuple(found)


class Search:
    """Which setting to try next, from the trials so far. It calculates; it runs and counts nothing."""

    def __init__(
        self, settings: Settings, clocks: Sequence[int], ceilings_mhz: tuple[float, float], shares: Shares
    ) -> None:
        self._settings = settings
        self._ceilings = ceilings_mhz
        self._shares = shares
        self._axes = tuple(lattice(ceiling, clocks, settings.search_step_mhz) for ceiling in ceilings_mhz)
        self.trials: list[Trial] = []

    @property
    def has_settings(self) -> bool:
        """Whether any clock lies below a ceiling."""
        return any(self._axes)

    def pair(self, levels: Levels) -> Pair:
        """The clocks of a lattice point in MHz."""
        generation, training = self._axes
        return Pair(
            generation[levels.generation - 1] if levels.generation else None,
            training[levels.training - 1] if levels.training else None,
        )

    def record(self, levels: Levels, comparison: Comparison, *, confirming: bool = False) -> None:
        """Note what a trial, or a confirmation, of a setting showed."""
        self.trials.append(Trial(levels, comparison, confirming))

    def passing(self) -> list[Levels]:
        """Settings that pass on all their trials and failed no confirmation, lowest energy per token first."""
        allowed = self._settings.max_throughput_loss
        failed = {t.levels for t in self.trials if t.confirming and not t.comparison.passes(allowed)}
        words = {levels: word for levels, word in self._words().items() if levels not in failed}
        good = [levels for levels, word in words.items() if word.passes(allowed)]
        return sorted(good, key=lambda levels: words[levels].energy_change)

    def next(self) -> Levels | None:
        """The next setting to try, or None when the search is over."""
        if not self.has_settings or len(self.trials) >= self._settings.max_trials:
            return None
        if not self.trials:
            return self._start()
        last = self.trials[-1]
        words = self._words()
        if last.comparison.loss > self._settings.max_throughput_loss:
            candidate = self._raise(last)
            if self._open(candidate, words) and self._energy(candidate) < self._best(words):
                return candidate
        candidate_below = self._lower(words)
        if candidate_below is None and not self.passing():
            return self._again(words)
        return candidate_below

    def response(self, axis: int) -> Response:
        """How the phases of a clock (0 generation, 1 training) answer to it, from all trials."""
        words = self.trials
        time_share, energy_share = (
            (self._shares.generation_time, self._shares.generation_energy)
            if axis == 0
            else (self._shares.training_time, self._shares.training_energy)
        )
        name = ("generation", "training")[axis]
        return fit_response(
            [self._x(axis, trial.levels[axis]) for trial in words],
            [getattr(trial.comparison.added_time, name) for trial in words],
            [getattr(trial.comparison.added_energy, name) for trial in words],
            [float(trial.comparison.updates) for trial in words],
            time_share,
            energy_share,
        )

    def _words(self) -> dict[Levels, Comparison]:
        """All that is known of each tried setting."""
        by_levels: dict[Levels, list[Comparison]] = {}
        for trial in self.trials:
            by_levels.setdefault(trial.levels, []).append(trial.comparison)
        return {levels: pooled(comparisons) for levels, comparisons in by_levels.items()}

    def _clearly_slow(self, word: Comparison) -> bool:
        """Whether a setting was too slow by more than one standard error."""
        return word.loss - word.time_se > self._settings.max_throughput_loss

    def _x(self, axis: int, level: int) -> float:
        return self._ceilings[axis] / self._axes[axis][level - 1] - 1.0 if level else 0.0

    def _start(self) -> Levels:
        """Both clocks reduced to ``start_fraction`` of what the governor reaches."""
        levels = []
        for ceiling, clocks in zip(self._ceilings, self._axes, strict=True):
            wanted = ceiling * self._settings.start_fraction
            nearest = min(range(len(clocks)), key=lambda k: abs(clocks[k] - wanted), default=-1)
            levels.append(nearest + 1)
        return Levels(*levels)

    def _open(self, levels: Levels, words: Mapping[Levels, Comparison]) -> bool:
        """Whether a setting is worth a trial at all: new, on the lattice, and not decided by another's trial."""
        if levels == (0, 0) or levels in words:
            return False
        if not all(0 <= level <= len(self._axes[i]) for i, level in enumerate(levels)):
            return False
        for tried, word in words.items():
            deeper = levels.generation >= tried.generation and levels.training >= tried.training
            if deeper and self._clearly_slow(word):
                return False
            shallower = levels.generation <= tried.generation and levels.training <= tried.training
            if shallower and word.passes(self._settings.max_throughput_loss):
                return False
        return True

    def _again(self, words: Mapping[Levels, Comparison]) -> Levels | None:
        """The most saving setting that was tried once and, for all that is known, may just have been unlucky."""
        times = [trial.levels for trial in self.trials]
        unlucky = [
            (word.energy_change, levels)
            for levels, word in words.items()
            if times.count(levels) == 1
            and word.energy_change < -self._settings.min_gain
            and not word.passes(self._settings.max_throughput_loss)
            and not self._clearly_slow(word)
        ]
        return min(unlucky)[1] if unlucky else None

    def _raise(self, last: Trial) -> Levels:
        """The clock that added most of the time, raised as far as the shortfall asks, at least one level."""
        added = last.comparison.added_time
        axis = 0 if added.generation >= added.training else 1
        if last.levels[axis] == 0:
            axis = 1 - axis
        allowed = self._allowed_time()
        slope = self.response(axis).time_slope
        own = (added.generation, added.training)[axis]
        level = last.levels[axis] - 1
        while level > 0 and added.total - own + slope * self._x(axis, level) > allowed:
            level -= 1
        levels = list(last.levels)
        levels[axis] = max(level, 0)
        return Levels(*levels)

    def _allowed_time(self) -> float:
        """The allowed loss as added time: throughput 1 - loss is time 1 / (1 - loss)."""
        return 1.0 / (1.0 - self._settings.max_throughput_loss) - 1.0

    def _rest(self) -> tuple[float, float]:
        """Mean added time and energy of what belongs to neither clock."""
        words = self.trials
        total = sum(trial.comparison.updates for trial in words)
        time = sum(trial.comparison.updates * trial.comparison.added_time.rest for trial in words)
        energy = sum(trial.comparison.updates * trial.comparison.added_energy.rest for trial in words)
        return time / total, energy / total

    def _best(self, words: Mapping[Levels, Comparison]) -> float:
        """The energy change of the best passing setting, as a fraction; 0 (the governor's own) without one."""
        passing = self.passing()
        return words[passing[0]].energy_change if passing else 0.0

    def _energy(self, levels: Levels) -> float:
        """The energy change expected of a setting, from all trials."""
        added = (self.response(axis).added_energy(self._x(axis, levels[axis])) for axis in (0, 1))
        return self._rest()[1] + sum(added)

    def _lower(self, words: Mapping[Levels, Comparison]) -> Levels | None:
        """The open setting near what was tried that promises most, if it promises enough."""
        passing = self.passing()
        best = self._best(words)
        # No clock goes further below what was tried than it already was, or two levels: an extrapolation.
        reach = [max(trial.levels[axis] for trial in self.trials) for axis in (0, 1)]
        if passing:
            reach = [max(levels[axis] for levels in passing) for axis in (0, 1)]
        limits = [min(max(2 * deep, deep + 2), len(self._axes[axis])) for axis, deep in enumerate(reach)]
        responses = [self.response(0), self.response(1)]
        rest_time, rest_energy = self._rest()
        allowed = self._allowed_time()
        found: tuple[float, Levels] | None = None
        for generation in range(limits[0] + 1):
            for training in range(limits[1] + 1):
                levels = Levels(generation, training)
                xs = (self._x(0, generation), self._x(1, training))
                time = rest_time + sum(r.added_time(x) for r, x in zip(responses, xs, strict=True))
                energy = rest_energy + sum(r.added_energy(x) for r, x in zip(responses, xs, strict=True))
                promising = time <= allowed and energy < best - self._settings.min_gain
                if promising and (found is None or energy < found[0]) and self._open(levels, words):
                    found = (energy, levels)
        return found[1] if found else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the settings and the clock table."""
        return {
            "ceilings_mhz": list(self._ceilings),
            "shares": [
                self._shares.generation_time,
                self._shares.training_time,
                self._shares.generation_energy,
                self._shares.training_energy,
            ],
            "trials": [
                [*trial.levels, trial.comparison.to_dict(), trial.confirming] for trial in self.trials
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], settings: Settings, clocks: Sequence[int]) -> Search:
        """What :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        search = cls(settings, clocks, (generation, training), Shares(*values["shares"]))
        for generation_level, training_level, comparison, confirming in values["trials"]:
            levels = Levels(generation_level, training_level)
            search.trials.append(Trial(levels, Comparison.from_dict(comparison), confirming))
        return search
