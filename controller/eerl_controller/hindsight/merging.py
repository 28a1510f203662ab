"""Like updates as one entry: the means of what they took, and how far means of logs are from logs of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace

from eerl_controller.hindsight.claims import busy_s
from eerl_controller.hindsight.entries import Entry
from eerl_controller.hindsight.slots import BEFORE, PARTS, WHOLE
from eerl_controller.work import LEAST

Kind = tuple[Hashable, ...]


def kind(entry: Entry) -> Kind:
    """What entries must have in common to be put together: the clocks, what is claimed, and what is known of them."""
    return (
        entry.pair,
        entry.evidence,
        entry.fresh,
        entry.mixed,
        entry.claimed,
        entry.energy_j is None,
        entry.own_j is None,
        # The later of two means is not the mean of the later ones.
        entry.arrivals_s and entry.arrivals_s[0] > entry.arrivals_s[1],
        entry.pools_j is None,
        entry.before_valid is None,
        entry.validation[0] > 0.0 and entry.validation[1] is None,
        frozenset(entry.phases),
        frozenset(entry.counts),
        frozenset(name for name, (_, joules) in entry.phases.items() if joules is None),
    )


def merged(one: Entry, other: Entry) -> Entry:
    """Two like entries as one: means by update."""
    share = one.updates / (one.updates + other.updates)

    def mean(a: float, b: float) -> float:
        return share * a + (1.0 - share) * b

    def known(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else mean(a, b)

    def pair(a: tuple[float, float] | None, b: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if a is None or b is None else (mean(a[0], b[0]), mean(a[1], b[1]))

    found = Entry(
        place=mean(one.place, other.place),
        pair=one.pair,
        evidence=one.evidence,
        mixed=one.mixed,
        blame=one.blame,
        elapsed_s=mean(one.elapsed_s, other.elapsed_s),
        energy_j=known(one.energy_j, other.energy_j),
        updates=one.updates + other.updates,
        own_s=mean(one.own_s, other.own_s),
        own_j=known(one.own_j, other.own_j),
        phases={
            name: (mean(seconds, other.phases[name][0]), known(joules, other.phases[name][1]))
            for name, (seconds, joules) in one.phases.items()
        },
        counts={name: mean(value, other.counts[name]) for name, value in one.counts.items()},
        arrivals_s=pair(one.arrivals_s, other.arrivals_s),
        pools_j=pair(one.pools_j, other.pools_j),
        before_valid=known(one.before_valid, other.before_valid),
        validation=(mean(one.validation[0], other.validation[0]), _visit_j(one, other, mean)),
        fresh=one.fresh,
    )
    before = [
        {name: math.log(value) + item.bends.get(name, 0.0) for name, value in _curved(item).items()}
        for item in (one, other)
    ]
    bends = {
        name: mean(before[0][name], before[1][name]) - math.log(value)
        for name, value in _curved(found).items()
        if name in before[0] and name in before[1]
    }
    return replace(found, bends=bends)


def _curved(entry: Entry) -> dict[str, float]:
    """What the seconds of an update are a power of, and these seconds: their logs are followed."""
    found = {name: 1.0 + value for name, value in entry.counts.items()}
    if entry.before_valid is not None:
        found[BEFORE] = 1.0 + entry.before_valid
    seconds = {WHOLE: entry.own_s, **{name: busy_s(entry, axis) for axis, name in enumerate(PARTS)}}
    return {
        **found,
        **{name: value for name, value in seconds.items() if value is not None and value >= LEAST},
    }


def _visit_j(one: Entry, other: Entry, mean: Callable[[float, float], float]) -> float | None:
    """Joules of validation; an update without any took none for it."""
    joules = [0.0 if item.validation[0] <= 0.0 else item.validation[1] for item in (one, other)]
    return None if joules[0] is None or joules[1] is None else mean(joules[0], joules[1])
