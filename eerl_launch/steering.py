"""From the controller's plan to the clock that each pool should have now, and what was last asked for.

Which phase wants which clock is the clock map's to say (:mod:`eerl_launch.clock_maps`); here are the plan in force,
what stops it (an operator, a failure), and the history of both for the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eerl_launch.clock_maps import ClockMap, ColocatedClocks
from eerl_launch.history import History

if TYPE_CHECKING:
    from eerl_controller.records import ClockPlan

#: A plan that exists this soon after a border still takes effect at it.
GRACE_S = 1.0
#: Re-applied lock after somebody else's clock was seen: once, and then the clocks are theirs.
MAX_REAPPLIED = 1


@dataclass(slots=True)
class Steering:
    """What clock is wanted and what was last asked for; decides, and leaves the asking to the session."""

    map: ClockMap = field(default_factory=ColocatedClocks)
    plan: ClockPlan | None = None
    #: The plan of the coming update: clocks follow it since the refit (pause) began, it is in force after that.
    coming: ClockPlan | None = None
    hold: bool = False
    off_reason: str | None = None
    applied_mhz: dict[str, int | None] = field(default_factory=dict)
    plans: History = field(default_factory=History)
    clocks: dict[str, History] = field(default_factory=dict)

    @property
    def in_charge(self) -> bool:
        """Whether a plan may lock clocks at all."""
        return self.off_reason is None and not self.hold

    def wanted_mhz(self) -> dict[str, int | None]:
        """The ceiling that should hold now, by pool; None is the governor."""
        plan = self.coming or self.plan
        if not self.in_charge or plan is None:
            return dict.fromkeys(self.map.pools)
        return {pool: self.map.wanted_mhz(plan, pool) for pool in self.map.pools}

    def prepare(self, plan: ClockPlan) -> None:
        """Clocks follow ``plan`` from now on; it counts from the border at which it is adopted."""
        self.coming = plan

    def adopt(self, plan: ClockPlan, t_s: float) -> None:
        """``plan`` is in force from ``t_s`` on."""
        self.plan, self.coming = plan, None
        self.plans.put(t_s, self.plan_id_in_force())

    def plan_id_in_force(self) -> int | None:
        """The plan that rules the clocks; None while an operator holds them or a plan with clocks cannot rule."""
        if self.hold or self.plan is None:
            return None
        return self.plan.plan_id if self.off_reason is None or self.plan.is_governor else None

    def plan_id_asked(self) -> int | None:
        """The plan that clock orders of now come from."""
        return self.coming.plan_id if self.coming is not None else self.plan_id_in_force()

    def asked(self, pool: str, mhz: int | None, t_s: float) -> None:
        """The GPUs of a pool were asked for ``mhz`` (None: reset) at ``t_s``."""
        self.applied_mhz[pool] = mhz
        self.clocks.setdefault(pool, History()).put(t_s, mhz)
        # Control that ended since the plan was adopted takes the plan out of force.
        if self.plans.values and self.plans.values[-1] != self.plan_id_in_force():
            self.plans.put(t_s, self.plan_id_in_force())

    def forget_before(self, t_s: float) -> None:
        """Drop history that no update beginning at or after ``t_s`` needs."""
        self.plans.forget_before(t_s)
        for clocks in self.clocks.values():
            clocks.forget_before(t_s)
