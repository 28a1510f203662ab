"""From the controller's plan to the clock that the GPUs should have now (colocated synchronous mode).

Generation and validation run under the generation clock, log-probs, training and a critic under the training
clock; refit, reward, checkpoint and the unmarked keep the clock they find (contract 3.7). A plan takes effect at
a generation begin. A phase that has been shorter than a second does not switch: a switch costs more than it saves,
and frequent switching has hurt collective communication.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from eerl_launch.history import History

if TYPE_CHECKING:
    from eerl_controller.records import ClockPlan

CLOCK_OF_PHASE = {
    "generation": "generation",
    "validation": "generation",
    "logprob": "training",
    "training": "training",
    "critic": "training",
}
#: Phases shorter than this keep the clock they find.
SHORTEST_SWITCHED_S = 1.0
#: A plan that exists this soon after a generation begin still takes effect at it.
GRACE_S = 1.0
#: Re-applied lock after somebody else's clock was seen: once, and then the clocks are theirs.
MAX_REAPPLIED = 1


@dataclass(slots=True)
class Steering:
    """What clock is wanted and what was last asked for; decides, and leaves the asking to the session."""

    plan: ClockPlan | None = None
    hold: bool = False
    off_reason: str | None = None
    role: str | None = None
    applied_mhz: int | None = None
    plans: History = field(default_factory=History)
    clocks: History = field(default_factory=History)
    _durations: dict[str, deque[float]] = field(default_factory=dict)

    @property
    def in_charge(self) -> bool:
        """Whether a plan may lock clocks at all."""
        return self.off_reason is None and not self.hold

    def wanted_mhz(self) -> int | None:
        """The ceiling that should hold now; None is the governor."""
        if not self.in_charge or self.plan is None or self.role is None:
            return None
        return self.plan.generation_mhz if self.role == "generation" else self.plan.training_mhz

    def phase_begins(self, phase: str) -> None:
        """A top-level phase has begun: its clock is wanted from now on, unless it is too short to switch."""
        role = CLOCK_OF_PHASE.get(phase)
        lengths = self._durations.get(phase)
        if role is not None and not (lengths and median(lengths) < SHORTEST_SWITCHED_S):
            self.role = role

    def phase_took(self, phase: str, elapsed_s: float) -> None:
        """Remember how long a phase lasts."""
        self._durations.setdefault(phase, deque(maxlen=5)).append(elapsed_s)

    def adopt(self, plan: ClockPlan, t_s: float) -> None:
        """``plan`` is in force from ``t_s`` on."""
        self.plan = plan
        self.plans.put(t_s, self.plan_id_in_force())

    def plan_id_in_force(self) -> int | None:
        """The plan that rules the clocks; None while an operator holds them or a plan with clocks cannot rule."""
        if self.hold or self.plan is None:
            return None
        return self.plan.plan_id if self.off_reason is None or self.plan.is_governor else None

    def asked(self, mhz: int | None, t_s: float) -> None:
        """The GPUs were asked for ``mhz`` (None: reset) at ``t_s``."""
        self.applied_mhz = mhz
        self.clocks.put(t_s, mhz)
        # Control that ended since the plan was adopted takes the plan out of force.
        if self.plans.values and self.plans.values[-1] != self.plan_id_in_force():
            self.plans.put(t_s, self.plan_id_in_force())

    def forget_before(self, t_s: float) -> None:
        """Drop history that no update beginning at or after ``t_s`` needs."""
        self.plans.forget_before(t_s)
        self.clocks.forget_before(t_s)
