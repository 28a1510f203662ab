"""The clocks a plan may ask for: pairs of settings, snapped to the grid, inside the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eerl_controller.records import ClockGrid, ClockPlan, UpdateRecord
from eerl_controller.settings import Settings
from eerl_controller.states import Reason


class Pair(NamedTuple):
    """Clock ceilings of generation and training in MHz; None is the governor.

    ``idle_mhz`` is the clock of a separate pool while it waits; None leaves waiting to the governor too.
    """

    generation_mhz: int | None
    training_mhz: int | None
    idle_mhz: int | None = None

    @property
    def phases(self) -> tuple[int | None, int | None]:
        """The two clocks that phases run under, without the idle clock."""
        return self.generation_mhz, self.training_mhz

    @property
    def is_governor(self) -> bool:
        """Whether every clock is left to the governor."""
        return self.phases == (None, None) and self.idle_mhz is None

    @property
    def is_lowered(self) -> bool:
        """Whether a phase runs under a lowered clock, not only waiting pools."""
        return self.phases != (None, None)

    def with_clock(self, axis: int, mhz: int | None) -> Pair:
        """The same wish with another clock for generation (axis 0) or training (axis 1)."""
        return self._replace(generation_mhz=mhz) if axis == 0 else self._replace(training_mhz=mhz)

    def __str__(self) -> str:
        names = ["governor" if mhz is None else str(mhz) for mhz in self.phases]
        idle = "" if self.idle_mhz is None else f", idle {self.idle_mhz}"
        return f"{names[0]}/{names[1]}{idle}" + ("" if self.is_governor else " MHz")


GOVERNOR = Pair(None, None)


def requested(record: UpdateRecord) -> Pair:
    """The clocks of an update that ran under more than one plan, as far as its pools tell."""
    found = [record.pools.get(name) for name in ("generation", "training")]
    mhz = [pool.requested_mhz if pool is not None else None for pool in found]
    return Pair(mhz[0], mhz[1])


def allowed_clocks(grid: ClockGrid, settings: Settings) -> tuple[int, ...]:
    """The supported clocks inside ``min_mhz`` and ``max_mhz`` in MHz, ascending; perhaps none."""
    low, high = settings.min_mhz or 0, settings.max_mhz or max(grid.supported_mhz)
    return tuple(mhz for mhz in grid.supported_mhz if low <= mhz <= high)


def snap(mhz: float, clocks: Sequence[int]) -> int:
    """The nearest of ``clocks`` (the lower of two equally near). Raises ValueError when there are none."""
    if not clocks:
        raise ValueError("no supported clock lies within min_mhz and max_mhz")
    return min(clocks, key=lambda clock: (abs(clock - mhz), clock))


def raised(mhz: int, step_mhz: int, clocks: Sequence[int], ceiling_mhz: int) -> int | None:
    """``mhz`` a nominal step higher, at least one supported clock; None (governor) from the ceiling on."""
    higher = [clock for clock in clocks if mhz < clock < ceiling_mhz]
    if not higher or mhz + step_mhz >= ceiling_mhz:
        return None
    return snap(mhz + step_mhz, higher)


def lowered(mhz: int | None, step_mhz: int, clocks: Sequence[int], ceiling_mhz: int) -> int | None:
    """A nominal step lower, at least one supported clock; unchanged when there is nothing lower."""
    top = ceiling_mhz if mhz is None else mhz
    lower = [clock for clock in clocks if clock < top]
    return snap(top - step_mhz, lower) if lower else mhz


def reachable(pair: Pair, ceilings_mhz: tuple[float, float]) -> Pair:
    """The pair with every clock that the governor does not reach anyway left to the governor (field case C01)."""
    generation_mhz, training_mhz = (
        None if mhz is None or mhz >= ceiling else mhz
        for mhz, ceiling in zip(pair.phases, ceilings_mhz, strict=True)
    )
    return Pair(generation_mhz, training_mhz, pair.idle_mhz)


def idle_clock(grid: ClockGrid, settings: Settings) -> int | None:
    """The idle clock in MHz, snapped to the allowed ones; None when off, or when that would lower nothing."""
    clocks = allowed_clocks(grid, settings)
    if settings.idle_mhz is None or not clocks:
        return None
    idle_mhz = snap(settings.idle_mhz, clocks)
    return idle_mhz if idle_mhz < grid.governor_mhz else None


class PlanBook:
    """Issues plans and remembers what each id meant, because records name the plan by its id."""

    #: Records may lag their plan by an update or two; ids older than this many plans are no longer known.
    MEMORY = 64

    def __init__(self, reason: Reason, note: str, first: Pair = GOVERNOR) -> None:
        self._pairs: dict[int, Pair] = {0: first}
        self.plan = ClockPlan(0, *first, reason, note)

    @property
    def pair(self) -> Pair:
        """The clocks of the plan wished for now."""
        return Pair(self.plan.generation_mhz, self.plan.training_mhz, self.plan.idle_mhz)

    def wish(self, pair: Pair, reason: Reason, note: str) -> ClockPlan:
        """The plan for these clocks: a new id when the clocks change, the same id with a fresh reason if not."""
        plan_id = self.plan.plan_id
        if pair != self.pair:
            plan_id += 1
            self._pairs[plan_id] = pair
            self._pairs.pop(plan_id - self.MEMORY, None)
        self.plan = ClockPlan(plan_id, *pair, reason, note)
        return self.plan

    def was_issued(self, plan_id: int) -> bool:
        """Whether a plan of this id exists."""
        return 0 <= plan_id <= self.plan.plan_id

    def pair_of(self, plan_id: int | None) -> Pair | None:
        """The clocks under which a record ran; None when mixed or too old."""
        return None if plan_id is None else self._pairs.get(plan_id)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pairs": [[plan_id, *pair] for plan_id, pair in self._pairs.items()],
            "reason": self.plan.reason.value,
            "note": self.plan.note,
            "plan_id": self.plan.plan_id,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._pairs = {plan_id: Pair(*clocks) for plan_id, *clocks in values["pairs"]}
        pair = self._pairs[values["plan_id"]]
        self.plan = ClockPlan(values["plan_id"], *pair, Reason(values["reason"]), values["note"])
