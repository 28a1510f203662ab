"""One quantity of a run through time, and what lowered clocks did to it: smoothed in hindsight.

The log of a quantity (seconds or joules of a part of an update) is work + effect of its setting + level + noise:

- *work*: equation 2 of the paper, elasticities with a broad prior;
- *effect*: a number of its own for every setting, the governor's being 0; nothing is supposed about its form;
- *level*: a random walk that governor and lowered updates share: the machine ages, costs per token change;
- *effect walk*: another one that lowered updates alone have: what a clock costs may change as well;
- *noise*: correlated from update to update (AR(1)) and white, the white part weighed down where it is an outlier.

How much of each there is, the run's own residuals tell: a fixed set of suppositions is weighed by restricted
likelihood, and an interval is a mixture over all of them. Precision matrices of walks and AR(1) noise are banded,
so the cost grows with the number of updates only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cho_solve_banded, cholesky_banded

from eerl_controller.hindsight.rows import Array, Rows

#: AR(1) correlation of successive updates, and the share of the noise that has no memory (section 6.3: neighbouring
#: updates are not independent).
NOISES = ((0.0, 1.0), (0.5, 0.2), (0.8, 0.2), (0.8, 0.7), (0.95, 0.1), (0.95, 0.6))
#: The same where what an update takes longer is made up for by the next one.
MADE_UP_FOR = ((-0.4, 0.1), (-0.7, 0.1))
#: Random walk of the level by update, in units of an update's noise: none to lively.
LEVEL_WALKS = (1e-4, 0.02, 0.06, 0.2, 0.6)
#: Random walk of what lowered clocks do, in the same units: seldom any.
EFFECT_WALKS = (1e-5, 0.03, 0.1)
#: Prior standard deviation of a setting's effect (a log), and of an elasticity around an equal share for each.
EFFECT_SD, ELASTICITY_SD = 0.5, 0.3
#: Degrees of freedom of the noise's tails: heavier than a Gaussian's, with a variance that exists.
TAIL_DF = 4.0
#: So many of the best suppositions about noise and level are tried with an effect that changes, too.
BELIEVED = 8
#: A supposition this much less likely than the best one is left out.
NEGLIGIBLE = 0.01
#: Rounds in which outliers are weighed down.
ROUNDS = 4
#: No update's noise is below this (a log): clocks and counters are no better.
LEAST_SD = 1e-4
#: States by update: level, AR(1) noise, effect walk.
STATES = 3
_FIXED = 1e8


Supposition = tuple[tuple[float, float], float, float]


def mean_variance(correlation: float, updates: Array) -> Array:
    """Variance of the mean of so many successive values of AR(1) noise of variance 1."""
    spare = 1.0 - correlation
    ends = 2.0 * correlation * (1.0 - correlation**updates) / (updates * spare**2)
    return np.asarray(((1.0 + correlation) / spare - ends) / updates)


def walking(rows: Rows) -> NDArray[np.bool_]:
    """Where what clocks do may change: under lowered ones."""
    return rows.group >= 0 if rows.lowered is None else rows.lowered


class _Supposed:
    """The rows under one supposition about noise and walks, all variances in units of the noise's."""

    def __init__(self, rows: Rows, seen: NDArray[np.bool_], weight: Array, supposed: Supposition) -> None:
        (correlation, white_share), level_walk, effect_walk = supposed
        n = len(rows.at)
        lowered = walking(rows).astype(float)
        lasting_sd = np.sqrt((1.0 - white_share) * mean_variance(correlation, rows.updates))
        self.loads = np.stack([np.ones(n), lasting_sd, lowered], axis=1)
        white = white_share / (weight * rows.updates)
        weights = np.where(seen, 1.0 / white, 0.0)
        steps = np.maximum(np.diff(rows.at), 1.0)
        band = np.zeros((STATES + 1, STATES * n))
        lasting = abs(correlation) ** steps * np.where(
            (correlation < 0.0) & (np.rint(steps) % 2 == 1), -1.0, 1.0
        )
        decay = np.stack([np.ones(n - 1), lasting, np.ones(n - 1)], axis=1)
        fresh = np.stack(
            [level_walk**2 * steps, np.maximum(1.0 - decay[:, 1] ** 2, 1e-9), effect_walk**2 * steps], axis=1
        )
        first = np.array([_FIXED, 1.0, _FIXED])
        diagonal = np.zeros((n, STATES))
        diagonal[0] = first
        diagonal[1:] += 1.0 / fresh
        diagonal[:-1] += decay**2 / fresh
        band[STATES] = diagonal.ravel()
        band[0, STATES:] = (-decay / fresh).ravel()
        log_prior = float(np.log(first).sum() - np.log(fresh).sum())
        self._inner(band, weights)
        self._factor = cholesky_banded(band, check_finite=False)
        self.weights = weights
        log_inner = 2.0 * float(np.log(self._factor[STATES]).sum())
        self.log_det = float(np.log(white[seen]).sum()) + log_inner - log_prior

    def _inner(self, band: Array, weights: Array) -> None:
        """Add what the readings say of the states of one update, to each other and to themselves."""
        for i in range(STATES):
            for j in range(i, STATES):
                band[STATES - (j - i), j::STATES] += weights * self.loads[:, i] * self.loads[:, j]

    def spread(self, values: Array) -> Array:
        """Readings onto states: loads times weights; one column or more."""
        weighed = self.weights[:, None] * values
        return np.asarray((self.loads[:, :, None] * weighed[:, None, :]).reshape(-1, values.shape[1]))

    def smooth(self, states: Array) -> Array:
        """States from what was spread onto them."""
        return np.asarray(cho_solve_banded((self._factor, False), states, check_finite=False))

    def gather(self, states: Array) -> Array:
        """What the states add to each reading."""
        return np.asarray((self.loads[:, :, None] * states.reshape(len(self.loads), STATES, -1)).sum(axis=1))

    def whiten(self, values: Array) -> Array:
        """The inverse covariance of the readings times these columns."""
        inner = self.gather(self.smooth(self.spread(values)))
        return self.weights[:, None] * (values - inner)


class Series:
    """A fitted quantity: effects of the settings by update, and how sure any sum over them is."""

    def __init__(self, rows: Rows, groups: int, likeness: Array, *, robust: bool = True) -> None:
        self._rows = rows
        self._robust = robust
        self._seen = np.isfinite(rows.log)
        n, features = rows.work.shape
        self.groups = groups
        dummies = np.zeros((n, groups))
        inside = rows.group >= 0
        dummies[np.flatnonzero(inside), rows.group[inside]] = 1.0
        #: Columns: level of the first update, elasticities, effects.
        self._columns = np.concatenate([np.ones((n, 1)), rows.work, dummies], axis=1)
        self._effects = slice(1 + features, 1 + features + groups)
        self._y = np.where(self._seen, rows.log, 0.0)
        self._prior_mean = np.zeros(1 + features + groups)
        prior_sd = np.full(1 + features + groups, EFFECT_SD)
        if features:
            self._prior_mean[1 : 1 + features] = rows.expected
            prior_sd[1 : 1 + features] = ELASTICITY_SD
        prior_sd[0] = 100.0
        self._y = self._y - self._seen * (self._columns @ self._prior_mean)
        self._scale = max(self._first_scale(), LEAST_SD)
        self._precision = np.diag((self._scale / prior_sd) ** 2)
        if groups:
            self._precision[self._effects, self._effects] = self._scale**2 * np.linalg.inv(likeness)
        self._weight = np.ones(n)
        typical = (NOISES[1], LEVEL_WALKS[2], EFFECT_WALKS[0])
        for _ in range(ROUNDS):
            self._weigh(self._solve(typical))
        noises = NOISES if robust else (*NOISES, *MADE_UP_FOR)
        steady = [self._solve((noise, walk, EFFECT_WALKS[0])) for noise, walk in product(noises, LEVEL_WALKS)]
        steady.sort(key=lambda solution: -solution.log_evidence)
        moving = [
            self._solve((*solution.supposed[:2], walk))
            for solution, walk in product(steady[:BELIEVED], EFFECT_WALKS[1:])
        ]
        logs = np.array([solution.log_evidence for solution in [*steady, *moving]])
        raw = np.exp(logs - logs.max())
        kept = [i for i, value in enumerate(raw) if value > NEGLIGIBLE]
        self.solutions = [[*steady, *moving][i] for i in kept]
        self.weights = raw[kept] / raw[kept].sum()
        #: Log effect by update, 0 under the governor.
        self.effect = np.asarray(sum(w * s.effect for w, s in zip(self.weights, self.solutions, strict=True)))
        self.fitted = np.asarray(sum(w * s.fitted for w, s in zip(self.weights, self.solutions, strict=True)))
        self.residual = np.where(self._seen, rows.log - self.fitted, np.nan)
        #: Log of each update over its work and effect: level and noise.
        self.deviation = np.where(
            self._seen,
            self._y - sum(w * s.explained for w, s in zip(self.weights, self.solutions, strict=True)),
            np.nan,
        )
        self.freedom = self.solutions[0].freedom

    def straight(self, likeness: Array) -> Series:
        """The same once more for the quantity itself, over its work, instead of its log.

        In-flight an update that waits for data is made up for by the next one, and with slower training none waits:
        the governor's noise is skewed then, and a mean of logs is not the log of a mean.
        """
        rows, features = self._rows, self._rows.work.shape[1]
        slopes = sum(w * s.slopes for w, s in zip(self.weights, self.solutions, strict=True))
        over_work = np.exp(rows.log - rows.work @ (slopes + self._prior_mean[1 : 1 + features]))
        governor = self._seen & (rows.group < 0)
        over_work /= over_work[governor if governor.any() else self._seen].mean()
        found = Series(
            replace(rows, log=over_work - 1.0, work=rows.work[:, :0], expected=()),
            self.groups,
            likeness,
            robust=False,
        )
        found.effect = np.log1p(np.maximum(found.effect, -0.9))
        found.fitted, found.residual = self.fitted, self.residual
        return found

    def _first_scale(self) -> float:
        """Robust noise from successive updates of the same setting at equal work, roughly."""
        y, group = self._y[self._seen], self._rows.group[self._seen]
        variance = 1.0 / self._rows.updates[self._seen]
        same = group[1:] == group[:-1]
        steps = (np.diff(y) / np.sqrt(variance[1:] + variance[:-1]))[same]
        return float(1.4826 * np.median(np.abs(steps))) if len(steps) else 0.01

    def _weigh(self, solution: Solution) -> None:
        """Weigh updates down that are further off than the noise of the others (Student's t)."""
        off = np.where(self._seen, self._rows.log - solution.fitted, 0.0) * np.sqrt(self._rows.updates)
        spread = (
            float(1.4826 * np.median(np.abs(off[self._seen])))
            if self._robust
            else float(off[self._seen].std())
        )
        squared = (off / max(spread, LEAST_SD)) ** 2
        self._weight = np.minimum((TAIL_DF + 1.0) / (TAIL_DF + squared), 1.0)

    def _solve(self, supposed: Supposition) -> Solution:
        part = _Supposed(self._rows, self._seen, self._weight, supposed)
        seen = self._seen[:, None]
        both = np.concatenate([self._columns * seen, self._y[:, None]], axis=1)
        whitened = part.whiten(both)
        inner = both.T @ whitened
        k = both.shape[1] - 1
        normal = inner[:k, :k] + self._precision
        factor = cho_factor(normal, check_finite=False)
        found = cho_solve(factor, inner[:k, k], check_finite=False)
        squares = float(inner[k, k] - found @ inner[:k, k])
        freedom = max(int(self._seen.sum()) - 1 - self._rows.work.shape[1] - self._used(), 1)
        log_det = part.log_det + 2.0 * float(np.log(np.diag(factor[0])).sum())
        log_evidence = -0.5 * (log_det + freedom * math.log(max(squares, 1e-300)))
        rest = (self._y - self._columns @ found)[:, None] * seen
        states = part.smooth(part.spread(rest))
        walk = states.reshape(-1, STATES)[:, 2]
        inside = self._rows.group >= 0
        walked = np.where(walking(self._rows), walk, 0.0)
        effect = np.where(inside, self._columns[:, self._effects] @ found[self._effects] + walked, 0.0)
        fitted = self._columns @ (found + self._prior_mean) + part.gather(states)[:, 0]
        return Solution(
            part,
            factor,
            squares / freedom,
            freedom,
            log_evidence,
            effect,
            fitted,
            self._columns @ found,
            found[1 : 1 + self._rows.work.shape[1]],
            supposed,
        )

    def _used(self) -> int:
        return len(set(self._rows.group[self._seen & (self._rows.group >= 0)].tolist()))

    def spread(self, gradient: Array) -> tuple[Array, Array]:
        """For ``gradient`` (functionals, updates) of the effects: mean by supposition and variance by supposition."""
        inside = (self._rows.group >= 0).astype(float)
        gradient = gradient * inside
        means, variances = [], []
        for solution in self.solutions:
            states = np.zeros((len(self._rows.at), STATES, len(gradient)))
            states[:, 2, :] = (gradient * walking(self._rows)).T
            smoothed = solution.part.smooth(states.reshape(-1, len(gradient)))
            own = (states.reshape(-1, len(gradient)) * smoothed).sum(axis=0)
            through = np.zeros((self._columns.shape[1], len(gradient)))
            through[self._effects] = (gradient @ self._columns[:, self._effects]).T
            reached = solution.part.gather(smoothed) * solution.part.weights[:, None]
            through -= self._columns.T @ reached
            outer = (through * cho_solve(solution.factor, through, check_finite=False)).sum(axis=0)
            means.append(gradient @ solution.effect)
            variances.append(solution.scale * (own + outer))
        return np.array(means), np.array(variances)


@dataclass(frozen=True, slots=True)
class Solution:
    """The rows explained under one supposition; ``scale`` is the variance of an update's noise."""

    part: _Supposed
    factor: tuple[Array, bool]
    scale: float
    freedom: int
    log_evidence: float
    effect: Array
    fitted: Array
    explained: Array
    slopes: Array
    supposed: Supposition
