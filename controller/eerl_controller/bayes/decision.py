"""One rule: the setting that saves most over what is left, while the run's loss stays allowed with 99 % probability.

The run's loss is a number of seconds: lost so far plus lost from now on, each linear in what is believed about the
clocks, so that its mean and variance follow from one covariance in which reference, lock offset, drift and responses
are correlated as they are. What was not spent may be spent later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.curve import DEEPEST, basis
from eerl_controller.bayes.outlook import Outlook
from eerl_controller.bayes.powers import Layout as PowerLayout
from eerl_controller.bayes.powers import Powers
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING
from eerl_controller.bayes.times import Layout, Times
from eerl_controller.clocks import Pair

Array = NDArray[np.float64]

#: Standard deviations of a one-sided 99 %.
SURE = 2.326
#: Hopes in standard deviations, with the probability of a Gaussian between halfway points (0.5, 1.5, and beyond).
HOPES = ((1.0, 0.242), (2.0, 0.067))
#: Blocks that a hope is given to show what there is to it.
HOPE_BLOCKS = 3.0
#: A governor block so often is expected for the rest of the run, when it is judged what will be known at its end.
UPDATES_PER_CONTRAST = 30.0
#: A wrong belief is noticed within a monitoring window (Table 3: 20 updates); until then it must be affordable.
COMMITTED_UPDATES = 20.0
#: A locked clock never costs more than this beside what its depth explains (paper, appendix C: 0 to 2 %).
WORST_OFFSET = 0.02


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be lost: ``limit`` of all the time, ``past_s`` seconds of which are over and ``left`` updates to come.

    ``told`` is False when nobody said how many updates are left.
    """

    limit: float
    past_s: float
    left: float
    told: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and what is expected of it, by update, as fractions of the governor's energy and time.

    ``price`` is what another unit of allowed loss would save, ``loss_sd`` the standard deviation of ``loss``.
    """

    pair: Pair
    saving: float
    loss: float
    loss_sd: float
    price: float
    #: Maps the state of time to ``loss``, for what a probe would make of its standard deviation.
    gradient: Array


class Axis:
    """The clocks that one axis may take, the governor first, and what is believed of them."""

    def __init__(self, clocks: Sequence[int], ceiling_mhz: float) -> None:
        below = [mhz for mhz in clocks if mhz < ceiling_mhz and math.log(ceiling_mhz / mhz) <= DEEPEST]
        self.mhz: list[int | None] = [None, *sorted(below, reverse=True)]
        depths = [0.0 if mhz is None else math.log(ceiling_mhz / mhz) for mhz in self.mhz]
        self.depths: Array = np.array(depths)
        self.locked: Array = np.array([0.0 if mhz is None else 1.0 for mhz in self.mhz])

    def time_rows(self, part: int) -> Array:
        """Rows by clock that map the time state to the log slowdown of the axis' own part."""
        rows = np.zeros((len(self.mhz), Layout.size))
        rows[:, Layout.curve[part]] = basis(self.depths)
        rows[:, Layout.offset[part]] = self.locked
        return rows

    def power_drop(self, part: int, mean: Array) -> Array:
        """How much lower the log power of the axis' own part is, by clock."""
        drop = basis(self.depths) @ mean[PowerLayout.curve[part]]
        return np.asarray(np.maximum.accumulate(drop))


class Rule:
    """The rule for one set of clocks; thin it to what is worth telling apart."""

    def __init__(self, axes: tuple[Axis, Axis], idle_mhz: int | None, *, one_pool: bool) -> None:
        self.axes = axes
        self.idle_mhz = idle_mhz
        #: Whether an update switches clocks inside itself: by idle clock off and on, and both axes' clocks.
        if one_pool:
            codes = [np.array([mhz or 0 for mhz in axis.mhz]) for axis in axes]
            self.switches: Array = 1.0 * (codes[0][:, None] != codes[1][None, :])[None, :, :]
        else:
            idles = np.array([0.0] if idle_mhz is None else [0.0, 1.0])
            self.switches = np.broadcast_to(
                idles[:, None, None], (len(idles), len(axes[0].mhz), len(axes[1].mhz))
            )

    def choose(
        self,
        times: Times,
        powers: Powers,
        outlook: Outlook,
        allowance: Allowance,
        *,
        reach: tuple[float, float],
        current: Pair | None = None,
    ) -> tuple[Choice, Choice | None]:
        """The best setting no deeper than ``reach``, and what is expected of ``current`` if it is still allowed."""
        table = _Table(self, times, powers, outlook)
        allowed = table.allowed(allowance, COMMITTED_UPDATES, reach) & table.paced(allowance)
        saving = np.where(allowed, table.saving, -math.inf)
        at = np.unravel_index(int(saving.argmax()), saving.shape)
        price = table.price(saving, at)
        best = table.choice(at, price)
        if current is None:
            return best, None
        here = table.index(current)
        return best, table.choice(here, price) if here is not None and allowed[here] else None

    def hope(
        self,
        times: Times,
        powers: Powers,
        outlook: Outlook,
        allowance: Allowance,
        *,
        reach: tuple[float, float],
        best: Choice,
        trial: float,
    ) -> Choice | None:
        """A setting worth ``trial`` updates, because it may turn out better than ``best``; None when there is none.

        One response at a time is supposed to be kinder than believed, by one or two standard deviations. What would
        then be gained over the rest of the run, times the probability that it is so, must be more than what the
        trial costs by today's belief.
        """
        plain = _Table(self, times, powers, outlook)
        affordable = plain.allowed(allowance, trial, reach)
        found: tuple[float, Choice] | None = None
        for axis in (0, 1):
            gain, most, where = 0.0, 0.0, None
            for hope, chance in HOPES:
                table = _Table(self, times, powers, outlook, hopeful=(axis, hope))
                saving = np.where(table.paced(allowance), table.saving, -math.inf)
                at = np.unravel_index(int(saving.argmax()), saving.shape)
                better = chance * max(float(table.saving[at]) - best.saving, 0.0)
                gain += better * max(allowance.left - trial, 0.0)
                if better > most:
                    most, where = better, self._nearest(affordable, at)
            if where is None:
                continue
            believed = plain.choice(where, best.price)
            worth = (best.saving - best.price * best.loss) - (believed.saving - best.price * believed.loss)
            net = gain - HOPE_BLOCKS * trial * max(worth, 0.0)
            if believed.pair != best.pair and net > 0.0 and (found is None or net > found[0]):
                found = (net, believed)
        return found[1] if found else None

    def _nearest(self, affordable: NDArray[np.bool_], at: tuple[int, ...]) -> tuple[int, int, int] | None:
        """The deepest affordable setting on the way from the governor to this one."""
        idle, generation, training = (int(index) for index in at)
        while generation or training:
            if affordable[idle, generation, training]:
                return idle, generation, training
            generation, training = max(generation - 1, 0), max(training - 1, 0)
        return None


class _Table:
    """Every setting at once: idle off and on, generation's clocks, training's clocks."""

    def __init__(
        self,
        rule: Rule,
        times: Times,
        powers: Powers,
        outlook: Outlook,
        hopeful: tuple[int, float] | None = None,
    ) -> None:
        self._rule = rule
        self._outlook = outlook
        self._mean, self._covariance = times.bank.pooled()
        scales = times.noise
        self._noise_s2 = sum(
            (value * scale) ** 2 for value, scale in zip(outlook.seconds, scales, strict=True)
        )
        generation, training = rule.axes
        mean, power = self._mean, powers.mean
        idles = np.array([0.0] if rule.idle_mhz is None else [0.0, 1.0])
        seconds, joules = outlook.seconds, outlook.joules
        validation_s, _ = outlook.visits_s
        rows = (generation.time_rows(GENERATION), training.time_rows(TRAINING))
        slow, kept = [], np.ones(1)
        for number, (axis, own) in enumerate(zip(rule.axes, rows, strict=True)):
            log = own @ mean
            if hopeful is not None and number == hopeful[0]:
                # A trial's noise is in its way: what it may change is less than all that is not known.
                variance = np.maximum(np.einsum("ij,ij->i", own @ self._covariance, own), 0.0)
                noise = scales[number] ** 2 / HOPE_BLOCKS
                log = log - hopeful[1] * variance / np.sqrt(variance + noise)
                kept = np.sqrt(noise / (variance + noise))
            # Physics: slower when lower, and never slower than the clock itself.
            slow.append(np.clip(np.maximum.accumulate(log), 0.0, axis.depths + WORST_OFFSET))
        rest_mean = mean[Layout.rest]
        rest = (
            rest_mean[2] * rule.switches
            + rest_mean[0] * generation.depths[None, :, None]
            + rest_mean[1] * training.depths[None, None, :]
        )
        factor_g, factor_t = np.exp(slow[0]), np.exp(slow[1])
        self.lost_s = (
            seconds[REST] * np.expm1(rest)
            + ((seconds[GENERATION] + validation_s) * np.expm1(slow[0]))[None, :, None]
            + (seconds[TRAINING] * np.expm1(slow[1]))[None, None, :]
        )
        self.total_s = outlook.total_s
        drop_g, drop_t = generation.power_drop(GENERATION, power), training.power_drop(TRAINING, power)
        off = 1.0 - idles
        cross_g = power[PowerLayout.cross[GENERATION]] * off[:, None] * training.depths[None, :]
        cross_t = power[PowerLayout.cross[TRAINING]] * off[:, None] * generation.depths[None, :]
        idle = [power[PowerLayout.idle[part]] * idles for part in (GENERATION, TRAINING, REST)]
        rest_drop = (
            idle[REST][:, None, None]
            + power[PowerLayout.rest][0] * generation.depths[None, :, None]
            + power[PowerLayout.rest][1] * training.depths[None, None, :]
        )
        energy = joules[REST] * np.exp(rest - rest_drop)
        energy = energy + joules[GENERATION] * (
            (factor_g * np.exp(-drop_g))[None, :, None]
            * np.exp(-cross_g - idle[GENERATION][:, None])[:, None, :]
        )
        energy = energy + joules[TRAINING] * (
            (factor_t * np.exp(-drop_t))[None, None, :]
            * np.exp(-cross_t - idle[TRAINING][:, None])[:, :, None]
        )
        self.saving = 1.0 - energy / sum(joules)
        # Gradients of the seconds lost by an update, by axis; the rest's belong to both and to idling.
        self._gradients = [
            (seconds[GENERATION] + validation_s) * factor_g[:, None] * rows[0],
            seconds[TRAINING] * factor_t[:, None] * rows[1],
        ]
        self._gradients[0][:, Layout.rest.start] += seconds[REST] * generation.depths
        self._gradients[1][:, Layout.rest.start + 1] += seconds[REST] * training.depths
        if hopeful is not None:
            self._gradients[hopeful[0]] = kept[:, None] * self._gradients[hopeful[0]]
        self._switching_s = seconds[REST] * rule.switches
        worst = [np.expm1(axis.depths + WORST_OFFSET * axis.locked) for axis in rule.axes]
        self.worst_s = (
            seconds[REST] * np.expm1(np.abs(rest))
            + ((seconds[GENERATION] + validation_s) * worst[0])[None, :, None]
            + (seconds[TRAINING] * worst[1])[None, None, :]
        )
        self._variances()

    def _variances(self) -> None:
        covariance, switching, at = self._covariance, self._switching_s, Layout.rest.start + 2
        g, t = self._gradients[0], self._gradients[1]
        carried = [rows @ covariance for rows in (g, t)]
        own = [np.einsum("ij,ij->i", c, rows) for c, rows in zip(carried, (g, t), strict=True)]
        self._variance = (
            own[0][None, :, None]
            + own[1][None, None, :]
            + 2.0 * (carried[0] @ t.T)[None, :, :]
            + switching * (switching * covariance[at, at])
            + 2.0 * switching * (carried[0][:, at][None, :, None] + carried[1][:, at][None, None, :])
        )
        past = covariance[Layout.lost]
        self._with_past = (g @ past)[None, :, None] + (t @ past)[None, None, :] + switching * past[at]
        self._past = (float(self._mean[Layout.lost]), float(past[Layout.lost]))

    def _sd(self, updates: float) -> Array:
        """Standard deviation in seconds of what is lost so far and in this many more updates."""
        variance = self._past[1] + updates**2 * self._variance + 2.0 * updates * self._with_past
        return np.sqrt(np.maximum(variance, 0.0))

    def paced(self, allowance: Allowance) -> NDArray[np.bool_]:
        """Which settings could be held to the end, where more will be known of them than today.

        A contrast with the governor tells a loss to about the noise of one update; what is believed today and the
        contrasts to come add up like independent measurements.
        """
        lost, left = self._past[0], allowance.left
        whole_s = allowance.limit * (allowance.past_s + left * (self.total_s + self.lost_s))
        contrasts = left / UPDATES_PER_CONTRAST
        kept = 1.0 / np.sqrt(1.0 + contrasts * np.maximum(self._variance, 0.0) / self._noise_s2)
        found = np.asarray(lost + left * self.lost_s + SURE * kept * self._sd(left) <= whole_s)
        found[0, 0, 0] = True
        return found

    def allowed(self, allowance: Allowance, updates: float, reach: tuple[float, float]) -> NDArray[np.bool_]:
        """Which settings may run now, for so many updates, before they can be left for the governor."""
        lost, sd_lost = self._past[0], math.sqrt(max(self._past[1], 0.0))
        limit = allowance.limit
        committed = min(allowance.left, updates)
        to_come = allowance.left if allowance.told else committed
        # Seconds that the rest of the run takes count for the allowance, its own losses included.
        budget_s = limit * (allowance.past_s + to_come * self.total_s)
        surely = lost + SURE * sd_lost + committed * self.worst_s
        likely = lost + committed * self.lost_s + SURE * self._sd(committed)
        safe = np.minimum(surely, likely) <= budget_s
        depth = (self._rule.axes[0].depths <= reach[0] + 1e-9)[:, None] & (
            self._rule.axes[1].depths <= reach[1] + 1e-9
        )[None, :]
        found = safe & depth[None, :, :]
        found[0, 0, 0] = True
        return np.asarray(found)

    def index(self, pair: Pair) -> tuple[int, int, int] | None:
        """Where a pair stands; None when it is not among the settings."""
        axes = self._rule.axes
        if pair.generation_mhz not in axes[0].mhz or pair.training_mhz not in axes[1].mhz:
            return None
        idle = 0 if pair.idle_mhz is None else 1
        if idle >= self.saving.shape[0]:
            return None
        return idle, axes[0].mhz.index(pair.generation_mhz), axes[1].mhz.index(pair.training_mhz)

    def price(self, saving: Array, at: tuple[int, ...]) -> float:
        """What loss is worth: the saving given up by the loss given up, towards the setting that gives up least.

        The governor is one of these settings, so what is held is never worth less than its price.
        """
        less = self.lost_s[at] - self.lost_s
        cheaper = np.isfinite(saving) & (less > 1e-6 * self.total_s)
        if not cheaper.any():
            return 0.0
        slopes = (saving[at] - saving[cheaper]) / (less[cheaper] / self.total_s)
        return max(float(slopes.min()), 0.0)

    def choice(self, at: tuple[int, ...], price: float) -> Choice:
        """The setting with this index."""
        axes = self._rule.axes
        gradient = self._gradients[0][at[1]] + self._gradients[1][at[2]]
        gradient[Layout.rest.start + 2] += float(self._switching_s[at])
        idle = self._rule.idle_mhz if at[0] == 1 else None
        return Choice(
            pair=Pair(axes[0].mhz[at[1]], axes[1].mhz[at[2]], idle),
            saving=float(self.saving[at]),
            loss=float(self.lost_s[at] / self.total_s),
            loss_sd=math.sqrt(max(float(self._variance[at]), 0.0)) / self.total_s,
            price=price,
            gradient=gradient / self.total_s,
        )
