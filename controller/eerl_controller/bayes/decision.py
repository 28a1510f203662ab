"""One rule: the plan that saves most over what is left, while the run's loss stays allowed with 99 % probability.

A plan is a setting and the governor's share beside it. Governor updates save nothing, but leave their part of the
allowance to the lowered ones, and tell what these cost. What was not spent of the allowance may be spent later.
Before there is data, physics bounds what a setting can cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.learner import Learner
from eerl_controller.bayes.menu import Menu
from eerl_controller.bayes.table import HOPE_BLOCKS, Allowance, Choice, Flags, Hope, Index, Table
from eerl_controller.clocks import Pair

#: A wrong belief is noticed within a monitoring window (Table 3: 20 updates); until then it must be affordable.
COMMITTED_UPDATES = 20.0
#: When the run may end at any time, a plan must hold after that window too, with all that it will have shown. What is
#: chosen now is only committed until the next decision.
NEXT_DECISION_UPDATES = 5.0
#: The price of loss is what this share of the allowance more would save.
PRICE_STEP = 0.1
#: Shares of the governor among the updates to come that a plan may have.
SHARES = (0.0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)
#: Hopes in standard deviations, with the probability of a Gaussian between halfway points (0.5, 1.5, and beyond).
HOPES = ((2.0, 0.067), (1.0, 0.242))


@dataclass(frozen=True, slots=True)
class Decision:
    """The best plan for the rest of the run, and the present setting's own; None when it may not go on."""

    best: Choice
    here: Choice | None
    #: What another unit of allowed loss, as a fraction of the time to come, would save by update.
    price: float


def choose(table: Table, allowance: Allowance, reach: tuple[float, float], current: Pair) -> Decision:
    """The best setting no deeper than ``reach`` with its governor's share, and what is expected of ``current``."""
    committed = COMMITTED_UPDATES if len(allowance.ends) == 1 else NEXT_DECISION_UPDATES
    allowed = table.allowed(allowance, committed, reach)
    best, price = _best(table, allowance, allowed)
    at = table.index(current)
    if at is None or not allowed[at]:
        return Decision(best, None, price)
    value, which = table.plans(allowance, SHARES, only=at)
    worth = float(value.max())
    here = table.choice(at, SHARES[int(which.max())], worth) if worth > -math.inf else None
    return Decision(best, here, price)


def _dearer(allowance: Allowance) -> Allowance:
    return replace(allowance, limit=allowance.limit * (1.0 + PRICE_STEP))


def _best(table: Table, allowance: Allowance, allowed: Flags) -> tuple[Choice, float]:
    """The best plan, and the price of loss beside it."""
    value, which = table.plans(allowance, SHARES)
    value = np.where(allowed, value, -math.inf)
    at = best_index(value)
    worth = float(value[at])
    if worth <= 0.0:
        at, worth = (0, 0, 0), 0.0
    best = table.choice(at, SHARES[int(which[at])], worth)
    more, _ = table.plans(_dearer(allowance), around(best.governed), least=worth)
    gained = float(np.where(allowed, more, -math.inf).max()) - worth
    spent = max(allowance.limit * PRICE_STEP * (allowance.past_s / table.total_s + allowance.left), 1e-9)
    return best, max(gained, 0.0) * allowance.left / spent


def around(share: float) -> tuple[float, ...]:
    """The governor's shares next to this one."""
    at = SHARES.index(share)
    return SHARES[max(at - 1, 0) : at + 2]


def find_hope(
    menu: Menu,
    learner: Learner,
    table: Table,
    allowance: Allowance,
    *,
    reach: tuple[float, float],
    decided: Decision,
    best: Choice,
    trial: float,
    least: float,
) -> Choice | None:
    """A setting worth ``trial`` updates, because it may turn out better than ``best``; None when there is none.

    One response at a time is supposed to be kinder than believed, by one or two standard deviations. What would then
    be gained over the rest of the run, times the probability that it is so, must be more than what the trials cost
    by today's belief, and more than ``least``, in updates' savings.
    """
    affordable = table.allowed(allowance, trial, reach)
    shares = around(best.governed)
    price = decided.price
    found: tuple[float, Choice] | None = None
    for axis in (0, 1):
        gain, most, where = 0.0, 0.0, None
        held = menu.axes[axis].mhz.index(best.pair.phases[axis])
        for hope, chance in HOPES:
            value, _ = Table(menu, learner, Hope(axis, hope, held)).plans(allowance, shares, least=best.worth)
            at = best_index(value)
            if value[at] <= best.worth:
                # Nothing would be better; nor would it be with less hope.
                break
            better = chance * (float(value[at]) - best.worth)
            gain += better * max(allowance.left - trial, 0.0)
            if better > most:
                most, where = better, nearest(affordable, at)
        if where is None:
            continue
        believed = table.choice(where, best.governed, 0.0)
        lost = max(best.saving - believed.saving - price * (best.loss - believed.loss), 0.0)
        # What the trials show is only known beside governor blocks, in which nothing is saved but no loss made.
        idle = max(best.worth - price * (1.0 - best.governed) * best.loss, 0.0)
        net = gain - trial * (HOPE_BLOCKS * lost + idle)
        if believed.pair != best.pair and net > least and (found is None or net > found[0]):
            found = (net, believed)
    return found[1] if found else None


def best_index(saving: NDArray[np.float64]) -> Index:
    """Where the largest value stands."""
    idle, generation, training = np.unravel_index(int(saving.argmax()), saving.shape)
    return int(idle), int(generation), int(training)


def nearest(affordable: Flags, at: Index) -> Index | None:
    """The deepest affordable setting on the way from the governor to this one."""
    idle, generation, training = at
    while generation or training:
        if affordable[idle, generation, training]:
            return idle, generation, training
        generation, training = max(generation - 1, 0), max(training - 1, 0)
    return None
