"""The updates of a run as hindsight sees them: what they took, their work, and the clocks they ran under."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eerl_controller.clocks import Pair, requested
from eerl_controller.records import ExecutionMode, UpdateRecord
from eerl_controller.settling import tells_at_once
from eerl_controller.work import Unusable, lost_between, observe_work, phase_totals, unusable_reason

#: The first update after a change of clocks is no evidence of either (Table 3).
SETTLE_UPDATES = 1
#: Under these flags clocks were not what was asked for: nothing is claimed.
UNCLAIMED = frozenset({"operator_hold", "not_honoured"})
#: A clock this near to the one asked for is that one; a hot GPU that reaches less would have run the governor there.
REACHED = 0.98


@dataclass(frozen=True, slots=True)
class Entry:
    """One update. ``place`` is its place in the run, ``pair`` its clocks, as far as they are known.

    ``evidence``: settled, of one plan, with token counts; ``mixed``: of more than one, ``pair`` is what pools tell.
    ``fresh``: evidence though it is the first under its clocks, being so long (``settling``).
    ``blame`` is how much of what its clocks usually do may be claimed: all (1), nothing (0), or, when the GPUs were
    slowed by heat and the governor would have been slower too, something between nothing and all (0.5).
    ``energy_j`` is None when not wholly measured. ``phases`` are without validation and checkpoint.
    """

    place: float
    pair: Pair
    evidence: bool
    mixed: bool
    blame: float
    elapsed_s: float
    energy_j: float | None
    #: How many like updates in a row this one stands for, with their means.
    updates: int
    own_s: float
    own_j: float | None
    phases: Mapping[str, tuple[float, float | None]]
    counts: Mapping[str, float]
    arrivals_s: tuple[float, float] | None
    #: Joules of either pool, generation first, where pools are told apart.
    pools_j: tuple[float, float] | None
    before_valid: float | None
    #: Validation runs under generation's clock (contract 3.7): its seconds, and joules where known.
    validation: tuple[float, float | None]
    fresh: bool = False
    #: Of several updates: what the mean of logs is more than the log of the mean, by count and part.
    bends: Mapping[str, float] = field(default_factory=dict)

    @property
    def claimed(self) -> float:
        """How much of its clocks' effect, and of their change, is claimed."""
        return 0.0 if self.pair.is_governor and not self.fresh else self.blame

    def to_list(self) -> list[Any]:
        """Ready for JSON; :meth:`from_list` reads it back exactly."""
        return [
            self.place,
            list(self.pair),
            self.evidence,
            self.mixed,
            self.blame,
            self.elapsed_s,
            self.energy_j,
            self.updates,
            self.own_s,
            self.own_j,
            {name: list(values) for name, values in self.phases.items()},
            dict(self.counts),
            list(self.arrivals_s) if self.arrivals_s else None,
            list(self.pools_j) if self.pools_j else None,
            self.before_valid,
            list(self.validation),
            self.fresh,
            dict(self.bends),
        ]

    @classmethod
    def from_list(cls, values: list[Any]) -> Entry:
        """What :meth:`to_list` wrote."""
        place, pair, evidence, mixed, blame, elapsed_s, energy_j, updates, own_s, own_j, *rest = values
        phases, counts, arrivals, pools, before, validation, fresh, bends = rest
        return cls(
            place,
            Pair(*pair),
            evidence,
            mixed,
            blame,
            elapsed_s,
            energy_j,
            updates,
            own_s,
            own_j,
            {name: (pair[0], pair[1]) for name, pair in phases.items()},
            counts,
            (arrivals[0], arrivals[1]) if arrivals else None,
            (pools[0], pools[1]) if pools else None,
            before,
            (validation[0], validation[1]),
            fresh,
            bends,
        )


class Reader:
    """Makes entries of records in the order they came; remembers how long a plan has been in force."""

    def __init__(self, mode: ExecutionMode) -> None:
        self._mode = mode
        self._place = 0.0
        self._last_update: int | None = None
        self._last_plan: int | None = None
        self._run_length = 0
        self._valid: float | None = None

    def read(self, record: UpdateRecord, pair: Pair | None) -> Entry | None:
        """The update's entry; ``pair`` is its plan's, None when that is not known. None without a measured time."""
        self._place += 1.0 + lost_between(self._last_update, int(record.update))
        self._last_update = int(record.update)
        same = record.plan_id is not None and record.plan_id == self._last_plan
        self._run_length = self._run_length + 1 if same else 1
        first = self._last_plan is None and self._place <= 1.0
        self._last_plan = None if record.plan_id is None else int(record.plan_id)
        before, self._valid = self._valid, float(record.valid_tokens) if record.valid_tokens else None
        if record.elapsed_s is None:
            return None
        unusable = unusable_reason(record)
        fresh = self._run_length <= SETTLE_UPDATES and record.plan_id != 0 and tells_at_once(record)
        settled = (self._run_length > SETTLE_UPDATES or fresh or record.plan_id == 0) and not first
        if self._mode is ExecutionMode.ASYNC_INFLIGHT:
            settled = settled and self._carries_only_its_own(record)
        observation = observe_work(record) if record.elapsed_s and unusable in (None, *_TIMED) else None
        known = pair if pair is not None else requested(record)
        evidence = unusable is None and pair is not None and settled and observation is not None
        partial = "partial_energy" in record.flags
        return Entry(
            place=self._place,
            pair=known,
            evidence=evidence,
            mixed=pair is None,
            blame=0.0 if observation is None else _blame(record, known),
            elapsed_s=float(record.elapsed_s),
            energy_j=None if partial or record.energy_j is None else float(record.energy_j),
            updates=1,
            own_s=observation.elapsed_s if observation else float(record.elapsed_s),
            own_j=observation.energy_j if observation else None,
            phases=observation.phases if observation else {},
            counts=observation.counts if observation else {},
            arrivals_s=observation.arrivals_s if observation else None,
            pools_j=None if partial else _pools_j(record),
            before_valid=before,
            validation=phase_totals(record).get("validation", (0.0, None)),
            fresh=evidence and fresh,
        )

    def _carries_only_its_own(self, record: UpdateRecord) -> bool:
        if record.oldest_request_plan_id is not None:
            return record.oldest_request_plan_id == record.plan_id
        age = math.ceil(record.policy_age_max) if record.policy_age_max is not None else 1
        return record.plan_id == 0 or self._run_length > SETTLE_UPDATES + age

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "place": self._place,
            "last_update": self._last_update,
            "last_plan": self._last_plan,
            "run_length": self._run_length,
            "valid": self._valid,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._place, self._last_update = values["place"], values["last_update"]
        self._last_plan, self._run_length = values["last_plan"], values["run_length"]
        self._valid = values["valid"]


#: Of these updates the time is known, and the clocks that it ran under.
_TIMED = (Unusable.MIXED_PLANS, Unusable.MISSING_COUNTS, Unusable.HARDWARE_SLOWDOWN)


def _pools_j(record: UpdateRecord) -> tuple[float, float] | None:
    found = [record.pools.get(name) for name in ("generation", "training")]
    joules = [pool.energy_j if pool is not None else None for pool in found]
    return None if joules[0] is None or joules[1] is None else (float(joules[0]), float(joules[1]))


def _blame(record: UpdateRecord, pair: Pair) -> float:
    if record.flags & UNCLAIMED:
        return 0.0
    if "hardware_slowdown" not in record.flags:
        return 1.0
    for name, mhz in zip(("generation", "training"), pair.phases, strict=True):
        pool = record.pools.get(name)
        if mhz is not None and (pool is None or not pool.achieved_mhz or pool.achieved_mhz < REACHED * mhz):
            return 0.0
    return 0.5


def with_idle(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, those of mixed plans with the idle clock of the plan that they trained under: the nearest one with
    that training clock, as what is next to an entry may stand for updates before and after it.
    """
    whole: dict[int | None, list[Entry]] = {}
    for entry in entries:
        if not entry.mixed:
            whole.setdefault(entry.pair.training_mhz, []).append(entry)
    found = list(entries)
    for i, entry in enumerate(entries):
        if entry.mixed:
            same = reversed(whole.get(entry.pair.training_mhz, []))
            nearest = min(same, key=lambda item: abs(item.place - entry.place), default=None)
            idle = nearest.pair.idle_mhz if nearest else None
            found[i] = replace(entry, pair=entry.pair._replace(idle_mhz=idle))
    return found
