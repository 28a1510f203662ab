"""How the phases of a stretch of time share it and the GPUs, by arrangement. No I/O.

One pool, or pools that take turns: phases are a disjoint partition of time, and each has all GPUs while it runs.
Pools that work at the same time: a partition of time for each pool, and a phase has only the GPUs of its own pool;
a refit takes part of both. Rewards, checkpoints and names we do not know are the trainer's business: they have all
GPUs but the generation pool's. Either way a GPU is in one phase at a time, so nothing is ever booked twice and
phases plus the unattributed rest make up the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eerl_launch.arrangement import Arrangement
from eerl_launch.modes import PAUSE, REFIT, ROLE_OF_PHASE, VISITING_PHASES
from eerl_launch.occurrences import Interval, Occurrence, partition, top_level, union


@dataclass(frozen=True, slots=True)
class Share:
    """What one phase has of a stretch; None stands for all GPUs.

    ``gpus``: whose energy counts. ``workers``: whose clocks and load say how it ran. ``role``: the pool whose clock
    it runs under, where it is one pool's alone.
    """

    intervals: list[Interval]
    gpus: frozenset[str] | None = None
    workers: frozenset[str] | None = None
    role: str | None = None


def shares(
    occurrences: Sequence[Occurrence],
    begin_s: float,
    end_s: float,
    arrangement: Arrangement,
    everyone: frozenset[str],
) -> dict[str, Share]:
    """The share of every top-level phase inside [begin, end]; ``everyone``: all GPUs that are measured."""
    if not arrangement.separate or not arrangement.mode.asynchronous:
        parts = partition(occurrences, begin_s, end_s)
        return {phase: _in_turn(phase, parts[phase], arrangement) for phase in parts}
    generation = arrangement.members("generation") or frozenset()
    training = arrangement.members("training") or frozenset()
    generating = {o.phase for o in occurrences if ROLE_OF_PHASE.get(top_level(o.phase)) == "generation"}
    own = partition([o for o in occurrences if o.phase in generating], begin_s, end_s)
    others = partition([o for o in occurrences if o.phase not in generating], begin_s, end_s)
    if PAUSE in others:
        others[REFIT] = union([*others.pop(PAUSE), *others.get(REFIT, ())])
    refit = others.get(REFIT, [])
    found = {
        # Generation that goes on across a pause has been begun, but does not run in it.
        phase: Share(left, generation, generation, "generation")
        for phase, intervals in own.items()
        if (left := [part for first_s, last_s in intervals for part in remainder(first_s, last_s, refit)])
    }
    for phase, intervals in others.items():
        if phase == REFIT:
            found[phase] = Share(intervals)
        elif ROLE_OF_PHASE.get(phase) == "training":
            found[phase] = Share(intervals, training, training, "training")
        else:
            found[phase] = Share(intervals, everyone - generation)
    return found


def visits(found: Mapping[str, Share]) -> dict[str, list[Interval]]:
    """When validation and checkpoint were all that ran: only this time of theirs made the update longer.

    On one pool phases never overlap; a validation on the generation pool while training goes on costs nothing.
    """
    taken = [i for phase, share in found.items() if phase not in VISITING_PHASES for i in share.intervals]
    alone: dict[str, list[Interval]] = {}
    for phase in VISITING_PHASES:
        if phase in found:
            alone[phase] = [part for i in found[phase].intervals for part in remainder(*i, taken)]
            taken += alone[phase]
    return alone


def _in_turn(phase: str, intervals: list[Interval], arrangement: Arrangement) -> Share:
    role = ROLE_OF_PHASE.get(phase)
    if role is None or not arrangement.separate:
        return Share(intervals, role=role)
    return Share(intervals, workers=arrangement.members(role), role=role)


def seconds(intervals: Iterable[Interval]) -> float:
    """Their length together; they must be disjoint."""
    return sum((end_s - begin_s for begin_s, end_s in intervals), 0.0)


def remainder(begin_s: float, end_s: float, taken: Iterable[Interval]) -> list[Interval]:
    """What of [begin, end] lies in none of the intervals."""
    left, at_s = [], begin_s
    for first_s, last_s in union(taken):
        if min(first_s, end_s) > at_s:
            left.append((at_s, min(first_s, end_s)))
        at_s = max(at_s, last_s)
    return [*left, (at_s, end_s)] if at_s < end_s else left
