"""What is believed of every setting of two overlapping pools at once: its saving, its loss, and how sure that is.

The run's loss is a number of seconds: lost so far plus lost from now on, each linear in what is believed about paces
near the belief, so that mean and variance follow from one covariance in which reference, lock offset, drift and
responses are correlated as they are. Where one pool is not critical, its pace has no part in it.
"""

from __future__ import annotations

import numpy as np

from eerl_controller.bayes.outcomes import BLOCK_UPDATES, Array, Flags, Hope, Index, hoped
from eerl_controller.bayes.pace_priors import Layout
from eerl_controller.bayes.pool_learner import PoolLearner
from eerl_controller.bayes.pool_menu import PoolMenu
from eerl_controller.bayes.sides import REST
from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.settling import is_long

#: A side that decides at least this share of what a change of pace adds to an update decides alone.
ALONE = 0.9
#: A locked clock never costs more than this beside what its depth explains (paper, appendix C: 0 to 2 %).
WORST_OFFSET = 0.02


class PoolTable:
    """Every setting at once: idle off and on, generation's clocks, training's clocks."""

    def __init__(
        self,
        menu: PoolMenu,
        learner: PoolLearner,
        hope: Hope | None = None,
        barred: Flags | None = None,
    ) -> None:
        self._menu, self._learner, self.barred = menu, learner, barred
        self.turn_updates = BLOCK_UPDATES + (0.0 if is_long(learner.recent.total_s) else 1.0)
        recent, knee = learner.recent, learner.recent.knee
        self._mean, self._covariance = learner.paces.pooled
        expected = [
            self._expected(axis, hope if hope is not None and hope.axis == axis else None) for axis in (0, 1)
        ]
        own_g, own_t = expected[0][0][:, None], expected[1][0][None, :]
        following = max(float(self._mean[Layout.following]), 0.0) * menu.depths[1][None, :]
        self._slow = (own_g + following, own_t)
        #: What is left of a side's uncertainty by clock: all of it, but for a hope's.
        self._kept = [expected[0][1][:, None], expected[1][1][None, :]]
        slow_g, slow_t = self._slow
        validation_s, _ = recent.visits_s
        rest_mean = self._mean[Layout.rest]
        self._rest = (
            rest_mean[2] * menu.idles[:, None, None]
            + rest_mean[0] * menu.below[0][None, :, None]
            + rest_mean[1] * menu.below[1][None, None, :]
        )
        self.total_s, self._own_s = recent.total_s, recent.own_s
        governor_s = float(knee.running_s(0.0, 0.0))
        self._running_s = knee.running_s(slow_g, slow_t)
        visiting_s = validation_s * np.expm1(own_g)
        self.lost_s = (self._running_s + visiting_s - governor_s)[None] + recent.rest_s * np.expm1(self._rest)
        self.spread_s2: Array = np.broadcast_to(knee.spread_s2(slow_g, slow_t)[None], self.lost_s.shape)
        self._critical = knee.critical_s(slow_g, slow_t)
        self._governor_critical = [float(part) for part in knee.critical_s(0.0, 0.0)]
        self._validated_s = validation_s * np.exp(own_g)
        worst = [
            depths + WORST_OFFSET * locked for depths, locked in zip(menu.depths, menu.locked, strict=True)
        ]
        together_s = knee.longest_s(worst[0][:, None], worst[1][None, :])
        if learner.paces.may_follow:
            # Nothing that training does goes on beside generation, then.
            alone_s = knee.longest_s(worst[0], 0.0)[:, None]
            together_s = np.maximum(together_s, alone_s + knee.sides_s[1] * np.expm1(worst[1])[None, :])
        self.worst_s = (together_s - governor_s + validation_s * np.expm1(worst[0])[:, None])[
            None
        ] + recent.rest_s * np.expm1(np.abs(self._rest))
        self.saving = self._savings()
        own_sd, governor_sd = recent.model_sd(slow_g, slow_t), recent.model_sd(0.0, 0.0)
        self.model_sd: Array = np.broadcast_to(np.maximum(own_sd, governor_sd)[None], self.saving.shape)
        self.depths = (menu.depths[0], menu.depths[1])
        self._variances()
        self._probes()

    def _expected(self, axis: int, hope: Hope | None) -> tuple[Array, Array]:
        """Expected log slowdown of a side by clock, and what share of its uncertainty is left.

        Physics: slower when lower, never slower than the clock itself.
        """
        rows = self._menu.rows[axis]
        log, kept = rows @ self._mean, np.ones(len(rows))
        if hope is not None:
            kinder, kept = hoped(rows, self._covariance, self._learner.paces.noise[axis], hope)
            log = log - kinder
        most = self._menu.depths[axis] + WORST_OFFSET
        return np.clip(np.maximum.accumulate(log), 0.0, most), kept

    def _savings(self) -> Array:
        menu, watts, recent = self._menu, self._learner.watts, self._learner.recent
        rest_s = recent.rest_s * np.exp(self._rest)
        energy = np.zeros_like(self.lost_s)
        for pool in (0, 1):
            shape = (slice(None), None) if pool == 0 else (None, slice(None))
            busy_s = recent.knee.sides_s[pool] * np.exp(self._slow[pool])
            busy_w = watts.busy_w(pool, menu.depths[pool])[shape]
            waits_s = np.maximum(self._running_s - busy_s, 0.0)[None]
            other_s = waits_s + rest_s
            idling = menu.idles[:, None, None] * waits_s / np.maximum(other_s, 1e-9)
            below = menu.below[pool][shape][None]
            energy = energy + (busy_w * busy_s)[None] + watts.other_w(pool, below, idling) * other_s
        return np.asarray(1.0 - energy / energy[0, 0, 0])

    def _variances(self) -> None:
        """Variance of each setting's lost seconds by update, and its covariance with what is lost so far."""
        covariance, menu, rows = self._covariance, self._menu, self._menu.rows
        past = covariance[Layout.lost]
        weights = [
            (self._critical[0] + self._validated_s) * self._kept[0],
            self._critical[1] * self._kept[1],
        ]
        self._weights = weights
        changed = [self._critical[axis] - self._governor_critical[axis] for axis in (0, 1)]
        self._changed = changed
        levels = [Layout.level[0], Layout.level[1]]
        carried = [part @ covariance for part in rows]
        own = [np.einsum("ij,ij->i", c, part) for c, part in zip(carried, rows, strict=True)]
        both = carried[0] @ rows[1].T
        variance = (
            weights[0] ** 2 * own[0][:, None]
            + weights[1] ** 2 * own[1][None, :]
            + 2.0 * weights[0] * weights[1] * both
        )
        with_past = weights[0] * (rows[0] @ past)[:, None] + weights[1] * (rows[1] @ past)[None, :]
        follows = self._critical[0] * menu.depths[1][None, :]
        unknown, at = follows**2 * covariance[Layout.following, Layout.following], Layout.following
        variance = variance + unknown
        for axis, by_clock in enumerate((carried[0][:, at][:, None], carried[1][:, at][None, :])):
            variance = variance + 2.0 * follows * weights[axis] * by_clock
            variance = variance + 2.0 * follows * changed[axis] * covariance[at, levels[axis]]
        with_past = with_past + follows * past[at]
        #: Whether generation's own clock is what is least known of a setting's cost, not what follows training.
        self._clear = unknown <= weights[0] ** 2 * own[0][:, None]
        for axis in (0, 1):
            with_past = with_past + changed[axis] * past[levels[axis]]
            variance = variance + 2.0 * changed[axis] * (
                weights[0] * carried[0][:, levels[axis]][:, None]
                + weights[1] * carried[1][:, levels[axis]][None, :]
            )
            for other in (0, 1):
                variance = variance + changed[axis] * changed[other] * covariance[levels[axis], levels[other]]
        rest_s, at = self._learner.recent.rest_s, Layout.rest.start
        parts = (
            menu.below[0][None, :, None],
            menu.below[1][None, None, :],
            menu.idles[:, None, None],
        )
        rest_variance = sum((rest_s * part) ** 2 * covariance[at + i, at + i] for i, part in enumerate(parts))
        rest_past = sum(rest_s * part * past[at + i] for i, part in enumerate(parts))
        together = self._learner.recent.knee.variance_s2(*self._slow)
        self.variance = (np.maximum(variance, 0.0) + together)[None] + rest_variance
        # How pools go together is one unknown: what it makes of the latest updates and of the next adds up.
        doubted_s = self._learner.recent.doubted_s
        rest_past = rest_past + doubted_s * np.sqrt(together)[None]
        doubted_s2 = doubted_s**2
        self.with_past = with_past[None] + rest_past
        self.past = (float(self._mean[Layout.lost]), float(past[Layout.lost]) + doubted_s2)
        noise = self._learner.paces.noise
        self.noise_s2 = (
            (weights[0] * noise[0]) ** 2 + (weights[1] * noise[1]) ** 2 + (rest_s * noise[REST]) ** 2
        )[None] + np.zeros_like(self.variance)

    def _probes(self) -> None:
        """How each setting is compared: only the side that decides is the governor's, where one does, and as long as
        that loses no more than the setting.
        """
        whole = np.maximum(self._weights[0] + self._weights[1], 1e-9)
        #: By setting: whether generation, or training, stays lowered while the other is compared.
        self._stays = []
        self.probe_saving, self.probe_lost_s = np.zeros_like(self.saving), np.zeros_like(self.saving)
        for axis in (1, 0):
            side = (slice(None), slice(None), slice(0, 1)) if axis == 1 else (slice(None), slice(0, 1))
            stays = (self._weights[axis] >= ALONE * whole)[None] & (self.lost_s[side] <= self.lost_s)
            # A side that is the governor's already has nothing to be compared.
            stays[side] = False
            if axis == 1:
                stays &= self._clear[None]
            self._stays.append(stays)
            self.probe_saving = np.where(stays, self.saving[side], self.probe_saving)
            self.probe_lost_s = np.where(stays, self.lost_s[side], self.probe_lost_s)

    def pair(self, at: Index) -> Pair:
        """The clocks with this index."""
        return self._menu.pair(at)

    def probe(self, at: Index) -> Pair:
        """The clocks under which these are compared."""
        pair = self._menu.pair(at)
        for axis, stays in zip((1, 0), self._stays, strict=True):
            if stays[at]:
                return pair.with_clock(axis, None)
        return GOVERNOR

    def index(self, pair: Pair) -> Index | None:
        """Where a pair stands; None when it is not among the settings."""
        return self._menu.index(pair)
