"""One rule: the plan that saves most over what is left, while the run's loss stays allowed with 99 % probability.

A plan is a setting and the governor's share beside it. Governor updates save nothing, but leave their part of the
allowance to the lowered ones, and tell what these cost. What was not spent of the allowance may be spent later.
Before there is data, physics bounds what a setting can cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from eerl_controller.bayes.alternation import Alternation
from eerl_controller.bayes.curve import DEEPEST
from eerl_controller.bayes.outcomes import (
    BLOCK_UPDATES,
    HOPE_BLOCKS,
    Array,
    Flags,
    Hope,
    Index,
    Outcomes,
)
from eerl_controller.bayes.plan import Allowance, Choice, Plan, affordable, best_plan, choice
from eerl_controller.clocks import Pair
from eerl_controller.settings import Settings

#: A wrong belief is noticed within a monitoring window (Table 3: 20 updates); until then it must be affordable.
COMMITTED_UPDATES = 20.0
#: When the run may end at any time, a plan must hold after that window too, with all that it will have shown. What is
#: chosen now is only committed until the next decision.
NEXT_DECISION_UPDATES = 5.0
#: A trial goes no deeper than this many times what was tried: beyond lies extrapolation.
DEEPER = 1.5
#: Share of the allowance that the first trial may take at the very worst.
FIRST_SHARE = 0.5
#: A change of clocks must repay as many updates: the first one after it is no evidence, and the job feels it.
CHANGE_UPDATES = 2.0
#: Nothing is tried or compared any more when fewer blocks than this are left to make use of it.
LAST_PROBE_BLOCKS = 3.0
#: The price of loss is what this share of the allowance more would save.
PRICE_STEP = 0.1
#: Shares of the governor among the updates to come that a plan may have.
SHARES = (0.0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6)
#: Hopes in standard deviations, with the probability of a Gaussian between halfway points (0.5, 1.5, and beyond).
HOPES = ((2.0, 0.067), (1.0, 0.242))


class Turn(Enum):
    """What comes next."""

    #: The best setting known.
    HOLD = "hold"
    #: A setting that may be better.
    EXPLORE = "explore"
    #: The governor, so that what the setting has shown is known beside it.
    PROBE = "probe"
    #: The governor, because no setting is worth more.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Step:
    """What comes next, and the setting in question."""

    turn: Turn
    choice: Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """The best plan for the rest of the run, and the present setting's own; None when it may not go on."""

    best: Choice
    here: Choice | None
    #: What another unit of allowed loss, as a fraction of the time to come, would save by update.
    price: float


def next_step(
    outcomes: Callable[[Hope | None], Outcomes],
    deepest: Sequence[float],
    alternation: Alternation,
    allowance: Allowance,
    current: Pair,
    settings: Settings,
    *,
    probing: bool,
) -> Step:
    """A block under ``current`` is over, a probe if ``probing``: what comes next.

    ``outcomes`` gives what is believed, or would be if a hope came true, ``deepest`` how deep either clock has been.
    """
    table = outcomes(None)
    reach = reach_of(table.depths, deepest, settings.start_fraction)
    decided = choose(table, allowance, reach, alternation.held if probing else current)
    best, here = decided.best, decided.here
    # What a change must bring: enough to be seen at all, and its toll over what is left.
    toll = CHANGE_UPDATES * best.worth
    least = max(settings.min_gain, toll / max(allowance.left, 1.0))
    if here is not None and best.worth - here.worth < least:
        best = here
    trial = table.turn_updates
    ending = allowance.left < LAST_PROBE_BLOCKS * trial
    if not probing and current.is_lowered and alternation.governors_turn(best, ending=ending):
        return Step(Turn.PROBE, best)
    if not ending:
        hope = find_hope(
            outcomes,
            table,
            allowance,
            reach=reach,
            decided=decided,
            best=best,
            trial=trial,
            least=2.0 * toll,
        )
        if hope is not None:
            # What the setting in force has shown is only known beside the governor.
            return Step(Turn.PROBE if hope.pair == current else Turn.EXPLORE, hope)
    if best.pair.is_governor or best.saving <= 0.0:
        return Step(Turn.NOTHING, best)
    return Step(Turn.HOLD, best)


def reach_of(depths: Sequence[Array], deepest: Sequence[float], start_fraction: float) -> tuple[float, float]:
    """How deep either clock may go: some way beyond what was tried, and always to the next clock there is."""
    found = []
    for axis, tried in zip(depths, deepest, strict=True):
        deeper = axis[axis > tried + 1e-9]
        following = float(deeper.min()) if len(deeper) else tried
        found.append(max(DEEPER * tried, -math.log(start_fraction), following))
    return found[0], found[1]


def first_fraction(allowance: Allowance, total_s: float, start_fraction: float) -> float:
    """How far the first trial may reduce clocks: as far as its share of the allowance bears at the very worst."""
    fraction = start_fraction
    budget = allowance.limit * (allowance.past_s / total_s + allowance.left)
    while 2.0 * BLOCK_UPDATES * (1.0 / fraction - 1.0) > FIRST_SHARE * budget and fraction < 0.99:
        fraction = 1.0 - 0.7 * (1.0 - fraction)
    return fraction


def first_below(clocks: Sequence[int], ceiling_mhz: float, allowance: Allowance, total_s: float) -> list[int]:
    """The clocks that the first trial may take: what its share of the allowance bears at the very worst.

    A grid with gaps, or a low ``max_mhz``, may have none.
    """
    budget = allowance.limit * (allowance.past_s / total_s + allowance.left)
    lowest_mhz = ceiling_mhz / (1.0 + FIRST_SHARE * budget / (2.0 * BLOCK_UPDATES))
    return [
        mhz for mhz in clocks if lowest_mhz <= mhz < ceiling_mhz and math.log(ceiling_mhz / mhz) <= DEEPEST
    ]


def choose(table: Outcomes, allowance: Allowance, reach: tuple[float, float], current: Pair) -> Decision:
    """The best setting no deeper than ``reach`` with its governor's share, and what is expected of ``current``."""
    committed = COMMITTED_UPDATES if len(allowance.ends) == 1 else NEXT_DECISION_UPDATES
    allowed = affordable(table, allowance, committed, reach)
    best, price = _best(table, allowance, allowed)
    at = table.index(current)
    if at is None or not allowed[at]:
        return Decision(best, None, price)
    only = np.zeros_like(allowed)
    only[at] = True
    here = best_plan(table, allowance, SHARES, least=-math.inf, among=only)
    return Decision(best, choice(table, at, here.governed, here.worth) if here else None, price)


def _best(table: Outcomes, allowance: Allowance, allowed: Flags) -> tuple[Choice, float]:
    """The best plan, and the price of loss beside it."""
    plan = best_plan(table, allowance, SHARES, among=allowed) or Plan((0, 0, 0), 0.0, 0.0)
    dearer = replace(allowance, limit=allowance.limit * (1.0 + PRICE_STEP))
    more = best_plan(table, dearer, around(plan.governed), least=plan.worth, among=allowed)
    gained = more.worth - plan.worth if more else 0.0
    spent = max(allowance.limit * PRICE_STEP * (allowance.past_s / table.total_s + allowance.left), 1e-9)
    return choice(table, plan.at, plan.governed, plan.worth), gained * allowance.left / spent


def around(share: float) -> tuple[float, ...]:
    """The governor's shares next to this one."""
    at = SHARES.index(share)
    return SHARES[max(at - 1, 0) : at + 2]


def find_hope(
    outcomes: Callable[[Hope | None], Outcomes],
    table: Outcomes,
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
    now = affordable(table, allowance, trial, reach)
    shares = around(best.governed)
    price = decided.price
    found: tuple[float, Choice] | None = None
    for axis in (0, 1):
        gain, most, where = 0.0, 0.0, None
        at = table.index(best.pair)
        held = at[axis + 1] if at is not None else 0
        for hope, chance in HOPES:
            hopeful = outcomes(Hope(axis, hope, held))
            plan = best_plan(hopeful, allowance, shares, least=best.worth)
            if plan is None:
                # Nothing would be better; nor would it be with less hope.
                break
            better = chance * (plan.worth - best.worth)
            gain += better * max(allowance.left - trial, 0.0)
            if better > most:
                most, where = better, nearest(table, now, plan.at)
        if where is None:
            continue
        believed = choice(table, where, best.governed, 0.0)
        lost = max(best.saving - believed.saving - price * (best.loss - believed.loss), 0.0)
        idle = 0.0
        if held:
            # What the trials show is only known beside governor blocks, in which nothing is saved but no loss made.
            idle = max(best.worth - believed.probe_saving - price * (1.0 - best.governed) * best.loss, 0.0)
        net = gain - trial * (HOPE_BLOCKS * lost + idle)
        if believed.pair != best.pair and net > least and (found is None or net > found[0]):
            found = (net, believed)
    return found[1] if found else None


def nearest(table: Outcomes, now: Flags, at: Index) -> Index | None:
    """The affordable setting nearest to this one, no deeper than it on either axis; None for the governor."""
    idle, generation, training = (end + 1 for end in at)
    deep = table.depths[0][:generation, None] + table.depths[1][None, :training]
    box = np.where(now[idle - 1, :generation, :training], deep, 0.0)
    g, t = np.unravel_index(int(box.argmax()), box.shape)
    return (at[0], int(g), int(t)) if g or t else None
