"""The model of time: log seconds of each part of an update = level + work + clock response + lock offset + noise.

Work is equation 2 of the paper (section 5.1): generation follows G and L, training N; G beside N because tokens that
are masked cost training too. Everything is one Gaussian state with its covariance, kept by a bank of Kalman filters
over suppositions about noise. The state also holds the seconds lost to lowered clocks so far, so that later evidence
about a clock corrects what its earlier use is believed to have cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.firsts import Odd
from eerl_controller.bayes.readings import Readings
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Clocks
from eerl_controller.bayes.time_prior import (
    CLOCK_STATES,
    NOISE,
    WORK,
    Layout,
    Suppositions,
    prior,
    response_row,
)
from eerl_controller.bayes.time_states import SLOPES, WHITE
from eerl_controller.bayes.warm import extract, insert

#: What first updates may have taught wrong (a log).
ODD_SD = 0.03

Array = NDArray[np.float64]


class Times:
    """What is believed about seconds."""

    def __init__(self) -> None:
        self._centres: dict[str, float] = {}
        self._bank: FilterBank | None = None
        self._readings = Readings(Clocks.from_list)
        self._start: list[float] = [1.0, 1.0, 1.0]
        #: Mean and variance of the seconds lost to an earlier governor's clocks.
        self._spent = (0.0, 0.0)
        #: What an earlier run knew (``warm``).
        self.prior: Mapping[str, Any] | None = None
        self._supposed = Suppositions()

    @property
    def known(self) -> bool:
        """Whether there is a first reading."""
        return self._bank is not None

    @property
    def bank(self) -> FilterBank:
        """The filters; only once something is known."""
        if self._bank is None:
            raise RuntimeError("no time was read yet: a bug in the controller")
        return self._bank

    @property
    def noise(self) -> tuple[float, float, float]:
        """Standard deviation of an update's log seconds by part."""
        a, b, c = (float(value) for value in self.bank.weights @ self.bank.scales)
        return a, b, c

    @property
    def common(self) -> float:
        """How far an update's noise is that of both phases: the correlation of theirs."""
        return float(self.bank.weights @ self._supposed.common)

    def begin(self, seconds: tuple[float, float, float], counts: Mapping[str, float]) -> None:
        """Start from typical seconds of the governor for this work; what was lost before stays lost."""
        before = self.bank.pooled() if self._bank is not None else None
        self._readings.begin()
        self._restart(seconds, counts)
        if before is not None:
            mean, covariance = before
            self._spent = (float(mean[Layout.lost]), float(covariance[Layout.lost, Layout.lost]))
            self.bank.spend(Layout.lost, *self._spent)

    def _restart(self, seconds: Sequence[float], counts: Mapping[str, float]) -> None:
        self._start = list(seconds)
        self._centres = {name: math.log1p(value) for name, value in counts.items()}
        mean, covariance = prior(seconds)
        insert(mean, covariance, CLOCK_STATES, self.prior)
        self._bank = FilterBank(mean, covariance, self._supposed.decay, self._supposed.walk, np.array(NOISE))

    def _work_row(self, part: int, counts: Mapping[str, float], clocks: Clocks) -> Array:
        """The row that maps the state to a part's log seconds but for its noise."""
        row = response_row(part, clocks).copy()
        row[Layout.level[part]] = 1.0
        for i, (name, _, _) in enumerate(WORK.get(part, ())):
            if name in counts and name in self._centres:
                row[Layout.work[part].start + i] = math.log1p(counts[name]) - self._centres[name]
        return row

    def _rows(
        self, part: int, counts: Mapping[str, float], clocks: Clocks, *, fresh: bool = False
    ) -> tuple[Array, Array]:
        """Rows of a reading for every filter, and its own noise variance."""
        row = self._work_row(part, counts, clocks)
        if fresh and part != REST:
            row[Layout.fresh[part]] = 1.0
        rows = np.repeat(row[None, :], len(self._supposed.common), axis=0)
        scale = self.bank.scales[:, part]
        common = self._supposed.common if part != REST else np.zeros_like(self._supposed.common)
        rows[:, Layout.common] = scale * np.sqrt(common)
        rows[:, Layout.own[part]] = scale * np.sqrt((1.0 - common) * (1.0 - WHITE))
        return rows, scale**2 * (1.0 - common) * WHITE

    def read(
        self,
        seconds: tuple[float, float, float],
        counts: Mapping[str, float],
        clocks: Clocks,
        *,
        fresh: bool = False,
    ) -> tuple[float, float, float]:
        """Learn from an update, the first under its clocks if ``fresh``; returns the surprises by part in standard
        deviations.
        """
        self._readings.note("read", list(seconds), dict(counts), clocks, fresh)
        found = self._read(seconds, counts, clocks, fresh)
        if self._readings.one_more():
            self._reweigh()
        return found

    def posterior(self) -> dict[str, Any]:
        """What is known of how the parts answer their clocks, ready for JSON."""
        return extract(*self.bank.pooled(), CLOCK_STATES)

    def forget_prior(self) -> None:
        """What an earlier run knew is not so: doubt it as much as if nothing were known."""
        self.prior = None
        for part in (GENERATION, TRAINING):
            self.bank.covariance[:, Layout.curve[part], Layout.curve[part]] += SLOPES.covariance()

    def advance(self, updates: int = 1) -> None:
        """Let time pass."""
        self._readings.note("advance", updates)
        self.bank.advance(updates)

    def doubt(self, locked: tuple[bool, bool], sd: float) -> None:
        """The machine, or what locked clocks cost, may be different from now on by so much (a log)."""
        self._readings.note("doubt", list(locked), sd)
        states = [Layout.level[GENERATION], Layout.level[TRAINING]]
        states += [Layout.offset[axis] for axis in (0, 1) if locked[axis]]
        self.bank.doubt(states, sd**2)

    def doubt_first(self, odd: Odd) -> None:
        """First updates are not what they were taken for: nor are clocks, or a change's cost, learnt from them."""
        self._readings.note("doubt_first", odd.value)
        self._doubt_first(odd.value)

    def _doubt_first(self, odd: str) -> None:
        states = Layout.offset if Odd(odd) is Odd.LEANING else Layout.fresh
        self.bank.doubt(states, ODD_SD**2)

    def _reweigh(self) -> None:
        """Go through all readings again with the noise that they have shown: at first it was a guess."""
        events, scales = self._readings.take(), self.bank.weights @ self.bank.scales
        self._restart(self._start, {name: math.expm1(value) for name, value in self._centres.items()})
        self.bank.spend(Layout.lost, *self._spent)
        self.bank.know_scales(scales, self._readings.count)
        steps: dict[str, Callable[..., Any]] = {
            "read": self._read,
            "insist": self._insist,
            "advance": self.bank.advance,
            "lose": self._lose,
            "doubt": self.doubt,
            "doubt_first": self._doubt_first,
        }
        for name, *values in events:
            steps[name](*values)
        self.bank.free_scales()
        self._readings.put_back(events)

    def _read(
        self, seconds: Sequence[float], counts: Mapping[str, float], clocks: Clocks, fresh: bool
    ) -> tuple[float, float, float]:
        found = [0.0, 0.0, 0.0]
        for part in (GENERATION, TRAINING, REST):
            if seconds[part] > 1e-3 * sum(seconds):
                rows, white = self._rows(part, counts, clocks, fresh=fresh)
                found[part] = self.bank.read(part, rows, white, math.log(seconds[part]))
        return found[0], found[1], found[2]

    def insist(
        self, seconds: tuple[float, float, float], counts: Mapping[str, float], clocks: Clocks
    ) -> None:
        """Learn once more from an update that was taken for a straggler, and was none."""
        self._readings.note("insist", list(seconds), dict(counts), clocks)
        self._insist(seconds, counts, clocks)

    def _insist(self, seconds: Sequence[float], counts: Mapping[str, float], clocks: Clocks) -> None:
        for part in (GENERATION, TRAINING):
            rows, white = self._rows(part, counts, clocks)
            # Under a lowered clock it is the clock that costs more, from its first update on.
            jumped = [] if clocks.locked[part] else [Layout.level[part]]
            value = math.log(max(seconds[part], 1e-6))
            self.bank.insist(rows, white, value, [Layout.common, Layout.own[part]], jumped)

    def distance(
        self, seconds: tuple[float, float, float], counts: Mapping[str, float], clocks: Clocks
    ) -> float:
        """How far an update's phases are from what is expected of them, as a log, the further of both."""
        return max(abs(off) for off in self.residuals(seconds, counts, clocks))

    def residuals(
        self, seconds: tuple[float, float, float], counts: Mapping[str, float], clocks: Clocks
    ) -> list[float]:
        """Log of generation's and training's seconds over what is expected of them."""
        mean = self.bank.pooled_mean()
        expected = [float(self._work_row(part, counts, clocks) @ mean) for part in (GENERATION, TRAINING)]
        return [math.log(max(seconds[part], 1e-6)) - expected[part] for part in (GENERATION, TRAINING)]

    def change_s(self, seconds: Sequence[float]) -> float:
        """What a change of clocks is believed to cost an update of these seconds by part, whatever the clocks."""
        mean = self.bank.pooled_mean()
        more = [
            seconds[part] * math.expm1(float(mean[Layout.fresh[part]])) for part in (GENERATION, TRAINING)
        ]
        return max(sum(more), 0.0)

    def slow(self, clocks: Clocks, *, fresh: bool = False) -> tuple[float, float, float]:
        """Expected log slowdown of each part beside the governor's settled update."""
        mean = self.bank.pooled_mean()
        a, b, c = (float(_slow_row(part, clocks, fresh) @ mean) for part in (GENERATION, TRAINING, REST))
        return a, b, c

    def lose(self, seconds: tuple[float, float, float], clocks: Clocks, *, fresh: bool = False) -> None:
        """Account for what these seconds would have been less under the governor, had clocks not changed either."""
        self._readings.note("lose", list(seconds), clocks, fresh)
        self._lose(seconds, clocks, fresh)

    def _lose(self, seconds: Sequence[float], clocks: Clocks, fresh: bool) -> None:
        mean = self.bank.pooled_mean()
        row, constant = np.zeros(Layout.size), 0.0
        for part in (GENERATION, TRAINING, REST):
            own = _slow_row(part, clocks, fresh)
            slow = float(own @ mean)
            governor_s = seconds[part] * math.exp(-slow)
            row += governor_s * own
            constant += seconds[part] - governor_s - governor_s * slow
        if row.any():
            self.bank.accumulate(Layout.lost, row, constant)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "centres": self._centres,
            "start": self._start,
            "readings": self._readings.to_dict(),
            "spent": list(self._spent),
            "prior": self.prior,
            "bank": self._bank.to_dict() if self._bank else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._centres = dict(values["centres"])
        self.prior = values["prior"]
        if values["bank"] is not None:
            self._restart(values["start"], {name: math.expm1(value) for name, value in self._centres.items()})
            self.bank.load(values["bank"])
        self._readings.load(values["readings"])
        self._spent = (values["spent"][0], values["spent"][1])


def _slow_row(part: int, clocks: Clocks, fresh: bool) -> Array:
    """The row that maps the state to the log slowdown of a part, in the first update under these clocks if fresh."""
    row = response_row(part, clocks)
    if fresh and part != REST:
        row = row.copy()
        row[Layout.fresh[part]] = 1.0
    return row
