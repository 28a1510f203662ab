"""A round of the search for clocks (paper, section 6.1 and Algorithm 1): over both of them, or over one.

It starts with the clocks reduced. A setting that is too slow has the clock raised whose phase added most of the
time; one that passes is followed by a lower one. Settings lie on a lattice: level 0 is the clock that the round
begins with (the governor, or what an earlier round confirmed), level k is k nominal steps below the ceiling,
snapped to the supported clocks. With separate pools the idle clock of a waiting pool is tried first, alone:
innocent until shown to cost time or energy, it is then part of every setting.

Settings at or below one that was clearly too slow, in both clocks, and settings at or above one that passed, are
not tried. A setting is tried once; a second time only when noise alone can explain why it was too slow and
nothing else is left. So the lattice empties, and ``max_trials`` bounds what noise could prolong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from eerl_controller.clocks import Pair
from eerl_controller.comparison import Change, Comparison, pooled
from eerl_controller.overlap import Overlap
from eerl_controller.response import Curve, Overlapped, fit_response, overlapped
from eerl_controller.rounds import HELD, Levels, Round, Shares, Trial, lattice
from eerl_controller.settings import Settings


class Search:
    """Which setting to try next, from the trials so far. It calculates; it runs and counts nothing."""

    def __init__(
        self,
        settings: Settings,
        clocks: Sequence[int],
        ceilings_mhz: tuple[float, float],
        shares: Shares,
        what: Round | None = None,
    ) -> None:
        self._settings = settings
        self._ceilings = ceilings_mhz
        self._shares = shares
        self.round = what or Round.joint(settings)
        self._axes = tuple(
            lattice(ceiling, clocks, step) if step is not None else ()
            for ceiling, step in zip(ceilings_mhz, self.round.steps_mhz, strict=True)
        )
        self.trials: list[Trial] = []
        #: Asynchronous: how waiting hides added time. Belongs to the references, so it is not remembered.
        self.overlap: Overlap | None = None

    @property
    def has_settings(self) -> bool:
        """Whether any clock lies below a ceiling."""
        return any(self._axes)

    def changes(self, axis: int) -> bool:
        """Whether this round changes the clock of generation (axis 0) or training (axis 1)."""
        return self.round.steps_mhz[axis] is not None

    @property
    def _axis(self) -> int | None:
        """The only clock that this round changes; None when it changes both."""
        changed = [axis for axis in (0, 1) if self.changes(axis)]
        return changed[0] if len(changed) == 1 else None

    @property
    def _idle_word(self) -> Comparison | None:
        """What the idle clock alone showed; None while it was not tried alone."""
        alone = [trial.comparison for trial in self.trials if trial.levels == HELD]
        return pooled(alone) if alone and self.round.tries_idle else None

    @property
    def keeps_idle(self) -> bool:
        """Whether the idle clock is part of the settings: nothing showed that it costs time or energy."""
        word = self._idle_word
        return word is None or not (self._clearly_slow(word) or word.energy_change > word.energy_se)

    @property
    def _base(self) -> Comparison | None:
        """What is known of the setting that all others are built upon; None when it is the governor."""
        return self.round.reference or (self._idle_word if self.keeps_idle else None)

    def pair(self, levels: Levels) -> Pair:
        """The clocks of a lattice point in MHz."""
        pair = self.round.held
        if self.round.tries_idle and not self.keeps_idle:
            pair = pair._replace(idle_mhz=None)
        for axis, level in enumerate(levels):
            if level:
                pair = pair.with_clock(axis, self._axes[axis][level - 1])
        return pair

    def record(self, levels: Levels, comparison: Comparison, *, confirming: bool = False) -> None:
        """Note what a trial, or a confirmation, of a setting showed."""
        self.trials.append(Trial(levels, comparison, confirming))

    def passing(self) -> list[Levels]:
        """Settings that pass on all their trials and failed no confirmation, lowest energy per token first."""
        failed = {t.levels for t in self.trials if t.confirming and not self.would_pass(t.comparison)}
        words = {levels: word for levels, word in self._words().items() if levels not in failed}
        good = [levels for levels, word in words.items() if self.would_pass(word)]
        return sorted(good, key=lambda levels: words[levels].energy_change)

    def would_pass(self, word: Comparison) -> bool:
        """Algorithm 1's rule; after an earlier round, with no more energy than what that one confirmed."""
        reference = self.round.reference
        most = reference.energy_change if reference else 0.0
        return word.passes(self._settings.allowed_loss) and word.energy_change <= most

    def next(self) -> Levels | None:
        """The next setting to try, or None when the search is over."""
        if not self.has_settings or len(self.trials) >= self._settings.max_trials:
            return None
        if self.round.tries_idle and not self.trials:
            return HELD
        if all(trial.levels == HELD for trial in self.trials):
            return self._start()
        last = self.trials[-1]
        words = self._words()
        if last.comparison.loss > self._settings.allowed_loss:
            candidate = self._raise(last)
            if self._open(candidate, words) and self._energy(candidate) < self._best(words):
                return candidate
        candidate_below = self._lower(words)
        if candidate_below is None and not self.passing():
            return self._again(words)
        return candidate_below

    def response(self, axis: int) -> Curve:
        """How the phases of a clock (0 generation, 1 training) answer to it, from all trials."""
        words = [trial for trial in self.trials if trial.levels != HELD]
        time_share, energy_share = (
            (self._shares.generation_time, self._shares.generation_energy)
            if axis == 0
            else (self._shares.training_time, self._shares.training_energy)
        )
        xs = [self._x(axis, trial.levels[axis]) for trial in words]
        weights = [float(trial.comparison.updates) for trial in words]
        base = self._base
        base_energy = self._own(base.added_energy, axis) if base else 0.0
        energies = [self._own(trial.comparison.added_energy, axis) - base_energy for trial in words]
        if self.overlap is not None and self._axis == axis:
            # The pool's own slowdown is measured; the replay says how much of it shows.
            slower = [(trial.comparison.slowdowns[axis] or 1.0) - 1.0 for trial in words]
            own = fit_response(xs, slower, energies, weights, 1.0, energy_share)
            reference = self.round.reference
            other = (reference.slowdowns[1 - axis] if reference else None) or 1.0
            held = reference.added_time.total if reference else 0.0
            added = [self._own(trial.comparison.added_time, axis) for trial in words]
            return overlapped(own, self.overlap, axis, other, held, xs, added, weights)
        base_time = self._base_time(axis)
        return fit_response(
            xs,
            [self._own(trial.comparison.added_time, axis) - base_time for trial in words],
            energies,
            weights,
            time_share,
            energy_share,
        )

    def _own(self, change: Change, axis: int) -> float:
        """The part of a change that a clock answers for: its phases', or all of it when it is the only one."""
        if self._axis is None:
            return (change.generation, change.training)[axis]
        return change.total if axis == self._axis else 0.0

    def _base_time(self, axis: int) -> float:
        """Added time of what an earlier round confirmed, where the responses come on top of it."""
        reference = self.round.reference
        return self._own(reference.added_time, axis) if reference and self.overlap is None else 0.0

    def _words(self) -> dict[Levels, Comparison]:
        """All that is known of each tried setting."""
        by_levels: dict[Levels, list[Comparison]] = {}
        for trial in self.trials:
            if trial.levels == HELD and not self.keeps_idle:
                continue
            by_levels.setdefault(trial.levels, []).append(trial.comparison)
        return {levels: pooled(comparisons) for levels, comparisons in by_levels.items()}

    def _clearly_slow(self, word: Comparison) -> bool:
        """Whether a setting was too slow by more than one standard error."""
        return word.loss - word.time_se > self._settings.allowed_loss

    def _x(self, axis: int, level: int) -> float:
        return self._ceilings[axis] / self._axes[axis][level - 1] - 1.0 if level else 0.0

    def _start(self) -> Levels:
        """The round's clocks reduced to its ``start`` fractions of what the governor reaches."""
        levels = []
        for ceiling, clocks, fraction in zip(self._ceilings, self._axes, self.round.start, strict=True):
            wanted = ceiling * fraction
            nearest = min(range(len(clocks)), key=lambda k: abs(clocks[k] - wanted), default=-1)
            levels.append(nearest + 1)
        return Levels(*levels)

    def _open(self, levels: Levels, words: Mapping[Levels, Comparison]) -> bool:
        """Whether a setting is worth a trial at all: new, on the lattice, and not decided by another's trial."""
        if levels == HELD or levels in words:
            return False
        if not all(0 <= level <= len(self._axes[i]) for i, level in enumerate(levels)):
            return False
        passing = self.passing()
        for tried, word in words.items():
            deeper = levels.generation >= tried.generation and levels.training >= tried.training
            if deeper and self._clearly_slow(word):
                return False
            shallower = levels.generation <= tried.generation and levels.training <= tried.training
            if tried != HELD and shallower and tried in passing:
                return False
        return True

    def _again(self, words: Mapping[Levels, Comparison]) -> Levels | None:
        """The most saving setting that was tried once and, for all that is known, may just have been unlucky."""
        times = [trial.levels for trial in self.trials]
        unlucky = [
            (word.energy_change, levels)
            for levels, word in words.items()
            if times.count(levels) == 1
            and word.energy_change < self._least() - self._settings.min_gain
            and not self.would_pass(word)
            and not self._clearly_slow(word)
        ]
        return min(unlucky)[1] if unlucky else None

    def _raise(self, last: Trial) -> Levels:
        """The clock that added most of the time, raised as far as the shortfall asks, at least one level."""
        added = last.comparison.added_time
        axis = 0 if added.generation >= added.training else 1
        if last.levels[axis] == 0:
            axis = 1 - axis
        allowed = self._allowed_time() - self._base_time(axis)
        response = self.response(axis)
        own = self._own(added, axis)
        level = last.levels[axis] - 1
        while level > 0 and added.total - own + response.added_time(self._x(axis, level)) > allowed:
            level -= 1
        levels = list(last.levels)
        levels[axis] = max(level, 0)
        return Levels(*levels)

    def _allowed_time(self) -> float:
        """The allowed loss as added time: throughput 1 - loss is time 1 / (1 - loss)."""
        return 1.0 / (1.0 - self._settings.allowed_loss) - 1.0

    def _rest(self) -> tuple[float, float]:
        """Mean added time and energy of what belongs to neither clock."""
        words = [trial for trial in self.trials if trial.levels != HELD] or self.trials
        total = sum(trial.comparison.updates for trial in words)
        time = sum(trial.comparison.updates * trial.comparison.added_time.rest for trial in words)
        energy = sum(trial.comparison.updates * trial.comparison.added_energy.rest for trial in words)
        return (time / total, energy / total) if self._axis is None else (0.0, 0.0)

    def _is_safe(self, levels: Levels, responses: Sequence[Curve]) -> bool:
        """Whether a trial cannot cost more than ``start_fraction`` would on work wholly bound by the clock.

        Beyond what was measured, an overlapping pool's work is taken as wholly bound: it may be flat up to a knee.
        """
        worst = [0.0]
        for axis, curve in enumerate(responses):
            if isinstance(curve, Overlapped):
                known = max(self._x(axis, trial.levels[axis]) for trial in self.trials)
                worst.append(curve.worst_time(self._x(axis, levels[axis]), known))
        return max(worst) <= 1.0 / self._settings.start_fraction - 1.0

    def _least(self) -> float:
        """The energy change that any setting has to beat: the governor's 0, or an earlier round's."""
        return self.round.reference.energy_change if self.round.reference else 0.0

    def _best(self, words: Mapping[Levels, Comparison]) -> float:
        """The energy change of the best passing setting, as a fraction; what has to be beaten without one."""
        passing = self.passing()
        return words[passing[0]].energy_change if passing else self._least()

    def _energy(self, levels: Levels) -> float:
        """The energy change expected of a setting, from all trials."""
        added = (self.response(axis).added_energy(self._x(axis, levels[axis])) for axis in (0, 1))
        return self._rest()[1] + self._base_energy() + sum(added)

    def _base_energy(self) -> float:
        """The energy change of the setting that all others are built upon, without the rest's."""
        return sum(self._own(self._base.added_energy, axis) for axis in (0, 1)) if self._base else 0.0

    def _lower(self, words: Mapping[Levels, Comparison]) -> Levels | None:
        """The open setting near what was tried that promises most, if it promises enough."""
        passing, best = self.passing(), self._best(words)
        # No clock goes further than two levels below what was tried: more is extrapolation, and the job pays for it.
        reach = [max(trial.levels[axis] for trial in self.trials) for axis in (0, 1)]
        if passing:
            reach = [max(levels[axis] for levels in passing) for axis in (0, 1)]
        limits = [min(deep + 2, len(self._axes[axis])) for axis, deep in enumerate(reach)]
        responses = [self.response(0), self.response(1)]
        rest_time, rest_energy = self._rest()
        rest_time += sum(self._base_time(axis) for axis in (0, 1))
        rest_energy += self._base_energy()
        allowed = self._allowed_time()
        found: tuple[float, Levels] | None = None
        for generation in range(limits[0] + 1):
            for training in range(limits[1] + 1):
                levels = Levels(generation, training)
                xs = (self._x(0, generation), self._x(1, training))
                time = rest_time + sum(r.added_time(x) for r, x in zip(responses, xs, strict=True))
                energy = rest_energy + sum(r.added_energy(x) for r, x in zip(responses, xs, strict=True))
                promising = time <= allowed and energy < best - self._settings.min_gain
                promising = promising and self._is_safe(levels, responses)
                if promising and (found is None or energy < found[0]) and self._open(levels, words):
                    found = (energy, levels)
        return found[1] if found else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the settings and the clock table."""
        return {
            "ceilings_mhz": list(self._ceilings),
            "shares": list(astuple(self._shares)),
            "round": self.round.to_dict(),
            "trials": [
                [*trial.levels, trial.comparison.to_dict(), trial.confirming] for trial in self.trials
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], settings: Settings, clocks: Sequence[int]) -> Search:
        """What :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        shares, what = Shares(*values["shares"]), Round.from_dict(values["round"])
        search = cls(settings, clocks, (generation, training), shares, what)
        for *levels, comparison, confirming in values["trials"]:
            search.trials.append(Trial(Levels(*levels), Comparison.from_dict(comparison), confirming))
        return search
