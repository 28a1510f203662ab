"""Which clock of a plan a pool should have now, by execution mode (contract 3.7). No I/O.

Generation and validation run under the generation clock, log-probs, training and a critic under the training
clock; refit, reward, checkpoint and the unmarked keep the clock they find. A pool of its own that waits for the
other gets the idle clock where the wait repays two switches, and has its own clock back before its phase begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from eerl_launch.modes import REFIT, ROLE_OF_PHASE, Mode
from eerl_launch.pools import ALL, ROLES

if TYPE_CHECKING:
    from eerl_controller.records import ClockPlan

#: Phases shorter than this keep the clock they find, and waits shorter than this are not worth the idle clock.
SHORTEST_SWITCHED_S = 1.0
_REMEMBERED = 5


def _clock_of(plan: ClockPlan, role: str) -> int | None:
    return plan.generation_mhz if role == "generation" else plan.training_mhz


class ClockMap(ABC):
    """Follows the phases of a run; all times are run time in seconds."""

    #: What gets a clock of its own.
    pools: tuple[str, ...] = ROLES

    @abstractmethod
    def begins(self, phase: str, t_s: float) -> None:
        """A top-level phase has begun."""

    @abstractmethod
    def ends(self, phase: str, t_s: float, took_s: float) -> None:
        """A top-level phase has ended after ``took_s`` seconds."""

    @abstractmethod
    def wanted_mhz(self, plan: ClockPlan, pool: str) -> int | None:
        """The ceiling that the pool should have now; None is the governor."""


class ColocatedClocks(ClockMap):
    """All GPUs do both. A phase that has been shorter than a second does not switch: a switch costs more than it
    saves, and frequent switching has hurt collective communication."""

    pools = (ALL,)

    def __init__(self) -> None:
        self._role: str | None = None
        self._durations: dict[str, deque[float]] = {}

    def begins(self, phase: str, t_s: float) -> None:
        """The phase's clock is wanted from now on, unless it is too short to switch."""
        role = ROLE_OF_PHASE.get(phase)
        lengths = self._durations.get(phase)
        if role is not None and not (lengths and median(lengths) < SHORTEST_SWITCHED_S):
            self._role = role

    def ends(self, phase: str, t_s: float, took_s: float) -> None:
        """Remember how long a phase lasts."""
        self._durations.setdefault(phase, deque(maxlen=_REMEMBERED)).append(took_s)

    def wanted_mhz(self, plan: ClockPlan, pool: str) -> int | None:
        """The clock of the phase that switched last; the governor's before the first."""
        return None if self._role is None else _clock_of(plan, self._role)


class Wait:
    """A pool's waiting: whether it waits now, and how long it usually does."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._lasted_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.idles = False

    def begin(self, t_s: float) -> None:
        """The pool has nothing to do from now on; it idles if waits are known to be long enough."""
        if self._since_s is None:
            self._since_s = t_s
            self.idles = bool(self._lasted_s) and median(self._lasted_s) >= SHORTEST_SWITCHED_S

    def end(self, t_s: float) -> None:
        """The pool works, or is about to."""
        if self._since_s is not None:
            self._lasted_s.append(max(0.0, t_s - self._since_s))
            self._since_s, self.idles = None, False


class _SeparateClocks(ClockMap):
    """Two pools, each with its own clock, or the idle clock while it waits."""

    def __init__(self) -> None:
        self._waits = {role: Wait() for role in ROLES}
        # A reward model may run on the generation pool: where rewards follow generation, waiting begins after
        # them, and they never run under the idle clock.
        self._reward_follows = False
        self._reward_seen = False

    def wanted_mhz(self, plan: ClockPlan, pool: str) -> int | None:
        """The pool's own clock; the plan's idle clock while it waits and the plan has one."""
        if self._waits[pool].idles and plan.idle_mhz is not None:
            return plan.idle_mhz
        return _clock_of(plan, pool)

    def _generated(self, t_s: float) -> None:
        """Generation has ended; its pool waits, after the rewards if there usually are some."""
        self._reward_seen = False
        if not self._reward_follows:
            self._waits["generation"].begin(t_s)

    def _trains(self) -> None:
        """The rewards of this round are over, if there were any."""
        self._reward_follows = self._reward_seen

    def _rewards(self, t_s: float) -> None:
        self._reward_seen = True
        self._waits["generation"].end(t_s)


class DisaggregatedClocks(_SeparateClocks):
    """The pools take turns. A wait ends with the predecessor's phase, so that the clock is there in time."""

    def __init__(self) -> None:
        super().__init__()
        self._between = False  # generation has ended, training has not

    def begins(self, phase: str, t_s: float) -> None:
        """Own phases end a wait in any case; generation sends the training pool waiting."""
        role = ROLE_OF_PHASE.get(phase)
        if role is not None:
            self._waits[role].end(t_s)
        if phase == "generation":
            self._between = False
            self._waits["training"].begin(t_s)
        elif role == "training":
            self._trains()
        elif phase == "reward" and self._between:
            self._rewards(t_s)

    def ends(self, phase: str, t_s: float, took_s: float) -> None:
        """The end of generation calls the training pool, the end of training the generation pool."""
        if phase == "generation":
            self._between = True
            self._waits["training"].end(t_s)
            self._generated(t_s)
        elif phase == "training":
            self._between = False
            self._waits["generation"].end(t_s)
        elif phase == "reward" and self._between:
            self._waits["generation"].begin(t_s)


class DrainedClocks(_SeparateClocks):
    """Both pools work at the same time and meet at the refit: who comes first waits for the other."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived: set[str] = set()

    def begins(self, phase: str, t_s: float) -> None:
        """Own phases and the refit end a wait."""
        role = ROLE_OF_PHASE.get(phase)
        if role is not None:
            self._arrived.discard(role)
            self._waits[role].end(t_s)
        if phase == REFIT:
            self._arrived.clear()
            for wait in self._waits.values():
                wait.end(t_s)
        elif role == "training" and "generation" not in self._arrived:
            self._trains()
        elif phase == "reward" and "generation" in self._arrived:
            self._rewards(t_s)

    def ends(self, phase: str, t_s: float, took_s: float) -> None:
        """A pool that has ended its phase waits, unless the other one waits for it."""
        if phase not in ROLES:
            if phase == "reward" and "generation" in self._arrived and "training" not in self._arrived:
                self._waits["generation"].begin(t_s)
            return
        self._arrived.add(phase)
        if len(self._arrived) == len(ROLES):
            return
        if phase == "generation":
            self._generated(t_s)
        else:
            self._waits["training"].begin(t_s)


class InFlightClocks(_SeparateClocks):
    """Generation never waits; clocks change with the plan only, which changes in the refit pause."""

    def begins(self, phase: str, t_s: float) -> None:
        """No phase switches."""

    def ends(self, phase: str, t_s: float, took_s: float) -> None:
        """No phase switches."""


def clock_map(mode: Mode) -> ClockMap:
    """The map of an execution mode."""
    kinds: dict[Mode, type[ClockMap]] = {
        Mode.COLOCATED_SYNC: ColocatedClocks,
        Mode.DISAGGREGATED_SYNC: DisaggregatedClocks,
        Mode.ASYNC_DRAINED: DrainedClocks,
        Mode.ASYNC_INFLIGHT: InFlightClocks,
    }
    return kinds[mode]()
