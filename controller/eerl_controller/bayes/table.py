"""What is believed of every setting at once: what an update saves and loses under it, and how sure that is.

Seconds lost are linear in what is believed about the clocks, so that their mean and variance follow from one
covariance in which reference, lock offset, drift and responses are correlated as they are.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from eerl_controller.bayes.comparing import compare
from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Menu
from eerl_controller.bayes.outcomes import BLOCK_UPDATES, Array, Hope, Index, hoped
from eerl_controller.bayes.powers import Layout as PowerLayout
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING
from eerl_controller.bayes.time_prior import Layout
from eerl_controller.bayes.time_states import WORST_OFFSET
from eerl_controller.clocks import GOVERNOR, Pair


class Table:
    """Every setting at once: idle off and on, generation's clocks, training's clocks."""

    def __init__(self, menu: Menu, learner: Learner, hopeful: Hope | None = None) -> None:
        times, powers, outlook = learner.times, learner.powers, learner.outlook
        self.menu = menu
        self.turn_updates = BLOCK_UPDATES + (0.0 if learner.tells_at_once else 1.0)
        self._mean, self._covariance = times.bank.pooled()
        scales = times.noise
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
                shift, kept = hoped(own, self._covariance, scales[number], hopeful)
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
        a, b, c = (value * scale for value, scale in zip(seconds, scales, strict=True))
        self._comparison = compare(self.saving, self.lost_s, (a, b, c), times.common)
        self.noise_s2: Array = self._comparison.noise_s2
        # A turn is there and back: two changes of clocks.
        changing_s = 2.0 * times.change_s(seconds) / self.turn_updates
        self.probe_saving, self.probe_lost_s = (
            self._comparison.saving,
            self._comparison.lost_s + changing_s,
        )
        #: A sum of phases is known to be one.
        self.model_sd = self.spread_s2 = np.zeros_like(self.saving)
        self.depths = (generation.depths, training.depths)
        self.barred = None
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

    @property
    def past(self) -> tuple[float, float]:
        """Seconds that the run has lost so far, their mean and variance."""
        return float(self._mean[Layout.lost]), float(self._covariance[Layout.lost, Layout.lost])

    @cached_property
    def variance(self) -> Array:
        """Variance of the seconds that an update loses."""
        covariance, switching, at = self._covariance, self._switching_s, Layout.rest.start + 2
        g, t = self._gradients
        carried = [rows @ covariance for rows in (g, t)]
        own = [np.einsum("ij,ij->i", c, rows) for c, rows in zip(carried, (g, t), strict=True)]
        return np.asarray(
            own[0][None, :, None]
            + own[1][None, None, :]
            + 2.0 * (carried[0] @ t.T)[None, :, :]
            + switching * (switching * covariance[at, at])
            + 2.0 * switching * (carried[0][:, at][None, :, None] + carried[1][:, at][None, None, :])
        )

    @cached_property
    def with_past(self) -> Array:
        """Covariance of the seconds that an update loses with those that the run has lost so far."""
        past, at = self._covariance[Layout.lost], Layout.rest.start + 2
        g, t = self._gradients
        return np.asarray(
            (g @ past)[None, :, None] + (t @ past)[None, None, :] + self._switching_s * past[at]
        )

    def pair(self, at: Index) -> Pair:
        """The clocks with this index."""
        axes = self.menu.axes
        return Pair(axes[0].mhz[at[1]], axes[1].mhz[at[2]], self.menu.idle_mhz if at[0] == 1 else None)

    def probe(self, at: Index) -> Pair:
        """The clocks under which these are compared: one phase's where that tells more, the less known one's."""
        if not self._comparison.apart[at]:
            return GOVERNOR
        told = []
        for axis, noise_s2 in zip((0, 1), self._comparison.alone_s2, strict=True):
            rows = self._gradients[axis][at[axis + 1]]
            doubt = float(rows @ self._covariance @ rows)
            told.append(doubt**2 / (doubt + noise_s2))
        return self.pair(at).with_clock(0 if told[0] >= told[1] else 1, None)

    def index(self, pair: Pair) -> Index | None:
        """Where a pair stands; None when it is not among the settings."""
        axes = self.menu.axes
        if pair.generation_mhz not in axes[0].mhz or pair.training_mhz not in axes[1].mhz:
            return None
        idle = 0 if pair.idle_mhz is None else 1
        if idle >= self.saving.shape[0]:
            return None
        return idle, axes[0].mhz.index(pair.generation_mhz), axes[1].mhz.index(pair.training_mhz)
