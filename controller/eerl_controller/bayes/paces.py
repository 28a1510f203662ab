"""The model of time where pools overlap: log seconds of each side = level + work + clock response + offset + noise.

Both sides and the rest (refit and what no phase names) are one Gaussian state, kept by a bank of filters that differ
in what they suppose about noise: what the sides have in common, one of them tells about the other. The state also
holds the seconds lost to lowered clocks so far, so that later evidence corrects what earlier use is believed to have
cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import basis
from eerl_controller.bayes.filter import FilterBank
from eerl_controller.bayes.pace_priors import (
    BATCH,
    COMMON,
    CORRELATIONS,
    FOLLOWING_SD,
    GENERATION_WORK,
    IDLE_MEAN,
    IDLE_SD,
    LEVEL_SD,
    LEVEL_WALKS,
    NOISE,
    NOT_FOLLOWING,
    OFFSET_MEAN,
    OFFSET_SD,
    OFFSET_WALK,
    REST_SLOPE_MEAN,
    REST_SLOPE_SD,
    REWEIGHED,
    SIDES,
    SLOPE_WALK,
    SLOPES,
    TRAINING_WORK,
    WHITE,
    WORK_WALK,
    Layout,
    Work,
)
from eerl_controller.bayes.pace_work import WorkDone
from eerl_controller.bayes.sides import GENERATION, REST, TRAINING, Lowered, Three
from eerl_controller.bayes.warm import extract, insert
from eerl_controller.records import ExecutionMode

Array = NDArray[np.float64]


class Paces:
    """What is believed about seconds."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._drained = mode is ExecutionMode.ASYNC_DRAINED
        self.work: tuple[Work, Work] = (GENERATION_WORK[mode], TRAINING_WORK[0])
        self._done = WorkDone()
        self._bank: FilterBank | None = None
        #: What the first readings were, in order, until they have been weighed by a noise that is known.
        self._events: list[list[Any]] | None = []
        self._start: list[float] = [1.0, 1.0, 1.0]
        self._readings = 0
        #: What an earlier run knew, by side (``warm``).
        self.prior: dict[str, Any] | None = None
        self._pooled: tuple[Array, Array] | None = None
        #: Mean and variance of the seconds lost to an earlier governor's clocks.
        self._spent = (0.0, 0.0)
        # Without a rendezvous nobody knows in which update the batch was generated that is trained on.
        shared = COMMON + (BATCH if self._drained else ())
        suppositions = list(product(CORRELATIONS, shared, LEVEL_WALKS))
        self._common = np.array([common for _, (common, _), _ in suppositions])
        self._batch = np.array([batch for _, (_, batch), _ in suppositions])
        #: Whether the state knows what generation showed of the batch that training is to consume.
        self._paired = False
        self._decay = np.ones((len(suppositions), Layout.size))
        self._walk = np.zeros((len(suppositions), Layout.size))
        for i, (correlation, _, level_walk) in enumerate(suppositions):
            self._decay[i, [Layout.common, *Layout.own]] = correlation
            self._walk[i, list(Layout.level)] = level_walk**2
        self._walk[:, list(Layout.offset)] = OFFSET_WALK**2
        for part in (GENERATION, TRAINING):
            self._walk[:, Layout.curve[part]] = SLOPE_WALK**2
            self._walk[:, Layout.work[part]] = WORK_WALK**2

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
                _doubt_following(*known)
        self._pooled = known
        return known

    @property
    def lost(self) -> tuple[float, float]:
        """Mean and standard deviation of the seconds lost so far."""
        mean, covariance = self.pooled
        return float(mean[Layout.lost]), math.sqrt(max(float(covariance[Layout.lost, Layout.lost]), 0.0))

    def begin(self, seconds: Three, counts: Mapping[str, float]) -> None:
        """Start from typical seconds of the governor for this work; what was lost before stays lost."""
        before = self.bank.pooled() if self._bank is not None else None
        self._events, self._readings = [], 0
        self._done.begin(counts)
        self._restart(seconds)
        if before is not None:
            mean, covariance = before
            self._spent = (float(mean[Layout.lost]), float(covariance[Layout.lost, Layout.lost]))
            self.bank.spend(Layout.lost, *self._spent)

    def _restart(self, seconds: Sequence[float]) -> None:
        self._start = list(seconds)
        mean, variance = np.zeros(Layout.size), np.zeros(Layout.size)
        covariance = np.zeros((Layout.size, Layout.size))
        for part in (GENERATION, TRAINING, REST):
            mean[Layout.level[part]] = math.log(max(seconds[part], 1e-6))
            variance[Layout.level[part]] = LEVEL_SD**2
        for part in (GENERATION, TRAINING):
            for i, (_, slope, sd) in enumerate(self.work[part]):
                mean[Layout.work[part].start + i], variance[Layout.work[part].start + i] = slope, sd**2
            mean[Layout.curve[part]] = SLOPES.mean
            covariance[Layout.curve[part], Layout.curve[part]] = SLOPES.covariance()
            mean[Layout.offset[part]], variance[Layout.offset[part]] = OFFSET_MEAN, OFFSET_SD**2
        mean[Layout.rest] = (REST_SLOPE_MEAN, REST_SLOPE_MEAN, IDLE_MEAN)
        variance[Layout.rest] = (REST_SLOPE_SD**2, REST_SLOPE_SD**2, IDLE_SD**2)
        if not self._drained:
            variance[Layout.following] = FOLLOWING_SD**2
        variance[[Layout.common, Layout.batch, *Layout.own]] = 1.0
        covariance[np.arange(Layout.size), np.arange(Layout.size)] += variance
        if isinstance(self.prior, Mapping):
            for part, name in enumerate(SIDES):
                insert(mean, covariance, self._clock_states(part), self.prior.get(name))
        self._bank = FilterBank(mean, covariance, self._decay, self._walk, np.array(NOISE))

    @staticmethod
    def _clock_states(part: int) -> list[int]:
        """The states that say how a side answers its clock."""
        curve = Layout.curve[part]
        return [*range(curve.start, curve.stop), Layout.offset[part]]

    def posterior(self) -> dict[str, Any]:
        """What is known of how either side answers its clock, ready for JSON."""
        mean, covariance = self.pooled
        return {name: extract(mean, covariance, self._clock_states(part)) for part, name in enumerate(SIDES)}

    def forget_prior(self) -> None:
        """What an earlier run knew is not so: doubt it as much as if nothing were known."""
        self.prior = None
        for part in (GENERATION, TRAINING):
            self.bank.covariance[:, Layout.curve[part], Layout.curve[part]] += SLOPES.covariance()

    def response_row(self, part: int, setting: Lowered) -> Array:
        """The row that maps the state to the log slowdown of a part under this setting."""
        row = np.zeros(Layout.size)
        if part == REST:
            row[Layout.rest] = (*setting.below, float(setting.idles))
        else:
            row[Layout.curve[part]] = basis(setting.depths[part])
            row[Layout.offset[part]] = float(setting.locked[part])
            if part == GENERATION:
                row[Layout.following] = setting.depths[TRAINING]
        return row

    def slow(self, setting: Lowered) -> Three:
        """Expected log slowdown of each part."""
        mean, _ = self.pooled
        a, b, c = (float(self.response_row(part, setting) @ mean) for part in (GENERATION, TRAINING, REST))
        return a, b, c

    def work_log(self, part: int, counts: Mapping[str, float]) -> float:
        """Expected log of a side's time for this work, relative to the work at the beginning."""
        deviations, _ = self._done.deviations(self.work[part], counts)
        return float(self._known.pooled_mean()[Layout.work[part]] @ deviations)

    def excess(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> float:
        """How many times as long as expected of its work the slower of both sides took."""
        mean, slow = self._known.pooled_mean(), self.slow(setting)
        return max(
            seconds[part]
            / math.exp(float(mean[Layout.level[part]]) + self.work_log(part, counts) + slow[part])
            for part in (GENERATION, TRAINING)
        )

    def _rows(self, part: int, counts: Mapping[str, float], setting: Lowered) -> tuple[Array, Array]:
        """Rows of a reading for every filter, and its own noise variance."""
        row = self.response_row(part, setting)
        row[Layout.level[part]] = 1.0
        unsure = 0.0
        if part != REST:
            row[Layout.work[part]], unsure = self._done.deviations(self.work[part], counts)
        rows = np.repeat(row[None, :], len(self._common), axis=0)
        scale = self._known.scales[:, part]
        own = 1.0 - self._common - self._batch if part != REST else np.ones_like(self._common)
        if part != REST:
            rows[:, Layout.common] = scale * np.sqrt(self._common)
            rows[:, Layout.batch] = scale * np.sqrt(self._batch)
        rows[:, Layout.own[part]] = scale * np.sqrt(own * (1.0 - WHITE))
        return rows, scale**2 * own * WHITE + unsure**2

    def advance(self, updates: int = 1) -> None:
        """Let time pass."""
        self._log("advance", updates)
        self._advance(updates)

    def _advance(self, updates: int) -> None:
        self.bank.advance(updates)
        if updates > 1 or not self._paired:
            self.bank.spend(Layout.batch, 0.0, 1.0)
        self._paired = False

    def read(self, seconds: Three, counts: Mapping[str, float], setting: Lowered) -> Three:
        """Learn from an update; returns the surprises by part in standard deviations."""
        self._log("read", list(seconds), dict(counts), setting)
        self._done.notice(counts)
        found = self._read(seconds, counts, setting)
        self._readings += 1
        if self._readings in REWEIGHED:
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
        self._log("insist", list(seconds), dict(counts), setting)
        self._insist(seconds, counts, setting)

    def _insist(self, seconds: Sequence[float], counts: Mapping[str, float], setting: Lowered) -> None:
        for part in (GENERATION, TRAINING):
            rows, white = self._rows(part, counts, setting)
            self.bank.insist(rows, white, math.log(max(seconds[part], 1e-6)))

    def lose(self, governor_s: Three, more_s: float, setting: Lowered) -> None:
        """Account for ``more_s`` lost seconds of an update.

        ``governor_s``: seconds of the governor's update that follow each part's pace; the belief about how much
        slower a part was may still change, and with it what the governor would have taken.
        """
        self._log("lose", list(governor_s), more_s, setting)
        self._lose(governor_s, more_s, setting)

    def _lose(self, governor_s: Sequence[float], more_s: float, setting: Lowered) -> None:
        row = np.zeros(Layout.size)
        for part in (GENERATION, TRAINING, REST):
            row += governor_s[part] * self.response_row(part, setting)
        believed, _ = self.pooled
        self.bank.accumulate(Layout.lost, row, more_s - float(row @ believed))

    def doubt(self, locked: tuple[bool, bool], sd: float) -> None:
        """The machine, or what locked clocks cost, may be different from now on by so much (a log)."""
        self._log("doubt", list(locked), sd)
        states = [Layout.level[GENERATION], Layout.level[TRAINING]]
        states += [Layout.offset[axis] for axis in (0, 1) if locked[axis]]
        self.bank.doubt(states, sd**2)

    def _log(self, *event: Any) -> None:
        if self._events is not None:
            self._events.append(list(event))

    def _reweigh(self) -> None:
        """Go through all readings again with the noise that they have shown, under what explains them best."""
        events, shown = self._events or [], self._shown
        self._events = None
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
        self._events = events if self._readings < REWEIGHED[-1] else None

    def _replay(self, events: Sequence[Sequence[Any]], scales: Array | None = None) -> None:
        """Start again and go through what happened; ``scales``: the noise, if it is known."""
        self._restart(self._start)
        self._paired = False
        self.bank.spend(Layout.lost, *self._spent)
        if scales is not None:
            self.bank.know_scales(scales, self._readings)
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
        events = self._events
        if events is not None:
            events = [[_plain(item) for item in event] for event in events]
        return {
            "done": self._done.to_dict(),
            "start": self._start,
            "readings": self._readings,
            "follows": TRAINING_WORK.index(self.work[1]),
            "paired": self._paired,
            "spent": list(self._spent),
            "prior": self.prior,
            "events": events,
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
        self._readings, self._paired = values["readings"], values["paired"]
        self._spent = (values["spent"][0], values["spent"][1])
        events = values["events"]
        self._events = None if events is None else [[_whole(item) for item in event] for event in events]


def _plain(item: Any) -> Any:
    """A setting as a mapping, anything else as it is."""
    return {"setting": item.to_list()} if isinstance(item, Lowered) else item


def _whole(item: Any) -> Any:
    """What :func:`_plain` wrote."""
    return Lowered.from_list(item["setting"]) if isinstance(item, Mapping) and "setting" in item else item


def _doubt_following(mean: Array, covariance: Array) -> None:
    """Most likely generation does not follow training at all; how likely, the evidence says (Savage and Dickey)."""
    at = Layout.following
    found, variance = float(mean[at]), float(covariance[at, at])
    ratio = FOLLOWING_SD / math.sqrt(variance) * math.exp(-0.5 * found**2 / variance)
    follows = 1.0 / (1.0 + NOT_FOLLOWING / (1.0 - NOT_FOLLOWING) * ratio)
    # What all else would be if it did not, mixed with what it is.
    along = covariance[:, at] / variance
    mean -= (1.0 - follows) * found * along
    covariance -= (1.0 - follows) * (variance - follows * found**2) * np.outer(along, along)
