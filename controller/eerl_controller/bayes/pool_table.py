"""What is believed of every setting of two overlapping pools at once: its saving, its loss, and how sure that is.

The run's loss is a number of seconds: lost so far plus lost from now on, each linear in what is believed about paces
near the belief, so that mean and variance follow from one covariance in which reference, lock offset, drift and
responses are correlated as they are. Where one pool is not critical, its pace has no part in it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.pace_priors import Layout
from eerl_controller.bayes.pool_learner import PoolLearner
from eerl_controller.bayes.pool_menu import SURE, Allowance, Choice, Flags, Hope, Index, PoolMenu
from eerl_controller.bayes.sides import REST

Array = NDArray[np.float64]

#: A governor block so often is expected for the rest of the run, when it is judged what will be known at its end.
UPDATES_PER_CONTRAST = 30.0
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
        self._menu, self._learner, self._barred = menu, learner, barred
        recent, knee = learner.recent, learner.recent.knee
        self._mean, self._covariance = learner.paces.pooled
        expected = [
            self._expected(axis, hope if hope is not None and hope.axis == axis else None) for axis in (0, 1)
        ]
        self._slow = [slow for slow, _ in expected]
        #: What is left of a side's uncertainty by clock: all of it, but for a hope's.
        self._kept = [expected[0][1][:, None], expected[1][1][None, :]]
        slow_g, slow_t = self._slow[0][:, None], self._slow[1][None, :]
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
        visiting_s = validation_s * np.expm1(slow_g)
        self.lost_s = (self._running_s + visiting_s - governor_s)[None] + recent.rest_s * np.expm1(self._rest)
        self._critical = knee.critical_s(slow_g, slow_t)
        self._governor_critical = [float(part) for part in knee.critical_s(0.0, 0.0)]
        self._validated_s = validation_s * np.exp(slow_g)
        worst = [
            depths + WORST_OFFSET * locked for depths, locked in zip(menu.depths, menu.locked, strict=True)
        ]
        self.worst_s = (
            knee.longest_s(worst[0][:, None], worst[1][None, :])
            - governor_s
            + validation_s * np.expm1(worst[0])[:, None]
        )[None] + recent.rest_s * np.expm1(np.abs(self._rest))
        self.saving = self._savings()
        own_sd, governor_sd = recent.model_sd(slow_g, slow_t), recent.model_sd(0.0, 0.0)
        self._model_sd = np.maximum(own_sd, governor_sd)[None]
        self._variances()

    def _expected(self, axis: int, hope: Hope | None) -> tuple[Array, Array]:
        """Expected log slowdown of a side by clock, and what share of its uncertainty is left.

        Physics: slower when lower, never slower than the clock itself.
        """
        rows, depths = self._menu.rows[axis], self._menu.depths[axis]
        log, kept = rows @ self._mean, np.ones(len(rows))
        if hope is not None:
            # A trial's noise is in its way: what it may change is less than all that is not known.
            at = int(np.searchsorted(depths, hope.beyond + 1e-9)) - 1
            beyond = rows - rows[at]
            variance = np.maximum(np.einsum("ij,ij->i", beyond @ self._covariance, beyond), 0.0)
            variance[:at] = 0.0
            noise = self._learner.paces.mean_variance(axis, hope.readings)
            log = log - hope.deviations * variance / np.sqrt(variance + noise)
            kept = np.sqrt(noise / (variance + noise))
        most = self._menu.depths[axis] + WORST_OFFSET
        return np.clip(np.maximum.accumulate(log), 0.0, most), kept

    def _savings(self) -> Array:
        menu, watts, recent = self._menu, self._learner.watts, self._learner.recent
        rest_s = recent.rest_s * np.exp(self._rest)
        energy = np.zeros_like(self.lost_s)
        for pool in (0, 1):
            shape = (slice(None), None) if pool == 0 else (None, slice(None))
            busy_s = (recent.knee.sides_s[pool] * np.exp(self._slow[pool]))[shape]
            busy_w = watts.busy_w(pool, menu.depths[pool])[shape]
            waits_s = np.maximum(self._running_s - busy_s, 0.0)[None]
            other_s = waits_s + rest_s
            idling = menu.idles[:, None, None] * waits_s / np.maximum(other_s, 1e-9)
            below = menu.below[pool][shape][None]
            energy = energy + (busy_w * busy_s)[None] + watts.other_w(pool, below, idling) * other_s
        return np.asarray(1.0 - energy / energy[0, 0, 0])

    def _variances(self) -> None:
        """Variance of each setting's lost seconds by update, and its covariance with what is lost so far."""
        covariance, rows = self._covariance, self._menu.rows
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
        for axis in (0, 1):
            with_past = with_past + changed[axis] * past[levels[axis]]
            variance = variance + 2.0 * changed[axis] * (
                weights[0] * carried[0][:, levels[axis]][:, None]
                + weights[1] * carried[1][:, levels[axis]][None, :]
            )
            for other in (0, 1):
                variance = variance + changed[axis] * changed[other] * covariance[levels[axis], levels[other]]
        rest_s, menu, at = self._learner.recent.rest_s, self._menu, Layout.rest.start
        parts = (
            menu.below[0][None, :, None],
            menu.below[1][None, None, :],
            menu.idles[:, None, None],
        )
        rest_variance = sum((rest_s * part) ** 2 * covariance[at + i, at + i] for i, part in enumerate(parts))
        rest_past = sum(rest_s * part * past[at + i] for i, part in enumerate(parts))
        together = self._learner.recent.knee.variance_s2(self._slow[0][:, None], self._slow[1][None, :])
        self._variance = (np.maximum(variance, 0.0) + together)[None] + rest_variance
        # How pools go together is one unknown: what it makes of the latest updates and of the next adds up.
        doubted_s = self._learner.recent.doubted_s
        rest_past = rest_past + doubted_s * np.sqrt(together)[None]
        doubted_s2 = doubted_s**2
        self._with_past = with_past[None] + rest_past
        self._past = (float(self._mean[Layout.lost]), float(past[Layout.lost]) + doubted_s2)
        noise = self._learner.paces.noise
        self._noise_s2 = sum((self._own_s * scale) ** 2 for scale in noise[:1]) + (rest_s * noise[REST]) ** 2

    def _sd(self, updates: Array | float) -> Array:
        """Standard deviation in seconds of what is lost so far and in this many more updates."""
        variance = self._past[1] + updates**2 * self._variance + 2.0 * updates * self._with_past
        model = self._model_sd * (self._past[0] + updates * self.lost_s)
        variance = variance + model**2
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def paced(self, allowance: Allowance) -> Flags:
        """Which settings could be held to the end, where more will be known of them than today."""
        return self._free(self.need(allowance) <= 0.0)

    def need(self, allowance: Allowance) -> Array:
        """What every setting would need beyond the allowance if held to the end, as a share of an update's time.

        A contrast with the governor tells a loss to about the noise of one update; what is believed today and the
        contrasts to come add up like independent measurements.
        """
        lost, left, held = self._past[0], allowance.left, allowance.left - allowance.governed
        whole_s = allowance.limit * (allowance.past_s + left * self.total_s + held * self.lost_s)
        contrasts = left / UPDATES_PER_CONTRAST
        kept = 1.0 / np.sqrt(1.0 + contrasts * np.maximum(self._variance, 0.0) / self._noise_s2)
        over_s = lost + held * self.lost_s + SURE * kept * self._sd(held) - whole_s
        return np.asarray(over_s / (max(held, 1.0) * self.total_s))

    def allowed(self, allowance: Allowance, updates: float, reach: tuple[float, float]) -> Flags:
        """Which settings may run now, for so many updates, before they can be left for the governor."""
        lost, sd_lost = self._past[0], float(self._sd(0.0)[0, 0, 0])
        committed = min(allowance.left, updates)
        to_come = allowance.left if allowance.told else committed
        budget_s = allowance.limit * (allowance.past_s + to_come * self.total_s)
        surely = lost + SURE * sd_lost + committed * self.worst_s
        likely = lost + committed * self.lost_s + SURE * self._sd(committed)
        safe = np.minimum(surely, likely) <= budget_s
        depths = self._menu.depths
        near = (depths[0] <= reach[0] + 1e-9)[:, None] & (depths[1] <= reach[1] + 1e-9)[None, :]
        # What costs nothing even at the very worst needs no approach.
        free = self.worst_s <= 1e-3 * self.total_s
        return self._free(safe & (near[None] | free))

    def _free(self, flags: Flags) -> Flags:
        """These settings without the barred ones; the governor always is one of them."""
        found = np.asarray(flags).copy()
        if self._barred is not None:
            found &= ~self._barred[None]
        found[0, 0, 0] = True
        return found

    def price(self, need: Array, at: Index) -> float:
        """What loss is worth: how much more could be saved for each bit of allowance more; 0 when it does not bind.

        ``need``: what share of an update every setting would need beyond the allowance (see :meth:`need`).
        """
        beyond = need > 0.0
        if self._barred is not None:
            beyond &= ~self._barred[None]
        if not beyond.any():
            return 0.0
        gain = (self.saving[beyond] - self.saving[at]) / (need[beyond] - min(float(need[at]), 0.0))
        return max(float(gain.max()), 0.0)

    def choice(self, at: Index, price: float) -> Choice:
        """The setting with this index."""
        _, g, t = at
        gradient = (
            self._weights[0][g, t] * self._menu.rows[0][g] + self._weights[1][g, t] * self._menu.rows[1][t]
        )
        for axis in (0, 1):
            gradient[Layout.level[axis]] += self._changed[axis][g, t]
        return Choice(
            pair=self._menu.pair(at),
            saving=float(self.saving[at]),
            loss=float(self.lost_s[at] / self.total_s),
            loss_sd=math.sqrt(max(float(self._variance[at]), 0.0)) / self.total_s,
            price=price,
            gradient=gradient / self.total_s,
        )
