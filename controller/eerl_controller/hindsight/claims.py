"""What the governor would have taken for each update, given what its clocks did to every quantity (logs; 0: nothing).

Synchronous updates: phases take turns, so their seconds add up; joules are seconds times watts. Overlapping ones:
drained updates last until the later arrival at the rendezvous, in-flight ones are taken whole; each pool's joules are
its busy seconds times their watts, and what is left of the update times the watts of waiting. Where phases or pools
are not told apart, it is the whole update's seconds times its mean watts. Validation answers to its clock as
generation does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from eerl_controller.hindsight.entries import Entry
from eerl_controller.hindsight.rows import Array
from eerl_controller.hindsight.slots import Slot
from eerl_controller.records import ExecutionMode
from eerl_controller.work import GENERATION_PHASES, LEAST, TRAINING_PHASES

Effects = Mapping[str, Array]
Values = Callable[[Entry], "float | None"]

_NAMES = ("generation", "training")
_PHASES = (GENERATION_PHASES, TRAINING_PHASES)
_ALL = (0, 1, 2)
#: What the work of an update depends on (equation 2). In-flight what was generated in an update is what its length
#: allowed; what it consumed, and the update before it (appendix E), is its work.
_WORK = {
    "generation": ("generated", "longest"),
    "training": ("valid", "generated"),
    "rest": (),
    "update": ("generated", "longest", "valid"),
    "in-flight": ("valid", "before", "longest_consumed"),
}


def busy_s(entry: Entry, axis: int) -> float | None:
    """Seconds of the phases of generation (0) or training (1); None where they did not run."""
    seconds = sum(entry.phases[name][0] for name in _PHASES[axis] if name in entry.phases)
    return seconds if seconds >= LEAST else None


def busy_j(entry: Entry, axis: int) -> float | None:
    """The same in joules; None when one of them is not known."""
    found = [entry.phases[name][1] for name in _PHASES[axis] if name in entry.phases]
    joules = sum(value or 0.0 for value in found)
    return None if joules < LEAST or any(value is None for value in found) else joules


def _array(values: Sequence[float | None]) -> Array:
    return np.array([0.0 if value is None else value for value in values])


class Claims(ABC):
    """The updates' seconds and joules by part. ``slots`` are the quantities whose effects are wanted."""

    slots: tuple[Slot, ...] = ()
    #: The part that validation is like.
    generating = "generation"

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.blame = np.array([entry.claimed for entry in entries])
        self.elapsed_s = np.array([entry.elapsed_s for entry in entries])
        self.energy_j = np.array([np.nan if entry.energy_j is None else entry.energy_j for entry in entries])
        self._valid_s = np.array([entry.validation[0] for entry in entries])
        self._valid_j = _array([entry.validation[1] for entry in entries])
        #: Seconds and joules that clocks answer for, by part; what stragglers have beyond is cut away.
        self.seconds: dict[str, Array] = {}
        self.joules: dict[str, Array] = {}
        self.excess_s, self.excess_j = np.zeros(len(entries)), np.zeros(len(entries))

    def values(self, slot: Slot) -> list[float | None]:
        """Seconds or watts of a slot by update; None where unknown."""
        name, unit = slot.name.rsplit(" ", 1)
        seconds = self.seconds[name].tolist()
        if unit == "s":
            return [value if value >= LEAST else None for value in seconds]
        joules = self.joules[name].tolist()
        return [j / s if s >= LEAST and j >= LEAST else None for j, s in zip(joules, seconds, strict=True)]

    def cut(self, name: str, most_s: Array) -> None:
        """Nothing is claimed for a part's seconds beyond these, nor for its joules meanwhile."""
        share = np.minimum(most_s / np.maximum(self.seconds[name], LEAST), 1.0)
        self.excess_s += self.seconds[name] * (1.0 - share) * (self.blame > 0.0)
        self.seconds[name] = self.seconds[name] * share

    def cut_joules(self, name: str, usual_w: Array) -> None:
        """While something hangs the GPUs wait: of a straggler's joules, work at the usual watts is left."""
        if name in self.joules:
            most_j = usual_w * self.seconds[name]
            kept = np.where(self.excess_s > 0.0, np.minimum(self.joules[name], most_j), self.joules[name])
            self.excess_j += (self.joules[name] - kept) * (self.blame > 0.0)
            self.joules[name] = kept

    def governor(self, effects: Effects) -> tuple[Array, Array]:
        """Seconds and joules of the governor by update."""
        more_s, more_j = self._added({**dict.fromkeys(self._names(), np.zeros(1)), **effects})
        return self.elapsed_s + self.blame * more_s, self.energy_j + self.blame * more_j

    def _names(self) -> list[str]:
        parts = (
            *_NAMES,
            "rest",
            "update",
            *(f"{name} {what}" for name in _NAMES for what in ("busy", "wait")),
        )
        return [f"{part} {unit}" for part in parts for unit in ("s", "w")]

    @abstractmethod
    def _added(self, effects: Effects) -> tuple[Array, Array]:
        """Seconds and joules that the governor would have taken more, by entry."""

    def _visit(self, effects: Effects) -> tuple[Array, Array]:
        """What validation would have taken more."""
        time, power = (effects[f"{self.generating} {unit}"] for unit in ("s", "w"))
        return self._valid_s * np.expm1(-time), self._valid_j * np.expm1(-time - power)


class InTurn(Claims):
    """Phases take turns. ``one_pool``: all GPUs do either; else a pool waits in the other's phase."""

    def __init__(self, entries: Sequence[Entry], *, one_pool: bool) -> None:
        super().__init__(entries)
        for axis, name in enumerate(_NAMES):
            self.seconds[name] = _array([busy_s(entry, axis) for entry in entries])
            self.joules[name] = _array([busy_j(entry, axis) for entry in entries])
        own_s, own_j = [np.array([item.own_s for item in entries]), _array([item.own_j for item in entries])]
        self.seconds["rest"] = np.maximum(own_s - sum(self.seconds.values()), 0.0)
        self.joules["rest"] = np.maximum(own_j - sum(self.joules.values()), 0.0)
        clocks = ((0,), (1,), _ALL)
        self.slots = (
            *(Slot(f"{name} s", _WORK[name], own) for name, own in zip(self.seconds, clocks, strict=True)),
            *(
                Slot(f"{name} w", _WORK[name], own if one_pool else _ALL)
                for name, own in zip(self.seconds, clocks, strict=True)
            ),
        )

    def _added(self, effects: Effects) -> tuple[Array, Array]:
        more_s, more_j = self._visit(effects)
        for name, seconds in self.seconds.items():
            time, power = effects[f"{name} s"], effects[f"{name} w"]
            more_s = more_s + seconds * np.expm1(-time)
            more_j = more_j + self.joules[name] * np.expm1(-time - power)
        return more_s, more_j


class Overlapping(Claims):
    """Pools side by side, meeting at a rendezvous (``meeting``) or not; ``pooled``: their joules are told apart."""

    generating = "generation busy"

    def __init__(self, entries: Sequence[Entry], *, meeting: bool, pooled: bool) -> None:
        super().__init__(entries)
        self._meeting, self._pooled = meeting, pooled
        self._own_s = np.array([item.own_s for item in entries])
        slots = []
        if meeting:
            for axis, name in enumerate(_NAMES):
                # Where a visit hides when a pool arrived, its busy seconds tell what its clock may have cost.
                found = [item.arrivals_s[axis] if item.arrivals_s else busy_s(item, axis) for item in entries]
                self.seconds[name] = _array(found)
                slots.append(Slot(f"{name} s", _WORK[name][: 2 - axis], (axis,)))
            later = np.maximum(self.seconds["generation"], self.seconds["training"])
            self.seconds["rest"] = np.where(later > 0.0, np.maximum(self._own_s - later, 0.0), 0.0)
            slots.append(Slot("rest s", (), _ALL))
        else:
            self.seconds["update"] = self._own_s
            slots.append(Slot("update s", _WORK["in-flight"], _ALL, skewed=True))
        if pooled:
            self._add_pools(slots)
        else:
            self.seconds["update"] = self._own_s
            self.joules["update"] = _array([item.own_j for item in entries])
            slots.append(Slot("update w", _WORK["update" if meeting else "in-flight"], _ALL))
        self.slots = tuple(slots)

    def values(self, slot: Slot) -> list[float | None]:
        """As always; arrivals are followed only where they are known."""
        found = super().values(slot)
        if self._meeting and slot.name in [f"{name} s" for name in _NAMES]:
            return [
                value if item.arrivals_s else None for value, item in zip(found, self.entries, strict=True)
            ]
        return found

    def _add_pools(self, slots: list[Slot]) -> None:
        """Busy seconds are not arrivals: a reward may come before training, and no clock moves it."""
        for axis, name in enumerate(_NAMES):
            own_j = _array([busy_j(entry, axis) for entry in self.entries])
            pool_j = _array([item.pools_j[axis] if item.pools_j else None for item in self.entries])
            visit_s, visit_j = (self._valid_s, self._valid_j) if axis == 0 else (0.0, 0.0)
            known = (pool_j > 0.0) & (own_j > 0.0)
            busy, wait = f"{name} busy", f"{name} wait"
            self.seconds[busy] = _array([busy_s(entry, axis) for entry in self.entries])
            self.joules[busy] = np.where(known, own_j, 0.0)
            self.seconds[wait] = np.maximum(self.elapsed_s - self.seconds[busy] - visit_s, 0.0)
            self.joules[wait] = np.where(known, np.maximum(pool_j - own_j - visit_j, 0.0), 0.0)
            work = _WORK[name][: 2 - axis] if self._meeting else _WORK[name][:1]
            slots += [
                Slot(f"{busy} s", work, (axis,)),
                Slot(f"{busy} w", (), (axis,)),
                Slot(f"{wait} w", (), (axis, 2)),
            ]

    def _added(self, effects: Effects) -> tuple[Array, Array]:
        visit_s, visit_j = self._visit(effects)
        if self._meeting:
            one, two = (self.seconds[name] for name in _NAMES)
            later = [self.seconds[name] * np.exp(-effects[f"{name} s"]) for name in _NAMES]
            more_s = np.maximum(later[0], later[1]) - np.maximum(one, two)
            more_s = more_s + self.seconds["rest"] * np.expm1(-effects["rest s"])
        else:
            more_s = self.seconds["update"] * np.expm1(-effects["update s"])
        if not self._pooled:
            ratio = (1.0 + more_s / np.maximum(self._own_s, LEAST)) * np.exp(-effects["update w"]) - 1.0
            return more_s + visit_s, visit_j + self.joules["update"] * ratio
        more_s = more_s + visit_s
        more_j = visit_j
        for axis, name in enumerate(_NAMES):
            time, power, waiting = (effects[f"{name} {what}"] for what in ("busy s", "busy w", "wait w"))
            shorter_s = self.seconds[f"{name} busy"] * np.expm1(-time) + (visit_s if axis == 0 else 0.0)
            wait_s, wait_j = self.seconds[f"{name} wait"], self.joules[f"{name} wait"]
            waits = np.maximum(wait_s + more_s - shorter_s, 0.0) / np.maximum(wait_s, LEAST)
            more_j = more_j + self.joules[f"{name} busy"] * np.expm1(-time - power)
            more_j = more_j + np.where(wait_s > LEAST, wait_j * (waits * np.exp(-waiting) - 1.0), 0.0)
        return more_s, more_j


class Whole(Overlapping):
    """Nothing but whole updates is known of a run."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__(entries, meeting=False, pooled=False)
        self.slots = tuple(Slot(slot.name, _WORK["update"], _ALL) for slot in self.slots)


def claims_maker(entries: Sequence[Entry], mode: ExecutionMode) -> Callable[[Sequence[Entry]], Claims]:
    """How the updates of this run are claimed for: by their parts where most of them have them, else whole."""
    evidence = [item for item in entries if item.evidence]
    powered = [item for item in evidence if item.own_j is not None]
    phases = _most(evidence, lambda item: _both(item, busy_s))
    joules = _most(powered, lambda item: _both(item, busy_j)) or not powered
    if mode in (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC):
        if not (phases and joules):
            return Whole
        return lambda found: InTurn(found, one_pool=mode is ExecutionMode.COLOCATED_SYNC)
    meeting = mode is ExecutionMode.ASYNC_DRAINED
    if meeting and not 2 * sum(item.arrivals_s is not None for item in evidence) >= len(evidence) > 0:
        return Whole
    pooled = phases and joules and _most(powered, lambda item: item.pools_j and item.pools_j[0])
    return lambda found: Overlapping(found, meeting=meeting, pooled=pooled)


def _both(entry: Entry, value: Callable[[Entry, int], float | None]) -> float | None:
    found = value(entry, 0), value(entry, 1)
    return None if None in found else 1.0


def _most(entries: Sequence[Entry], value: Values) -> bool:
    return 10 * sum(value(entry) is not None for entry in entries) >= 9 * len(entries) > 0
