"""Fitting a family to the paper's fixed-clock rows: damped least squares with priors, and held-out folds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eerl_twin.conditions import draw
from eerl_twin.family import OWN, SHARED, Configuration, Parameter, world_of
from eerl_twin.oracle import IDLE_MHZ, sweep
from eerl_twin.response import Array
from eerl_twin.world import Noise, World

#: The rows cover updates 5 to 25 (paper, appendix C).
FIRST_UPDATE, LAST_UPDATE = 5, 25
#: Standard error of a row in percentage points, from its spread between equal settings (1800/1800, 1980/1980).
ROW_SD = 0.8
#: Further off than so many standard errors a row pulls no harder: single rows of the tables are accidents.
HUBER = 2.0
ITERATIONS = 14
FOLDS = 10
_SEED = 5


@dataclass(frozen=True, slots=True)
class FixedRow:
    """One comparison with the governor: MHz (None: governor), and changes in percent."""

    configuration: Configuration
    generation_mhz: int | None
    training_mhz: int | None
    throughput_change_pct: float
    energy_saving_pct: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A family's parameters: shared, and of each configuration."""

    shared: Mapping[str, float]
    own: Mapping[Configuration, Mapping[str, float]]

    def world(self, configuration: Configuration) -> World:
        """The fitted world of a configuration; an unseen one has the starting values of its own numbers."""
        own = self.own.get(configuration, {parameter.name: parameter.start for parameter in OWN})
        return world_of(configuration, {**self.shared, **own})


def predicted(world: World, rows: Sequence[FixedRow]) -> Array:
    """Throughput change and energy saving in percent by row, without noise, over the paper's updates.

    Separate pools of the synchronous and drained modes wait at the idle clock; in-flight has none.
    """
    still = replace(world, noise=Noise(level_sd=0.0, phase_sd=0.0, power_sd=0.0, slow_start=()))
    pairs = [
        np.array([math.nan if mhz is None else float(mhz) for mhz in clocks])
        for clocks in zip(*((row.generation_mhz, row.training_mhz) for row in rows), strict=True)
    ]
    conditions = draw(still, LAST_UPDATE, _SEED)
    done = sweep(still, conditions, pairs[0], pairs[1], IDLE_MHZ, first=FIRST_UPDATE - 1)
    return 100.0 * np.stack([done.throughput_change, done.energy_saving], axis=1)


def fit(rows: Sequence[FixedRow]) -> Fit:
    """The parameters of one family that explain its rows best, with the priors of ``SHARED`` and ``OWN``."""
    by_configuration: dict[Configuration, list[FixedRow]] = {}
    for row in rows:
        by_configuration.setdefault(row.configuration, []).append(row)
    blocks = list(by_configuration.items())
    start = [parameter.free(parameter.start) for parameter in (*SHARED, *OWN * len(blocks))]
    widths = np.array([parameter.width for parameter in (*SHARED, *OWN * len(blocks))])
    point, origin = np.array(start), np.array(start)
    cost, residuals, slopes = _linearise(point, blocks)
    cost += float((((point - origin) / widths) ** 2).sum())
    damping = 0.1
    for _ in range(ITERATIONS):
        weights = 1.0 / np.maximum(1.0, np.abs(residuals) / HUBER)
        curvature = slopes.T @ (slopes * weights[:, None]) + np.diag(widths**-2)
        downhill = slopes.T @ (weights * residuals) + (point - origin) / widths**2
        improved = False
        for _ in range(6):
            moved = point - np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
            new_cost = _cost(_residuals(moved, blocks)) + float((((moved - origin) / widths) ** 2).sum())
            if new_cost < cost:
                improved = cost - new_cost > 1e-4 * cost
                point, damping = moved, damping / 4.0
                break
            damping *= 4.0
        if not improved:
            break
        _, residuals, slopes = _linearise(point, blocks)
        cost = new_cost
    shared = _named(SHARED, point[: len(SHARED)])
    own = {
        configuration: _named(OWN, _own_part(point, index)) for index, (configuration, _) in enumerate(blocks)
    }
    return Fit(shared, own)


def _named(parameters: Sequence[Parameter], free: Array) -> dict[str, float]:
    """Values by name, rounded: the frozen numbers are the ones that were judged."""
    return {
        parameter.name: round(parameter.value(float(at)), 6)
        for parameter, at in zip(parameters, free, strict=True)
    }


def _own_part(point: Array, index: int) -> Array:
    at = len(SHARED) + index * len(OWN)
    return point[at : at + len(OWN)]


def _block_residuals(free: Array, configuration: Configuration, rows: Sequence[FixedRow]) -> Array:
    """Residuals of one configuration in standard errors; ``free`` is its shared and own coordinates."""
    values = {
        parameter.name: parameter.value(float(at))
        for parameter, at in zip((*SHARED, *OWN), free, strict=True)
    }
    seen = np.array([[row.throughput_change_pct, row.energy_saving_pct] for row in rows])
    off = (predicted(world_of(configuration, values), rows) - seen) / ROW_SD
    return np.asarray(off.ravel(), dtype=np.float64)


def _residuals(point: Array, blocks: Sequence[tuple[Configuration, list[FixedRow]]]) -> Array:
    shared = point[: len(SHARED)]
    return np.concatenate(
        [
            _block_residuals(np.concatenate([shared, _own_part(point, index)]), configuration, rows)
            for index, (configuration, rows) in enumerate(blocks)
        ]
    )


def _cost(residuals: Array) -> float:
    """Huber's loss."""
    size = np.abs(residuals)
    return float(np.where(size <= HUBER, size**2, 2.0 * HUBER * size - HUBER**2).sum())


def _linearise(
    point: Array, blocks: Sequence[tuple[Configuration, list[FixedRow]]]
) -> tuple[float, Array, Array]:
    """Cost, residuals and their slopes by forward differences, block by block."""
    step = 1e-4
    residuals, rows_of_slopes = [], []
    for index, (configuration, rows) in enumerate(blocks):
        free = np.concatenate([point[: len(SHARED)], _own_part(point, index)])
        here = _block_residuals(free, configuration, rows)
        slopes = np.zeros((len(here), len(point)))
        for k in range(len(free)):
            moved = free.copy()
            moved[k] += step
            at = k if k < len(SHARED) else len(SHARED) + index * len(OWN) + k - len(SHARED)
            slopes[:, at] = (_block_residuals(moved, configuration, rows) - here) / step
        residuals.append(here)
        rows_of_slopes.append(slopes)
    together = np.concatenate(residuals)
    return _cost(together), together, np.concatenate(rows_of_slopes)


def held_out(rows: Sequence[FixedRow], fold: int) -> list[tuple[FixedRow, float, float]]:
    """The rows of one of the 10 folds, with throughput and saving in percent as a fit without them predicts.

    Every fold's fit starts anew. Folds are drawn once, by a fixed seed, over all rows of the family.
    """
    order = np.random.default_rng(_SEED).permutation(len(rows))
    left_out = set(order[fold::FOLDS].tolist())
    fitted = fit([row for index, row in enumerate(rows) if index not in left_out])
    return [check(fitted, rows[index]) for index in sorted(left_out)]


def check(fitted: Fit, row: FixedRow) -> tuple[FixedRow, float, float]:
    """A row with its throughput change and saving in percent as the fit predicts them."""
    found = predicted(fitted.world(row.configuration), [row])[0]
    return row, float(found[0]), float(found[1])
