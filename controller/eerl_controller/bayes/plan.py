"""A plan for the rest of a run: one setting in alternation with the governor, within what the run may lose.

The run's loss is a number of seconds: lost so far plus lost from now on. Governor updates save nothing, but leave
their part of the allowance to the lowered ones, and tell what these cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.bayes.outcomes import BLOCK_UPDATES, Array, Flags, Index, Outcomes
from eerl_controller.clocks import Pair

Indices = NDArray[np.int64]

#: Standard deviations of a one-sided 99 %.
SURE = 2.326
#: Updates differ twice: those that an expectation is the mean of, which are replaced as often, and those to come.
SAMPLES = 2.0
#: A loss of less than this share of an update is none.
FREE = 1e-3


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be lost: ``limit`` of all the time, ``past_s`` seconds of which are over and ``left`` updates to come.

    ``ends`` are the updates after which it must be kept: the same when that is known, sooner too when it is not.
    """

    limit: float
    past_s: float
    left: float
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and what is expected of it, by update, as fractions of the governor's energy and time.

    ``governed`` is the governor's best share beside it, ``worth`` what the two then save by update together, and
    ``probe`` the clocks of these turns.
    """

    pair: Pair
    probe: Pair
    saving: float
    loss: float
    loss_sd: float
    governed: float
    worth: float
    probe_saving: float
    turn_updates: float

    def __str__(self) -> str:
        return (
            f"{100 * self.saving:.1f} % saving and {100 * self.loss:.2f} % loss expected, "
            f"known to {100 * self.loss_sd:.2f} points"
        )


def choice(table: Outcomes, at: Index, governed: float, worth: float) -> Choice:
    """The setting with this index."""
    return Choice(
        pair=table.pair(at),
        probe=table.probe(at),
        saving=float(table.saving[at]),
        loss=float(table.lost_s[at] / table.total_s),
        loss_sd=math.sqrt(max(float(table.variance[at]), 0.0)) / table.total_s,
        governed=governed,
        worth=worth,
        probe_saving=float(table.probe_saving[at]),
        turn_updates=table.turn_updates,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A setting by its index, the governor's share beside it, and what the two save by update together."""

    at: Index
    governed: float
    worth: float


def best_plan(
    table: Outcomes,
    allowance: Allowance,
    shares: Sequence[float],
    *,
    least: float = 0.0,
    among: Flags | None = None,
) -> Plan | None:
    """The plan that saves most over the rest of the run; None when none that is allowed saves more than ``least``.

    The governor has one of ``shares`` (ascending) of the updates, the setting, one of ``among``, has the others. A
    larger share saves less, but tells the loss better and leaves more of the allowance to each lowered update. What
    the alternation will have told at its end is one more measurement of the setting's loss.
    """
    at = _better(table, shares[0], least, among)
    share, place = within_limit(table, allowance, np.array(shares), at)
    part = np.array(shares)[share]
    value = (1.0 - part) * table.saving.ravel()[at][place] + part * table.probe_saving.ravel()[at][place]
    if not value.size or value.max() <= least:
        return None
    first = int(value.argmax())
    flat = int(at[place[first]])
    return Plan(_index(table, flat), shares[int(share[first])], float(value[first]))


def _better(table: Outcomes, share: float, least: float, among: Flags | None) -> Indices:
    """Which of the settings save more than ``least`` when the governor has at least this share."""
    more = np.maximum((1.0 - share) * table.saving + share * table.probe_saving, table.probe_saving) > least
    return np.flatnonzero(more if among is None else more & among)


def within_limit(
    table: Outcomes, allowance: Allowance, shares: Array, at: Indices
) -> tuple[Indices, Indices]:
    """Which shares of the governor with which of the settings ``at`` lose no more than allowed; places of both."""
    limit, (past_s, past_s2) = allowance.limit, table.past
    # Only part of a turn is evidence where clocks settle first.
    use = BLOCK_UPDATES / table.turn_updates
    allowed = np.ones((len(shares), len(at)), dtype=bool)
    places = np.arange(len(at))
    for left in allowance.ends:
        held, governed = (left * (1.0 - shares))[:, None], (left * shares)[:, None]
        lost = held * table.lost_s.take(at) + governed * table.probe_lost_s.take(at)
        over = past_s - limit * (allowance.past_s + left * table.total_s) + (1.0 - limit) * lost
        allowed &= over <= 0.0
        some = allowed.any(axis=0)
        if 2 * np.count_nonzero(some) < len(at):
            at, places, allowed, lost, over = (
                at[some],
                places[some],
                allowed[:, some],
                lost[:, some],
                over[:, some],
            )
        variance, noise_s2 = np.maximum(table.variance.take(at), 0.0), table.noise_s2.take(at)
        with_past, model = table.with_past.take(at), table.model_sd.take(at)
        error = noise_s2 * (1.0 / np.maximum(governed * use, 1e-9) + 1.0 / np.maximum(held, 1e-9))
        shared = with_past + held * variance
        rest = past_s2 + held * (with_past + shared) - shared**2 / (variance + error)
        rest += (model * (past_s + lost)) ** 2
        rest += SAMPLES * held * table.spread_s2.take(at)
        allowed &= SURE**2 * rest <= over**2
    share, place = np.nonzero(allowed)
    return share, places[place]


def _index(table: Outcomes, flat: int) -> Index:
    idle, generation, training = np.unravel_index(flat, table.saving.shape)
    return int(idle), int(generation), int(training)


def affordable(table: Outcomes, allowance: Allowance, updates: float, reach: tuple[float, float]) -> Flags:
    """Which settings may run now, for so many updates, before they can be left for the governor."""
    lost_s, lost_s2 = table.past
    limit = allowance.limit
    committed = min(allowance.left, updates)
    to_come = max(min(allowance.ends), committed)
    # Seconds that the rest of the run takes count for the allowance, its own losses included.
    budget_s = limit * (allowance.past_s + to_come * table.total_s)
    surely = lost_s + SURE * math.sqrt(max(lost_s2, 0.0)) + committed * table.worst_s
    likely = lost_s + committed * table.lost_s + SURE * _sd(table, committed)
    safe = np.minimum(surely, likely) <= budget_s
    generation, training = table.depths
    within = (generation <= reach[0] + 1e-9)[:, None] & (training <= reach[1] + 1e-9)[None, :]
    # What costs nothing even at the very worst needs no approach.
    found = safe & (within[None, :, :] | (table.worst_s <= FREE * table.total_s))
    if table.barred is not None:
        found &= ~table.barred[None]
    found[0, 0, 0] = True
    return np.asarray(found)


def _sd(table: Outcomes, updates: float) -> Array:
    """Standard deviation in seconds of what is lost so far and in this many more updates."""
    variance = table.past[1] + updates**2 * table.variance + 2.0 * updates * table.with_past
    variance = variance + (table.model_sd * (table.past[0] + updates * table.lost_s)) ** 2
    variance = variance + SAMPLES * updates * table.spread_s2
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))
