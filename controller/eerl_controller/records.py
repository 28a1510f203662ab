"""What goes into the controller and what comes out: frozen, validated when made, units in every name.

Contract 3.7 of the design. Unknown is ``None``; a value that cannot be true raises :class:`RecordError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Integral, Real
from types import MappingProxyType

#: Flags a record may carry. Each says why an update is not like the others.
FLAGS = frozenset(
    {"validation", "checkpoint", "hardware_slowdown", "partial_energy", "not_honoured", "operator_hold"}
)


class RecordError(ValueError):
    """A record that cannot be true; the controller that raised it has not changed."""


class ExecutionMode(Enum):
    """How generation and training share the GPUs (paper, section 2.2)."""

    COLOCATED_SYNC = "colocated_sync"
    DISAGGREGATED_SYNC = "disaggregated_sync"
    ASYNC_DRAINED = "async_drained"
    ASYNC_INFLIGHT = "async_inflight"


#: No update of any job takes that many seconds, joules or tokens; larger numbers are errors, and would overflow.
LARGEST = 1e15


def _check(name: str, value: float | None, *, positive: bool = False) -> None:
    """Raise unless ``value`` is None or a possible number that is not negative (or is positive)."""
    if value is None:
        return
    if value.__class__ is float and 0.0 < value <= LARGEST:  # nearly all there are, in a long ledger
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RecordError(f"{name} must be a number or None, not {value!r}")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        wanted = "a positive finite number" if positive else "a finite number, not negative"
        raise RecordError(f"{name} must be {wanted}, not {value!r}")
    if value > LARGEST:
        raise RecordError(f"{name} must be at most {LARGEST:g}, not {value!r}")


def _check_parts(name: str, parts: object, kind: type) -> None:
    """Raise unless ``parts`` maps names to records of this kind."""
    if not isinstance(parts, Mapping):
        raise RecordError(f"{name} must map names to {kind.__name__}, not {parts!r}")
    for key, part in parts.items():
        if not isinstance(key, str) or not isinstance(part, kind):
            raise RecordError(f"{name} must map names to {kind.__name__}, not {key!r} to {part!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecord:
    """One phase of an update: seconds and joules (all allocated GPUs, or the phase's own pool when async)."""

    elapsed_s: float | None = None
    energy_j: float | None = None

    def __post_init__(self) -> None:
        _check("phase elapsed_s", self.elapsed_s)
        _check("phase energy_j", self.energy_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """One pool in an update; ``achieved_mhz`` is the mean over busy samples of the pool's own phase."""

    requested_mhz: int | None = None
    achieved_mhz: float | None = None
    energy_j: float | None = None
    busy_s: float | None = None
    wait_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("requested_mhz", "achieved_mhz", "energy_j", "busy_s", "wait_s"):
            _check(f"pool {name}", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRecord:
    """One update as it was measured: seconds, joules, MHz, token counts. Anything unknown is None.

    ``phases`` is a disjoint partition of what ran; ``plan_id`` is None when more than one plan was in force.
    """

    update: int
    plan_id: int | None = None
    elapsed_s: float | None = None
    energy_j: float | None = None
    phases: Mapping[str, PhaseRecord] = field(default_factory=dict)
    pools: Mapping[str, PoolRecord] = field(default_factory=dict)
    generated_tokens: int | None = None
    longest_generated_tokens: int | None = None
    valid_tokens: int | None = None
    longest_consumed_tokens: int | None = None
    policy_age_max: float | None = None
    oldest_request_plan_id: int | None = None
    generation_arrival_s: float | None = None
    training_arrival_s: float | None = None
    generation_busy_fraction: float | None = None
    training_busy_fraction: float | None = None
    remaining_updates: int | None = None
    remaining_s: float | None = None
    reward: float | None = None
    flags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.update, bool) or not isinstance(self.update, Integral):
            raise RecordError(f"update must be an integer, not {self.update!r}")
        for name in ("plan_id", "oldest_request_plan_id"):
            plan_id = getattr(self, name)
            if plan_id is not None and (isinstance(plan_id, bool) or not isinstance(plan_id, Integral)):
                raise RecordError(f"{name} must be an integer or None, not {plan_id!r}")
        _check("elapsed_s", self.elapsed_s, positive=True)
        for name in (
            "energy_j",
            "generated_tokens",
            "longest_generated_tokens",
            "valid_tokens",
            "longest_consumed_tokens",
            "policy_age_max",
            "generation_arrival_s",
            "training_arrival_s",
            "generation_busy_fraction",
            "training_busy_fraction",
            "remaining_updates",
            "remaining_s",
        ):
            _check(name, getattr(self, name))
        if self.reward is not None:
            # A reward may be negative; only its being a number is checked.
            _check("reward", abs(self.reward) if isinstance(self.reward, Real) else self.reward)
        _check_parts("phases", self.phases, PhaseRecord)
        _check_parts("pools", self.pools, PoolRecord)
        if isinstance(self.flags, str) or not isinstance(self.flags, (frozenset, set, list, tuple)):
            raise RecordError(f"flags must be a set of names, not {self.flags!r}")
        unknown = sorted(str(flag) for flag in self.flags if flag not in FLAGS)
        if unknown:
            raise RecordError(f"unknown flags {unknown}; known are {sorted(FLAGS)}")
        object.__setattr__(self, "flags", frozenset(self.flags))
        object.__setattr__(self, "phases", MappingProxyType(dict(self.phases)))
        object.__setattr__(self, "pools", MappingProxyType(dict(self.pools)))


@dataclass(frozen=True, slots=True)
class ClockGrid:
    """The clocks that can be locked, in MHz ascending, and the clock the governor runs at under load."""

    supported_mhz: Sequence[int]
    governor_mhz: int

    def __post_init__(self) -> None:
        try:
            clocks = tuple(sorted({int(mhz) for mhz in self.supported_mhz}))
        except (TypeError, ValueError):
            clocks = ()
        if not clocks or clocks[0] <= 0:
            raise RecordError(f"supported_mhz needs at least one positive clock, not {self.supported_mhz!r}")
        if (
            isinstance(self.governor_mhz, bool)
            or not isinstance(self.governor_mhz, Integral)
            or self.governor_mhz <= 0
        ):
            raise RecordError(f"governor_mhz must be a positive whole number, not {self.governor_mhz!r}")
        object.__setattr__(self, "supported_mhz", clocks)
        object.__setattr__(self, "governor_mhz", int(self.governor_mhz))


@dataclass(frozen=True, slots=True)
class ClockPlan:
    """The whole wish: a clock ceiling per phase in MHz, None meaning the governor.

    ``reason`` is an Enum member, ``note`` the numbers that decided, in words.
    """

    plan_id: int
    generation_mhz: int | None
    training_mhz: int | None
    idle_mhz: int | None
    reason: Enum
    note: str = ""

    @property
    def is_governor(self) -> bool:
        """Whether every clock is left to the governor."""
        return self.generation_mhz is None and self.training_mhz is None and self.idle_mhz is None
