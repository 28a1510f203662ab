"""What is believed of every setting of two overlapping pools at once: its saving, its loss, and how sure that is.

The run's loss is a number of seconds: lost so far plus lost from now on, each linear in what is believed about paces
near the belief, so that mean and variance follow from one covariance in which reference, lock offset, drift and
responses are correlated as they are. Where one pool is not critical, its pace has no part in it.
"""

from __future__ import annotations

import numpy as np

from eerl_controller.bayes.outcomes import BLOCK_UPDATES, Array, Flags, Hope, Index
from eerl_controller.bayes.pool_ground import PoolGround
from eerl_controller.clocks import GOVERNOR, Pair

#: A side that decides at least this share of what a change of pace adds to an update decides alone.
ALONE = 0.9


class PoolTable:
    """Every setting at once: idle off and on, generation's clocks, training's clocks."""

    def __init__(self, ground: PoolGround, hope: Hope | None = None, barred: Flags | None = None) -> None:
        self._ground, self._menu, self.barred = ground, ground.menu, barred
        expected = [
            self._expected(axis, hope if hope is not None and hope.axis == axis else None) for axis in (0, 1)
        ]
        own_g, own_t = expected[0][0][:, None], expected[1][0][None, :]
        #: What is left of a side's uncertainty by clock: all of it, but for a hope's.
        self._kept = [expected[0][1][:, None], expected[1][1][None, :]]
        self._going = ground.knee.at(own_g + ground.following, own_t)
        self.total_s = ground.recent.total_s
        self.turn_updates = BLOCK_UPDATES + (0.0 if ground.tells_at_once else 1.0)
        visiting_s = ground.validation_s * np.expm1(own_g) - ground.governor_s
        self.lost_s = (self._going.running_s + visiting_s)[None] + ground.rest_lost_s
        shape = self.lost_s.shape
        self.spread_s2: Array = np.broadcast_to(self._going.spread_s2[None], shape)
        self._validated_s = ground.validation_s * np.exp(own_g)
        self.worst_s = ground.worst_s
        self.saving = self._savings()
        own_sd = ground.recent.model_sd(self._going)
        self.model_sd: Array = np.broadcast_to(np.maximum(own_sd, ground.governor_sd)[None], shape)
        self.depths = (self._menu.depths[0], self._menu.depths[1])
        self._variances()
        self._probes()

    def _expected(self, axis: int, hope: Hope | None) -> tuple[Array, Array]:
        """Expected log slowdown of a side by clock, and what share of its uncertainty is left.

        Physics: slower when lower, never slower than the clock itself.
        """
        ground = self._ground
        log, kept = ground.logs[axis], np.ones(len(ground.logs[axis]))
        if hope is not None:
            kinder, kept = ground.kinder(hope)
            log = log - kinder
        return np.clip(np.maximum.accumulate(log), 0.0, ground.most[axis]), kept

    def _savings(self) -> Array:
        menu, ground = self._menu, self._ground
        energy = np.zeros_like(self.lost_s)
        for pool in (0, 1):
            shape = (slice(None), None) if pool == 0 else (None, slice(None))
            busy_s = self._going.sides_s[pool]
            waits_s = np.maximum(self._going.running_s - busy_s, 0.0)[None]
            other_s = waits_s + ground.rest_taken_s
            # Without an idle clock, what a waiting pool draws is a matter of its clock alone.
            idling: Array | float = 0.0
            if menu.idle_mhz is not None:
                idling = menu.idles[:, None, None] * waits_s / np.maximum(other_s, 1e-9)
            below = menu.below[pool][shape][None]
            energy = (
                energy + (ground.busy_w[pool] * busy_s)[None] + ground.other_w(pool, below, idling) * other_s
            )
        return np.asarray(1.0 - energy / energy[0, 0, 0])

    def _variances(self) -> None:
        """Variance of each setting's lost seconds by update, and its covariance with what is lost so far."""
        ground, critical = self._ground, self._going.critical_s
        # Derivatives of the lost seconds: by the log slowdown of either side, and by its level.
        generation = (critical[0] + self._validated_s) * self._kept[0]
        training = critical[1] * self._kept[1]
        levels = [critical[axis] - ground.governor_critical_s[axis] for axis in (0, 1)]
        self._weights = (generation, training)
        with_past = generation * ground.own_past[0] + training * ground.own_past[1]
        with_past += levels[0] * ground.level_past[0]
        with_past += levels[1] * ground.level_past[1]
        (first_g, first_t), (second_g, second_t) = ground.with_level
        with_g = training * ground.both + levels[0] * first_g + levels[1] * second_g
        with_t = levels[0] * first_t + levels[1] * second_t
        among = ground.levels
        variance = levels[0] * (levels[0] * among[0, 0] + levels[1] * (2.0 * among[0, 1]))
        variance += levels[1] ** 2 * among[1, 1]
        if ground.may_follow:
            # And by how much of training's depth generation's pace follows.
            follows = critical[0] * self._menu.depths[1][None, :]
            with_past += follows * ground.follow_past
            with_g += follows * ground.with_follow[0]
            with_t += follows * ground.with_follow[1]
            unknown = follows**2 * ground.follow_variance
            of_levels = levels[0] * ground.follow_level[0] + levels[1] * ground.follow_level[1]
            variance += unknown + 2.0 * follows * of_levels
            #: Whether generation's own clock is what is least known of a setting's cost, not what follows training.
            self._clear: Flags | None = unknown <= generation**2 * ground.own[0]
        else:
            self._clear = None
        variance += generation * (generation * ground.own[0] + 2.0 * with_g)
        variance += training * (training * ground.own[1] + 2.0 * with_t)
        together = self._going.variance_s2
        self.variance = (np.maximum(variance, 0.0) + together)[None] + ground.rest_variance
        # How pools go together is one unknown: what it makes of the latest updates and of the next adds up.
        doubted_s = ground.recent.doubted_s
        self.with_past = with_past[None] + (ground.rest_past + doubted_s * np.sqrt(together)[None])
        self.past = (ground.past[0], ground.past[1] + doubted_s**2)
        noise = ground.noise
        noise_s2 = (generation * noise[0]) ** 2 + (training * noise[1]) ** 2 + ground.rest_noise_s2
        self.noise_s2: Array = np.broadcast_to(noise_s2[None], self.variance.shape)

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
            if axis == 1 and self._clear is not None:
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
