"""The model of time where pools overlap: log seconds of each side = level + work + clock response + offset + noise.

Both sides and the rest (refit and what no phase names) are one Gaussian state, kept by a bank of filters that differ
in what they suppose about noise: what the sides have in common, one of them tells about the other. The state also
holds the seconds lost to lowered clocks so far, so that later evidence corrects what earlier use is believed to have
cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.pace_priors import (
    GENERATION_WORK,
    NOISE,
    SIDES,
    TRAINING_WORK,
    Layout,
    Suppositions,
    clock_states,
    doubt_following,
    prior,
    response_row,
)
from eerl_controller.bayes.pace_work import WorkDone
from eerl_controller.bayes.readings import Readings
from eerl_controller.bayes.sides import GENERATION, REST, TRAINING, Lowered, Three
from eerl_controller.bayes.time_states import SLOPES, WHITE, Work
from eerl_controller.bayes.warm import extract
from eerl_controller.records import ExecutionMode

Array = NDArray[np.float64]


class Paces:
    """What is believed about seconds."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._drained = mode is ExecutionMode.ASYNC_DRAINED
        self.work: tuple[Work, Work] = (GENERATION_WORK[mode], TRAINING_WORK[0])
        self._done = WorkDone()
        self._bank: FilterBank | None = None
        self._readings = Readings(Lowered.from_list)
        self._start: list[float] = [1.0, 1.0, 1.0]
        #: What an earlier run knew, by side (``warm``).
        self.prior: dict[str, Any] | None = None
        self._pooled: tuple[Array, Array] | None = None
        #: Mean and variance of the seconds lost to an earlier governor's clocks.
        self._spent = (0.0, 0.0)
        self._supposed = Suppositions(drained=self._drained)
        #: Whether the state knows what generation showed of the batch that training is to consume.
        self._paired = False

    @property
    def may_follow(self) -> bool:
        """Whether generation's pace may follow training's clock."""
        return not self._drained

    @property
    def known(self) -> bool:
        """Whether there is a first reading."""
        return self._bank is not None

    @property
    def bank(self) -> FilterBank:
        """The filters; only once something is known. Whoever asks for them may change them."""
        self._pooled = None
        return self._known

    @property
    def _known(self) -> FilterBank:
        if self._bank is None:
            raise RuntimeError("no time was read yet: a bug in the controller")
        return self._bank

    @property
    def noise(self) -> Three:
        """Standard deviation of an update's log seconds by part."""
        a, b, c = (float(value) for value in self._shown)
        return a, b, c

    @property
    def _shown(self) -> Array:
        """The noise that the readings have shown, over all suppositions."""
        return np.asarray(self._known.weights @ self._known.scales)

    @property
    def pooled(self) -> tuple[Array, Array]:
        """Mean and covariance of the state over all suppositions; worked out once until something is read."""
        known = self._pooled
        if known is None:
            known = self._known.pooled()
            if self.may_follow:
                doubt_following(*known)
        self._pooled = known
        return known

    @property
    def believed(self) -> Array:
        """Mean of the state over all suppositions; its covariance takes longer, and is not always wanted."""
        return self.pooled[0] if self.may_follow else self._known.pooled_mean()

    @property
    def lost(self) -> tuple[float, float]:
        """Mean and standard deviation of the seconds lost so far."""
        mean, covariance = self.pooled
        return float(mean[Layout.lost]), math.sqrt(max(float(covariance[Layout.lost, Layout.lost]), 0.0))

    def begin(self, seconds: Three, counts: Mapping[str, float]) -> None:
        """Start from typical seconds of the governor for this work; what was lost before stays lost."""
        before = self.bank.pooled() if self._bank is not None else None
        self._readings.begin()
        self._done.begin(counts)
        self._restart(seconds)
        if before is not None:
            mean, covariance = before
            self._spent = (float(mean[Layout.lost]), float(covariance[Layout.lost, Layout.lost]))
            self.bank.spend(Layout.lost, *self._spent)

    def _restart(self, seconds: Sequence[float]) -> None:
        self._start = list(seconds)
        mean, covariance = prior(seconds, self.work, self.prior, may_follow=self.may_follow)
        self._bank = FilterBank(mean, covariance, self._supposed.decay, self._supposed.walk, np.array(NOISE))

    def posterior(self) -> dict[str, Any]:
        """What is known of how either side answers its clock, ready for JSON."""
        mean, covariance = self.pooled
        return {name: extract(mean, covariance, clock_states(part)) for part, name in enumerate(SIDES)}

    def forget_prior(self) -> None:
        """What an earlier run knew is not so: doubt it as much as if nothing were known."""
        self.prior = None
        for part in (GENERATION, TRAINING):
            self.bank.covariance[:, Layout.curve[part], Layout.curve[part]] += SLOPES.covariance()

    def slow(self, setting: Lowered) -> Three:
        """Expected log slowdown of each part."""
        mean = self.believed
        a, b, c = (float(response_row(part, setting) @ mean) for part in (GENERATION, TRAINING, REST))
        return a, b, c

    def work_log(self, part: int, counts: Mapping[str, float]) -> float:
        """Expected log of a side's time for this work, relative to the work at the beginning."""
        deviations, _ = self._done.deviations(self.work[part], counts)
        return float(self._known.pooled_mean()[Layout.work[part]] @ deviations)

    def excess(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> float:
        """How many times as long as expected of its work the slower of both sides took."""
        return math.exp(max(self.residuals(seconds, counts, setting)))

    def residuals(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> list[float]:
        """Log of both sides' seconds over what is expected of them."""
        mean, slow = self._known.pooled_mean(), self.slow(setting)
        return [
            math.log(max(seconds[part], 1e-6))
            - (float(mean[Layout.level[part]]) + self.work_log(part, counts) + slow[part])
            for part in (GENERATION, TRAINING)
        ]

    def _rows(self, part: int, counts: Mapping[str, float], setting: Lowered) -> tuple[Array, Array]:
        """Rows of a reading for every filter, and its own noise variance."""
        row = response_row(part, setting).copy()
        row[Layout.level[part]] = 1.0
        unsure = 0.0
        if part != REST:
            row[Layout.work[part]], unsure = self._done.deviations(self.work[part], counts)
        supposed, scale = self._supposed, self._known.scales[:, part]
        rows, own = np.repeat(row[None, :], len(scale), axis=0), np.ones_like(scale)
        if part != REST:
            own = 1.0 - supposed.common - supposed.batch
            rows[:, Layout.common] = scale * np.sqrt(supposed.common)
            rows[:, Layout.batch] = scale * np.sqrt(supposed.batch)
        rows[:, Layout.own[part]] = scale * np.sqrt(own * (1.0 - WHITE))
        return rows, scale**2 * own * WHITE + unsure**2

    def advance(self, updates: int = 1) -> None:
        """Let time pass."""
        self._readings.note("advance", updates)
        self._advance(updates)

    def _advance(self, updates: int) -> None:
        self.bank.advance(updates)
        if updates > 1 or not self._paired:
            self.bank.spend(Layout.batch, 0.0, 1.0)
        self._paired = False

    def read(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> Three:
        """Learn from an update; returns the surprises by part in standard deviations."""
        self._readings.note("read", list(seconds), dict(counts), setting)
        self._done.notice(counts)
        found = self._read(seconds, counts, setting)
        if self._readings.one_more():
            self._reweigh()
        return found

    def _read(self, seconds: Sequence[float], counts: Mapping[str, float], setting: Lowered) -> Three:
        found = [0.0, 0.0, 0.0]
        # Training consumes the batch that generation showed an update ago; then the next one is shown.
        for part in (TRAINING, REST, GENERATION):
            if part == GENERATION:
                self.bank.spend(Layout.batch, 0.0, 1.0)
                self._paired = True
            if seconds[part] > 1e-3 * sum(seconds):
                rows, white = self._rows(part, counts, setting)
                found[part] = self.bank.read(part, rows, white, math.log(seconds[part]))
        return found[0], found[1], found[2]

    def insist(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> None:
        """Learn once more from an update that was taken for a straggler, and was none."""
        self._readings.note("insist", list(seconds), dict(counts), setting)
        self._insist(seconds, counts, setting)

    def _insist(self, seconds: Sequence[float], counts: Mapping[str, float], setting: Lowered) -> None:
        for part in (GENERATION, TRAINING):
            rows, white = self._rows(part, counts, setting)
            # Under a lowered clock it is the clock that costs more, from its first update on.
            jumped = [] if setting.locked[part] else [Layout.level[part]]
            value = math.log(max(seconds[part], 1e-6))
            self.bank.insist(rows, white, value, [Layout.common, Layout.batch, Layout.own[part]], jumped)

    def lose(self, governor_s: Three, more_s: float, setting: Lowered) -> None:
        """Account for ``more_s`` lost seconds of an update.

        ``governor_s``: seconds of the governor's update that follow each part's pace; the belief about how much
        slower a part was may still change, and with it what the governor would have taken.
        """
        self._readings.note("lose", list(governor_s), more_s, setting)
        self._lose(governor_s, more_s, setting)

    def _lose(self, governor_s: Sequence[float], more_s: float, setting: Lowered) -> None:
        row = np.zeros(Layout.size)
        for part in (GENERATION, TRAINING, REST):
            row += governor_s[part] * response_row(part, setting)
        slower_s = float(row @ self.believed)
        self.bank.accumulate(Layout.lost, row, more_s - slower_s)

    def doubt(self, locked: tuple[bool, bool], sd: float) -> None:
        """The machine, or what locked clocks cost, may be different from now on by so much (a log)."""
        self._readings.note("doubt", list(locked), sd)
        states = [Layout.level[GENERATION], Layout.level[TRAINING]]
        states += [Layout.offset[axis] for axis in (0, 1) if locked[axis]]
        self.bank.doubt(states, sd**2)

    def _reweigh(self) -> None:
        """Go through all readings again with the noise that they have shown, under what explains them best."""
        events, shown = self._readings.take(), self._shown
        self._done.know(event[2] for event in events if event[0] == "read")
        supposed, found = self.work, []
        for training in TRAINING_WORK:
            self.work = (supposed[0], training)
            if training != supposed[1]:
                self._replay(events)
            self._replay(events, shown if training == supposed[1] else self._shown)
            found.append((self._known.evidence, self.work, self._bank, self._paired))
        _, self.work, self._bank, self._paired = max(found, key=lambda item: item[0])
        self.bank.free_scales()
        self._readings.put_back(events)

    def _replay(self, events: Sequence[Sequence[Any]], scales: Array | None = None) -> None:
        """Start again and go through what happened; ``scales``: the noise, if it is known."""
        self._restart(self._start)
        self._paired = False
        self.bank.spend(Layout.lost, *self._spent)
        if scales is not None:
            self.bank.know_scales(scales, self._readings.count)
        steps: dict[str, Callable[..., Any]] = {
            "read": self._read,
            "insist": self._insist,
            "advance": self._advance,
            "lose": self._lose,
            "doubt": self.doubt,
        }
        for name, *values in events:
            steps[name](*values)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "done": self._done.to_dict(),
            "start": self._start,
            "readings": self._readings.to_dict(),
            "follows": TRAINING_WORK.index(self.work[1]),
            "paired": self._paired,
            "spent": list(self._spent),
            "prior": self.prior,
            "bank": self._bank.to_dict() if self._bank else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.prior = values["prior"]
        self.work = (self.work[0], TRAINING_WORK[values["follows"]])
        self._done.load(values["done"])
        if values["bank"] is not None:
            self._restart(values["start"])
            self.bank.load(values["bank"])
        self._readings.load(values["readings"])
        self._paired = values["paired"]
        self._spent = (values["spent"][0], values["spent"][1])
