"""What is believed of every setting at once: its saving, its loss, and how sure that is.

The run's loss is a number of seconds: lost so far plus lost from now on, each linear in what is believed about the
clocks, so that its mean and variance follow from one covariance in which reference, lock offset, drift and responses
are correlated as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Menu
from eerl_controller.bayes.powers import Layout as PowerLayout
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING
from eerl_controller.bayes.times import Layout
from eerl_controller.clocks import Pair

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Index = tuple[int, int, int]

#: Standard deviations of a one-sided 99 %.
SURE = 2.326
#: Part of a governor block that is evidence: the first of three updates is not, because clocks have just changed.
BLOCK_USE = 2.0 / 3.0
#: Blocks that a hope is given to show what there is to it.
HOPE_BLOCKS = 3.0
#: A locked clock never costs more than this beside what its depth explains (paper, appendix C: 0 to 2 %).
WORST_OFFSET = 0.02


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be lost: ``limit`` of all the time, ``past_s`` seconds of which are over and ``left`` updates to come.

    ``ends`` are the updates after which it must be kept: the same when that is known, sooner too when it is not.
    """

    limit: float
    past_s: float
    left: float
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and what is expected of it, by update, as fractions of the governor's energy and time.

    ``governed`` is the governor's best share beside it, ``worth`` what the two then save by update together.
    """

    pair: Pair
    saving: float
    loss: float
    loss_sd: float
    governed: float
    worth: float

    def __str__(self) -> str:
        return (
            f"{100 * self.saving:.1f} % saving and {100 * self.loss:.2f} % loss expected, "
            f"known to {100 * self.loss_sd:.2f} points"
        )


@dataclass(frozen=True, slots=True)
class Hope:
    """A clock response kinder than believed by so many standard deviations, beyond what one held clock tells of it.

    ``held`` is that clock's place on the axis: what the others have in common with it, holding it will show.
    """

    axis: int
    deviations: float
    held: int


class Table:
    """Every setting at once: idle off and on, generation's clocks, training's clocks."""

    def __init__(
        self,
        menu: Menu,
        learner: Learner,
        hopeful: Hope | None = None,
    ) -> None:
        times, powers, outlook = learner.times, learner.powers, learner.outlook
        self._menu = menu
        self._mean, self._covariance = times.bank.pooled()
        scales = times.noise
        self._noise_s2 = sum(
            (value * scale) ** 2 for value, scale in zip(outlook.seconds, scales, strict=True)
        )
        generation, training = menu.axes
        mean, power = self._mean, powers.mean
        idles = np.array([0.0] if menu.idle_mhz is None else [0.0, 1.0])
        seconds, joules = outlook.seconds, outlook.joules
        validation_s, _ = outlook.visits_s
        rows = (generation.time_rows, training.time_rows)
        slow, kept = [], np.ones(1)
        for number, (axis, own) in enumerate(zip(menu.axes, rows, strict=True)):
            log = own @ mean
            if hopeful is not None and number == hopeful.axis:
                shift, kept = self._hope(own, scales[number], hopeful)
                log = log - shift
            # Physics: slower when lower, and never slower than the clock itself.
            slow.append(np.clip(np.maximum.accumulate(log), 0.0, axis.depths + WORST_OFFSET))
        rest_mean = mean[Layout.rest]
        rest = (
            rest_mean[2] * menu.switches
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
        drop_g, drop_t = generation.power_drop(power), training.power_drop(power)
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
            self._gradients[hopeful.axis] = kept[:, None] * self._gradients[hopeful.axis]
        self._switching_s = seconds[REST] * menu.switches
        worst = [np.expm1(axis.depths + WORST_OFFSET * axis.locked) for axis in menu.axes]
        self.worst_s = (
            seconds[REST] * np.expm1(np.abs(rest))
            + ((seconds[GENERATION] + validation_s) * worst[0])[None, :, None]
            + (seconds[TRAINING] * worst[1])[None, None, :]
        )
        self._variances()

    def _hope(self, rows: Array, scale: float, hope: Hope) -> tuple[Array, Array]:
        """How much kinder each clock may turn out than the held one tells, and what part of the doubt stays."""
        carried = rows @ self._covariance
        variance = np.maximum(np.einsum("ij,ij->i", carried, rows), 0.0)
        if variance[hope.held] > 0.0:
            variance -= (carried @ rows[hope.held]) ** 2 / variance[hope.held]
            variance = np.maximum(variance, 0.0)
        # A trial's noise is in its way: what it may change is less than all that is not known.
        noise = scale**2 / HOPE_BLOCKS
        return hope.deviations * variance / np.sqrt(variance + noise), np.sqrt(noise / (variance + noise))

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
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def plans(
        self, allowance: Allowance, shares: Sequence[float], *, least: float = 0.0, only: Index | None = None
    ) -> tuple[Array, NDArray[np.int64]]:
        """What each setting saves by update over the rest of the run, and the governor's best share beside it.

        The rest of the run is planned as an alternation: the governor has a share of the updates, the setting has
        the others. A larger share saves less, but tells the loss better and leaves more of the allowance to each
        lowered update. What the alternation will have told at its end is one more measurement of the setting's loss.
        Settings that no share makes allowed, or that cannot save more than ``least``, are at minus infinity; the
        second array indexes ``shares``.
        """
        best, which = np.full(self.saving.size, -math.inf), np.zeros(self.saving.size, dtype=np.int64)
        if only is None:
            at = np.flatnonzero(self.saving.ravel() * (1.0 - shares[0]) > least)
        else:
            at = np.array([np.ravel_multi_index(only, self.saving.shape)])
        saving, lost_s = self.saving.ravel()[at], self.lost_s.ravel()[at]
        with_past, variance = self._with_past.ravel()[at], np.maximum(self._variance.ravel()[at], 0.0)
        limit = allowance.limit
        for number, share in enumerate(shares):
            allowed = np.ones(len(at), dtype=bool)
            for left in allowance.ends:
                held = left * (1.0 - share)
                error = self._noise_s2 * (1.0 / max(left * share * BLOCK_USE, 1e-9) + 1.0 / max(held, 1e-9))
                whole_s = limit * (allowance.past_s + left * self.total_s)
                over = self._past[0] - whole_s + (held * (1.0 - limit)) * lost_s
                shared = with_past + held * variance
                rest = self._past[1] + held * (with_past + shared) - shared**2 / (variance + error)
                allowed &= (over <= 0.0) & (SURE**2 * rest <= over**2)
            value = np.where(allowed, (1.0 - share) * saving, -math.inf)
            better = value > best[at]
            which[at[better]] = number
            best[at] = np.maximum(best[at], value)
        return best.reshape(self.saving.shape), which.reshape(self.saving.shape)

    def allowed(self, allowance: Allowance, updates: float, reach: tuple[float, float]) -> Flags:
        """Which settings may run now, for so many updates, before they can be left for the governor."""
        lost, sd_lost = self._past[0], math.sqrt(max(self._past[1], 0.0))
        limit = allowance.limit
        committed = min(allowance.left, updates)
        to_come = max(min(allowance.ends), committed)
        # Seconds that the rest of the run takes count for the allowance, its own losses included.
        budget_s = limit * (allowance.past_s + to_come * self.total_s)
        surely = lost + SURE * sd_lost + committed * self.worst_s
        likely = lost + committed * self.lost_s + SURE * self._sd(committed)
        safe = np.minimum(surely, likely) <= budget_s
        depth = (self._menu.axes[0].depths <= reach[0] + 1e-9)[:, None] & (
            self._menu.axes[1].depths <= reach[1] + 1e-9
        )[None, :]
        found = safe & depth[None, :, :]
        found[0, 0, 0] = True
        return np.asarray(found)

    def index(self, pair: Pair) -> Index | None:
        """Where a pair stands; None when it is not among the settings."""
        axes = self._menu.axes
        if pair.generation_mhz not in axes[0].mhz or pair.training_mhz not in axes[1].mhz:
            return None
        idle = 0 if pair.idle_mhz is None else 1
        if idle >= self.saving.shape[0]:
            return None
        return idle, axes[0].mhz.index(pair.generation_mhz), axes[1].mhz.index(pair.training_mhz)

    def choice(self, at: Index, governed: float, worth: float) -> Choice:
        """The setting with this index."""
        axes = self._menu.axes
        return Choice(
            pair=Pair(axes[0].mhz[at[1]], axes[1].mhz[at[2]], self._menu.idle_mhz if at[0] == 1 else None),
            saving=float(self.saving[at]),
            loss=float(self.lost_s[at] / self.total_s),
            loss_sd=math.sqrt(max(float(self._variance[at]), 0.0)) / self.total_s,
            governed=governed,
            worth=worth,
        )
