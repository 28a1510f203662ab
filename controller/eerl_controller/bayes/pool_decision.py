"""One rule for overlapping pools: the setting that saves most over what is left, the run's loss staying allowed.

The same rule as where phases take turns (``decision``): P(full-run loss within the limit) is at least 99 %, what was
not spent may be spent later, and before there is data physics bounds what a setting can cost. A pool that waits for
the other anyway is free by the same physics, down to the clock where it would become the later one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.pool_learner import PoolLearner
from eerl_controller.bayes.pool_menu import Allowance, Choice, Flags, Hope, Index, PoolMenu
from eerl_controller.bayes.pool_table import PoolTable
from eerl_controller.clocks import Pair

#: A wrong belief is noticed within a monitoring window (Table 3: 20 updates); until then it must be affordable.
COMMITTED_UPDATES = 20.0
#: What is held already may spend faster by this share of the allowance.
PACE_SLACK = 0.1
#: A change of clocks must repay as many updates: the first one after it is no evidence, and the job feels it.
CHANGE_UPDATES = 2.0
#: Hopes in standard deviations, with the probability of a Gaussian between halfway points (0.5, 1.5, and beyond).
HOPES = ((1.0, 0.242), (2.0, 0.067))
#: Lengths of trial that a hope may take to show itself, in blocks: what one block cannot tell, some more may.
TRIAL_BLOCKS = (1, 6)


def choose(
    table: PoolTable, menu: PoolMenu, allowance: Allowance, reach: tuple[float, float], current: Pair
) -> tuple[Choice, Choice | None]:
    """The best setting no deeper than ``reach``, and what is expected of ``current`` if it is still allowed."""
    may = table.allowed(allowance, COMMITTED_UPDATES, reach)
    at = best_index(np.where(may & table.paced(allowance), table.saving, -math.inf))
    price = table.price(table.need(allowance), at)
    best, here = table.choice(at, price), menu.index(current)
    if here is None or not may[here]:
        return best, None
    # A little too fast a pace is put right later; it is no reason to change clocks now.
    eased = replace(allowance, limit=allowance.limit * (1.0 + PACE_SLACK))
    return best, table.choice(here, price) if table.paced(eased)[here] else None


@dataclass(frozen=True, slots=True)
class Probe:
    """A block with one side, or both, under the governor: its clocks, and what it is worth and costs, in updates'
    savings.
    """

    pair: Pair
    worth: float
    cost: float


def best_probe(
    menu: PoolMenu, learner: PoolLearner, table: PoolTable, best: Choice, left: float, block: int
) -> Probe | None:
    """The block of governor updates that teaches most for what it costs; None when there is nothing to compare.

    Either side's pace is learnt by itself, so the side that does not decide the loss stays lowered meanwhile.
    """
    pair, paces = best.pair, learner.paces
    pairs = [pair.with_clock(0, None), pair.with_clock(1, None), Pair(None, None, pair.idle_mhz)]
    held = learner.setting_of(pair)
    hold = paces.after_blocks(best.gradient, ((held, 2 * block + 1),))
    found: Probe | None = None
    for other in dict.fromkeys(item for item in pairs if item != pair):
        at = menu.index(other)
        if at is None:
            continue
        probing = table.choice(at, best.price)
        after = paces.after_blocks(best.gradient, ((learner.setting_of(other), block), (held, block)))
        worth = best.worth_knowing(hold - after) * max(left - block - 1.0, 0.0)
        less = max(best.saving - probing.saving - best.price * (best.loss - probing.loss), 0.0)
        cost = (block + 1.0) * less + CHANGE_UPDATES * abs(best.saving - probing.saving)
        if found is None or worth - cost > found.worth - found.cost:
            found = Probe(other, worth, cost)
    return found


def find_hope(
    menus: tuple[PoolMenu, PoolMenu],
    learner: PoolLearner,
    table: PoolTable,
    allowance: Allowance,
    *,
    reach: tuple[float, float],
    best: Choice,
    block: int,
    probe_cost: float,
    least: float,
    barred: tuple[Flags | None, Flags | None],
) -> Choice | None:
    """A setting worth trying, because it may turn out better than ``best``; None when there is none.

    One response at a time is supposed to be kinder than believed, by one or two standard deviations, as far as a
    trial of some length can show that. What would then be gained over the rest of the run, times the probability
    that it is so, must be more than what the trial and a probe beside it cost by today's belief, and more than
    ``least``, in updates' savings. ``menus``: all settings, and a coarse choice of them to hope for.
    """
    menu, coarse = menus
    affordable = table.allowed(allowance, block + 1.0, reach)
    held = menu.index(best.pair) or (0, 0, 0)
    found: tuple[float, Choice] | None = None
    for axis in (0, 1):
        beyond = float(menu.depths[axis][held[axis + 1]])
        # A side that is the governor's now is compared with what is held.
        compared = probe_cost if held[axis + 1] else 0.0
        for blocks in TRIAL_BLOCKS:
            trial = blocks * (block + 1.0)
            gain, most, where = 0.0, 0.0, None
            for deviations, chance in HOPES:
                hope = Hope(axis, deviations, beyond, readings=float(blocks * block))
                hopeful = PoolTable(coarse, learner, hope=hope, barred=barred[1])
                at = best_index(np.where(hopeful.paced(allowance), hopeful.saving, -math.inf))
                better = chance * max(float(hopeful.saving[at]) - best.saving, 0.0)
                gain += better * max(allowance.left - trial, 0.0)
                if better > most:
                    most, where = better, nearest(menu, affordable, coarse.pair(at))
            if where is None:
                continue
            believed = table.choice(where, best.price)
            worth = (best.saving - best.price * best.loss) - (believed.saving - best.price * believed.loss)
            net = gain - trial * max(worth, 0.0) - compared
            if believed.pair != best.pair and net > least and (found is None or net > found[0]):
                found = (net, believed)
    return found[1] if found else None


def best_index(saving: NDArray[np.float64]) -> Index:
    """Where the largest value stands."""
    idle, generation, training = np.unravel_index(int(saving.argmax()), saving.shape)
    return int(idle), int(generation), int(training)


def nearest(menu: PoolMenu, affordable: Flags, pair: Pair) -> Index | None:
    """The affordable setting nearest to this one, no deeper than it on either side; None for the governor."""
    idle = 0 if pair.idle_mhz is None else 1
    ends = [
        1 + sum(other is not None and clock is not None and other >= clock for other in mhz)
        for clock, mhz in zip(pair.phases, menu.mhz, strict=True)
    ]
    box = affordable[idle, : ends[0], : ends[1]]
    depth = menu.depths[0][: ends[0], None] + menu.depths[1][None, : ends[1]]
    g, t = np.unravel_index(int(np.where(box, depth, -1.0).argmax()), box.shape)
    return (idle, int(g), int(t)) if g or t else None
