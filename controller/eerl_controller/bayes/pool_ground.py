"""What a decision believes of every clock of two overlapping pools by itself, whatever it hopes for.

A decision looks at its settings several times: as they are believed to be, and as they would be if one response were
kinder (``pool_table``). All of that stands on the same ground.
"""

from __future__ import annotations

import numpy as np

from eerl_controller.bayes.outcomes import Array, Hope, hoped
from eerl_controller.bayes.pace_priors import Layout
from eerl_controller.bayes.pool_learner import PoolLearner
from eerl_controller.bayes.pool_menu import PoolMenu
from eerl_controller.bayes.sides import REST
from eerl_controller.bayes.time_states import WORST_OFFSET


class PoolGround:
    """Belief by clock; by setting where no pace has a part in it. Shapes are those of a table's arrays."""

    def __init__(self, menu: PoolMenu, learner: PoolLearner) -> None:
        self.menu, self.recent, self.noise = menu, learner.recent, learner.paces.noise
        self.tells_at_once = learner.tells_at_once
        self.mean, self.covariance = learner.paces.pooled
        self.may_follow = learner.paces.may_follow
        knee, governed = self.recent.knee, self.recent.knee.governed
        self.knee, self.rest_s = knee, self.recent.rest_s
        self.validation_s, _ = self.recent.visits_s
        self.governor_s = float(governed.running_s)
        self.governor_critical_s = [float(part) for part in governed.critical_s]
        self.governor_sd = self.recent.model_sd(governed)
        #: Expected log slowdown of either side by clock, as the model of time has it.
        self.logs = [rows @ self.mean for rows in menu.rows]
        #: How much kinder clocks would be by one standard deviation, by axis and held clock.
        self._hoped: dict[tuple[int, int], tuple[Array, Array]] = {}
        #: The most that it can be, by physics.
        self.most = [depths + WORST_OFFSET for depths in menu.depths]
        #: How much generation's log slowdown follows from training's clock.
        self.following: Array = max(float(self.mean[Layout.following]), 0.0) * menu.depths[1][None, :]
        self._rest()
        self._worst()
        self._spread()
        self._watts(learner)

    def kinder(self, hope: Hope) -> tuple[Array, Array]:
        """How much kinder a hope is by clock (a log), and what share of the doubt it leaves."""
        asked = hope.axis, hope.held
        if asked not in self._hoped:
            unit = Hope(hope.axis, 1.0, hope.held)
            self._hoped[asked] = hoped(
                self.menu.rows[hope.axis], self.covariance, self.noise[hope.axis], unit
            )
        kinder, kept = self._hoped[asked]
        return hope.deviations * kinder, kept

    def _rest(self) -> None:
        """What refit, and all that no phase names, takes."""
        menu, mean, covariance = self.menu, self.mean[Layout.rest], self.covariance
        generation, training = menu.below[0][None, :, None], menu.below[1][None, None, :]
        idles = menu.idles[:, None, None]
        log = mean[2] * idles + mean[0] * generation + mean[1] * training
        self.rest_taken_s = self.rest_s * np.exp(log)
        self.rest_lost_s = self.rest_s * np.expm1(log)
        self.rest_worst_s = self.rest_s * np.expm1(np.abs(log))
        at, past = Layout.rest.start, covariance[Layout.lost]
        parts = (generation, training, idles)
        self.rest_variance = sum(
            (self.rest_s * part) ** 2 * covariance[at + i, at + i] for i, part in enumerate(parts)
        )
        self.rest_past = sum(self.rest_s * part * past[at + i] for i, part in enumerate(parts))
        self.rest_noise_s2 = (self.rest_s * self.noise[REST]) ** 2

    def _worst(self) -> None:
        """Seconds lost at the very worst."""
        menu, knee = self.menu, self.knee
        worst = [d + WORST_OFFSET * locked for d, locked in zip(menu.depths, menu.locked, strict=True)]
        together_s = knee.at(worst[0][:, None], worst[1][None, :]).longest_s
        if self.may_follow:
            # Nothing that training does goes on beside generation, then.
            alone_s = knee.at(worst[0], 0.0).longest_s[:, None]
            together_s = np.maximum(together_s, alone_s + knee.sides_s[1] * np.expm1(worst[1])[None, :])
        validating_s = self.validation_s * np.expm1(worst[0])[:, None]
        self.worst_s: Array = (together_s - self.governor_s + validating_s)[None] + self.rest_worst_s

    def _spread(self) -> None:
        """How sure each clock's response is, and what it has to do with the rest of the belief."""
        covariance, rows = self.covariance, self.menu.rows
        past = covariance[Layout.lost]
        levels = (Layout.level[0], Layout.level[1])
        carried = [part @ covariance for part in rows]
        own = [np.einsum("ij,ij->i", c, part) for c, part in zip(carried, rows, strict=True)]
        self.own = (own[0][:, None], own[1][None, :])
        self.both: Array = carried[0] @ rows[1].T
        self.own_past = ((rows[0] @ past)[:, None], (rows[1] @ past)[None, :])
        #: By side whose level it is: what generation's clocks, and training's, have in common with it.
        self.with_level = [(carried[0][:, at][:, None], carried[1][:, at][None, :]) for at in levels]
        self.level_past = [past[at] for at in levels]
        self.levels = covariance[np.ix_(levels, levels)]
        at = Layout.following
        self.follow_variance = covariance[at, at]
        self.with_follow = (carried[0][:, at][:, None], carried[1][:, at][None, :])
        self.follow_level = [covariance[at, level] for level in levels]
        self.follow_past = past[at]
        self.past = (float(self.mean[Layout.lost]), float(past[Layout.lost]))

    def _watts(self, learner: PoolLearner) -> None:
        """Power of either pool at work."""
        watts, depths = learner.watts, self.menu.depths
        self.busy_w = (watts.busy_w(0, depths[0])[:, None], watts.busy_w(1, depths[1])[None, :])
        self.other_w = watts.other_w
