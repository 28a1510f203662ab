"""Which quantities of an update are followed through time, by mode, and which clocks each of them answers to.

Synchronous: seconds of generation, of training (with log-prob and critic) and of the rest, each under its own clock,
since phases take turns. Drained: the arrivals of both pools at the rendezvous, and what follows it. Else the whole
update. Energy by the same parts where the phases' energies are of all GPUs, else that of the whole update: a pool's
waiting depends on the other's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eerl_controller.clocks import Pair
from eerl_controller.hindsight.entries import Entry
from eerl_controller.hindsight.series import Array, Rows
from eerl_controller.records import ExecutionMode
from eerl_controller.work import GENERATION_PHASES, LEAST, TRAINING_PHASES

#: A part below this share of the update is no part of its own: its log would be noise.
LEAST_SHARE = 0.002

Values = Callable[[Entry], "tuple[float, ...] | None"]
Key = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One part: the counts its work depends on, and the clocks (indices into a pair) it answers to."""

    name: str
    features: tuple[str, ...]
    clocks: tuple[int, ...]


GENERATION = Part("generation", ("generated", "longest"), (0,))
TRAINING = Part("training", ("valid", "generated"), (1,))
REST = Part("rest", (), (0, 1, 2))
#: Arrivals of drained updates: generation works on another batch than training.
TRAINING_ALONE = Part("training", ("valid",), (1,))
WHOLE = Part("update", ("generated", "longest", "valid"), (0, 1, 2))
#: In-flight what was generated in an update is what its length allowed; what it consumed, and the update before it
#: (appendix E), is its work.
WHOLE_INFLIGHT = Part("update", ("valid", "before", "longest_consumed"), (0, 1, 2))


def phase_seconds(entry: Entry) -> tuple[float, ...] | None:
    """Generation, training and the rest of the update's own seconds."""
    own = [sum(entry.phases[name][0] for name in names if name in entry.phases) for names in _PHASES]
    if min(own) < LEAST:
        return None
    return own[0], own[1], max(entry.own_s - sum(own), 0.0)


def phase_joules(entry: Entry) -> tuple[float, ...] | None:
    """The same in joules; None when one of them is not known."""
    found = [[entry.phases[name][1] for name in names if name in entry.phases] for names in _PHASES]
    if entry.own_j is None or any(value is None for values in found for value in values):
        return None
    own = [sum(value for value in values if value is not None) for values in found]
    if min(own) < LEAST:
        return None
    return own[0], own[1], max(entry.own_j - sum(own), 0.0)


def arrivals(entry: Entry) -> tuple[float, ...] | None:
    """Both arrivals at the rendezvous, and the seconds after it."""
    if entry.arrivals_s is None:
        return None
    return *entry.arrivals_s, max(entry.own_s - max(entry.arrivals_s), 0.0)


def whole_seconds(entry: Entry) -> tuple[float, ...] | None:
    """The update's own seconds."""
    return (entry.own_s,) if entry.own_s >= LEAST else None


#: Validation is generation for another purpose: what a clock does to the one it does to the other.
GENERATING = Part("generation", ("generated", "longest"), (0,))


def generating_seconds(entry: Entry) -> float | None:
    """Seconds of generation alone, whatever the mode."""
    found = entry.phases.get("generation")
    return found[0] if found and found[0] >= LEAST else None


def generating_joules(entry: Entry) -> float | None:
    """Joules of generation alone, whatever the mode."""
    found = entry.phases.get("generation")
    return found[1] if found and found[1] is not None and found[1] >= LEAST else None


_PHASES = (GENERATION_PHASES, TRAINING_PHASES)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is followed: parts of its seconds, and by the same parts the watts (``powered`` says what they answer
    to); ``joules`` None: watts are of the whole update.
    """

    parts: tuple[Part, ...]
    seconds: Values
    joules: Values | None
    powered: tuple[Part, ...]
    overlapping: bool = False


def plan_of(entries: Sequence[Entry], mode: ExecutionMode) -> Plan:
    """How this run is followed: by parts where most updates have them, else whole."""
    wanted: Plan | None = None
    if mode in (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC):
        # A separate pool waits in the other's phase, at a clock of its own.
        clocks = ((0,), (1,), REST.clocks) if mode is ExecutionMode.COLOCATED_SYNC else (REST.clocks,) * 3
        parts = (GENERATION, TRAINING, REST)
        powered = tuple(Part(part.name, part.features, own) for part, own in zip(parts, clocks, strict=True))
        wanted = Plan(parts, phase_seconds, phase_joules, powered)
    elif mode is ExecutionMode.ASYNC_DRAINED:
        wanted = Plan((GENERATION, TRAINING_ALONE, REST), arrivals, None, (WHOLE,), overlapping=True)
    if wanted is not None:
        evidence = [entry for entry in entries if entry.evidence]
        powered_too = [entry for entry in evidence if entry.own_j is not None]
        if _most(evidence, wanted.seconds) and (wanted.joules is None or _most(powered_too, wanted.joules)):
            return wanted
    whole = WHOLE_INFLIGHT if mode is ExecutionMode.ASYNC_INFLIGHT else WHOLE
    return Plan((whole,), whole_seconds, None, (whole,))


def _most(entries: Sequence[Entry], values: Values) -> bool:
    return 10 * sum(values(entry) is not None for entry in entries) >= 9 * len(entries) > 0


def rows_of(
    entries: Sequence[Entry], part: Part, values: Sequence[float | None]
) -> tuple[Rows, list[Key]]:
    """One part through time, and the settings it ran under in the order of their group numbers."""
    usable = [
        value is not None and value > 0.0 and entry.evidence for entry, value in zip(entries, values, strict=True)
    ]
    log = np.array([math.log(value) if ok and value else math.nan for value, ok in zip(values, usable, strict=True)])
    known: dict[Key, int] = {}
    group = np.full(len(entries), -1)
    for i, entry in enumerate(entries):
        key = tuple(entry.pair[axis] for axis in part.clocks)
        if any(mhz is not None for mhz in key):
            group[i] = known.setdefault(key, len(known))
    return Rows(log, _work(entries, part, usable), group, np.array([entry.place for entry in entries])), list(known)


def _work(entries: Sequence[Entry], part: Part, usable: Sequence[bool]) -> Array:
    """Centred logs of the counts that all evidence has; without G the valid tokens stand for it."""
    columns: list[list[float]] = []
    evidence = [i for i, ok in enumerate(usable) if ok]
    names = list(part.features)
    for name in names:
        counts = [entry.before_valid if name == "before" else entry.counts.get(name) for entry in entries]
        known = [math.log1p(counts[i] or 0.0) for i in evidence if counts[i] is not None]
        if not known or len(known) < 0.9 * len(evidence):
            continue
        middle = sum(known) / len(known)
        columns.append([0.0 if value is None else math.log1p(value) - middle for value in counts])
    return np.array(columns).T.reshape(len(entries), len(columns))


def depths(keys: Sequence[Key], part: Part, top_mhz: float) -> list[tuple[tuple[float, float], tuple[bool, ...]]]:
    """For every setting: how deep both clocks are (logs below the top), and what is locked at all."""
    found = []
    for key in keys:
        asked = dict(zip(part.clocks, key, strict=True))
        x = [max(math.log(top_mhz / mhz), 0.0) if (mhz := asked.get(axis)) else 0.0 for axis in (0, 1)]
        found.append(((x[0], x[1]), tuple(asked.get(axis) is not None for axis in (0, 1, 2))))
    return found


def likeness(keys: Sequence[Key], part: Part, top_mhz: float) -> NDArray[np.float64]:
    """Prior covariance of the settings' effects: near clocks act alike, whatever the form of the response."""
    described = depths(keys, part, top_mhz)
    x = np.array([item[0] for item in described]).reshape(-1, 2)
    locked = np.array([item[1] for item in described], dtype=float).reshape(-1, 3)
    smooth = np.minimum(x[:, None, :], x[None, :, :]).sum(axis=2)
    # A response whose slope wanders: effects grow with depth, and those of near depths differ little.
    line = (x[:, None, :] * x[None, :, :]).sum(axis=2)
    both = (locked[:, None, :] * locked[None, :, :]) @ np.array(LOCK_SD) ** 2
    return np.asarray(SLOPE_SD**2 * line + WANDER_SD**2 * smooth + both + OWN_SD**2 * np.eye(len(keys)))


#: Elasticities of time and energy: between -1 and 1, and nothing in there is unlikely.
SLOPE_SD = 0.5
#: How far a response strays from its line: 0.05 at a log depth of 0.25.
WANDER_SD = 0.1
#: What any lock costs (0 to 2 %, appendix C), and what an idle clock does to a waiting pool.
LOCK_SD = (0.02, 0.02, 0.2)
#: What a setting has of its own.
OWN_SD = 0.003
