"""A quantity of an update that is followed through time, with its work, and the settings it ran under."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.hindsight.entries import Entry
from eerl_controller.hindsight.rows import Array, Rows

#: Elasticities of time and energy: between -1 and 1, and nothing in there is unlikely.
SLOPE_SD = 0.5
#: How far a response strays from its line: 0.05 at a log depth of 0.25.
WANDER_SD = 0.1
#: What any lock costs (0 to 2 %, appendix C), and what an idle clock does to a waiting pool.
LOCK_SD = (0.02, 0.02, 0.2)
#: What a setting has of its own.
OWN_SD = 0.003
#: What the first updates under other clocks have in common, whatever the clocks (caches, the network), and what each
#: carries of the clocks before: a twentieth of what changed, where these settle within a second (``settling``).
FRESH_SD, CARRIED_SD = 0.02, 0.02
#: Elasticity of time, all counts together: more tokens take more time, nearly in proportion. Watts hardly follow.
TIME_ELASTICITY = 0.8

#: The valid tokens of the update before: in-flight, what was generated while those were trained on is not waited for.
BEFORE = "before"

#: Parts of an update whose seconds bend (:attr:`Entry.bends`), and the whole of it.
PARTS, WHOLE = ("generation", "training"), "update"

Key = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Seconds or watts: its name, the counts its work depends on, the clocks (places in a pair) it answers to."""

    name: str
    features: tuple[str, ...]
    clocks: tuple[int, ...]
    #: Whether its noise may be skewed otherwise under lowered clocks.
    skewed: bool = False

    @property
    def is_time(self) -> bool:
        """Whether it holds seconds; else watts."""
        return self.name.endswith(" s")

    @property
    def bend(self) -> str | None:
        """Whose bend its logs have; None for watts, which work hardly moves, and where means are wanted."""
        if not self.is_time or self.skewed:
            return None
        return next((name for name in PARTS if self.name.startswith(name)), WHOLE)

    def key(self, entry: Entry) -> Key:
        """The setting of this entry, as far as the slot answers to it, and whether it has just begun."""
        return *(entry.pair[axis] for axis in self.clocks), 1 if entry.fresh else None


def rows_of(entries: Sequence[Entry], slot: Slot, values: Sequence[float | None]) -> tuple[Rows, list[Key]]:
    """One slot through time, and the settings it ran under in the order of their group numbers."""
    usable = [
        value is not None and value > 0.0 and entry.evidence
        for entry, value in zip(entries, values, strict=True)
    ]
    log = np.array(
        [math.log(value) if ok and value else math.nan for value, ok in zip(values, usable, strict=True)]
    )
    if slot.bend:
        log += np.array([entry.bends.get(slot.bend, 0.0) for entry in entries])
    known: dict[Key, int] = {}
    group = np.full(len(entries), -1)
    for i, entry in enumerate(entries):
        key = slot.key(entry)
        if any(mhz is not None for mhz in key):
            group[i] = known.setdefault(key, len(known))
    work, expected = _work(entries, slot, usable)
    at = np.array([entry.place for entry in entries])
    updates = np.array([float(entry.updates) for entry in entries])
    lowered = np.array([any(mhz is not None for mhz in slot.key(entry)[:-1]) for entry in entries])
    return Rows(log, work, expected, group, at, updates, lowered), list(known)


def _work(entries: Sequence[Entry], slot: Slot, usable: Sequence[bool]) -> tuple[Array, tuple[float, ...]]:
    """Centred logs of the counts that nearly all evidence has, and the elasticity expected of each.

    Together an equal share of the whole is expected of them; nothing of the update before, and of watts.
    """
    columns: list[list[float]] = []
    names: list[str] = []
    evidence = [i for i, ok in enumerate(usable) if ok]
    for name in slot.features:
        counts = [entry.before_valid if name == BEFORE else entry.counts.get(name) for entry in entries]
        known = [math.log1p(value) for i in evidence if (value := counts[i]) is not None]
        if not known or len(known) < 0.9 * len(evidence):
            continue
        middle = sum(known) / len(known)
        names.append(name)
        bends = [entry.bends.get(name, 0.0) if slot.bend else 0.0 for entry in entries]
        columns.append(
            [
                0.0 if value is None else math.log1p(value) + bend - middle
                for value, bend in zip(counts, bends, strict=True)
            ]
        )
    own = max(sum(name != BEFORE for name in names), 1)
    total = TIME_ELASTICITY if slot.is_time else 0.0
    expected = tuple(0.0 if name == BEFORE else total / own for name in names)
    return np.array(columns).T.reshape(len(entries), len(columns)), expected


def depths(
    keys: Sequence[Key], slot: Slot, top_mhz: float
) -> list[tuple[tuple[float, float], tuple[bool, ...]]]:
    """For every setting: how deep both clocks are (logs below the top), and what is locked at all."""
    found = []
    for key in keys:
        asked = dict(zip(slot.clocks, key[:-1], strict=True))
        x = [max(math.log(top_mhz / mhz), 0.0) if (mhz := asked.get(axis)) else 0.0 for axis in (0, 1)]
        found.append(((x[0], x[1]), tuple(asked.get(axis) is not None for axis in (0, 1, 2))))
    return found


def likeness(keys: Sequence[Key], slot: Slot, top_mhz: float) -> NDArray[np.float64]:
    """Prior covariance of the settings' effects: near clocks act alike, whatever the form of the response."""
    described = depths(keys, slot, top_mhz)
    x = np.array([item[0] for item in described]).reshape(-1, 2)
    locked = np.array([item[1] for item in described], dtype=float).reshape(-1, 3)
    smooth = np.minimum(x[:, None, :], x[None, :, :]).sum(axis=2)
    # A response whose slope wanders: effects grow with depth, and those of near depths differ little.
    line = (x[:, None, :] * x[None, :, :]).sum(axis=2)
    both = (locked[:, None, :] * locked[None, :, :]) @ np.array(LOCK_SD) ** 2
    # A setting's first updates share what it has of its own with its later ones.
    settings = [key[:-1] for key in keys]
    own = np.array([[one == other for other in settings] for one in settings], dtype=float)
    governed = np.array([all(mhz is None for mhz in setting) for setting in settings])
    own[governed, governed] = 0.0
    fresh = np.array([float(key[-1] is not None) for key in keys])
    change = FRESH_SD**2 * np.outer(fresh, fresh) + CARRIED_SD**2 * np.diag(fresh)
    return np.asarray(SLOPE_SD**2 * line + WANDER_SD**2 * smooth + both + OWN_SD**2 * own + change)
