"""What a ledger says about a run, as plain rows: seconds, joules, MHz, None where nothing is known.

Nothing is computed here that the ledger does not state; sums and estimates are in ``totals`` and ``estimate``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eerl_launch.report.power_map import PowerMap


@dataclass(slots=True)
class PhaseRow:
    """One run of a phase. ``exclusive``: part of the disjoint partition; ``a/b`` is subphase b of a.

    ``index`` is the place of its update in the run, None before the first update and after the last.
    """

    phase: str
    index: int | None = None
    update: int | None = None
    begin_s: float | None = None
    end_s: float | None = None
    elapsed_s: float | None = None
    energy_j: float | None = None
    gpus_energy_j: float | None = None
    energy_reason: str | None = None
    energy_error_j: float | None = None
    requested_mhz: float | None = None
    achieved_mhz: float | None = None
    busy_fraction: float | None = None
    capped_fraction: float | None = None
    exclusive: bool = True
    complete: bool = True


@dataclass(slots=True)
class UpdateRow:
    """One update. ``update`` is the trainer's own number, only a label: it may repeat or be missing.
    ``governor`` is None when it is not known who held the clocks (more than one plan)."""

    index: int
    update: int | None = None
    begin_s: float | None = None
    end_s: float | None = None
    elapsed_s: float | None = None
    energy_j: float | None = None
    state: str | None = None
    plan_id: int | None = None
    governor: bool | None = None
    generation_mhz: float | None = None
    training_mhz: float | None = None
    generation_achieved_mhz: float | None = None
    training_achieved_mhz: float | None = None
    generated_tokens: float | None = None
    valid_tokens: float | None = None
    longest_response_tokens: float | None = None
    responses: float | None = None
    reward: float | None = None
    online_governor_elapsed_s: float | None = None
    online_governor_energy_j: float | None = None
    governor_elapsed_s: float | None = None
    governor_energy_j: float | None = None
    inside_coverage: bool | None = None
    unattributed_s: float | None = None
    unattributed_j: float | None = None
    gpus_energy_j: float | None = None
    phases_energy_j: float | None = None
    usable: bool = True
    unusable_reason: str | None = None
    flags: tuple[str, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    pool_waits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GpuRow:
    """One GPU of the job, by UUID; ``phase_energy_j`` over exclusive phases, ``updates_energy_j`` over updates.

    ``sampled_power_w``: what the GPU alone drew, by its power samples, where the counter may cover a module.
    """

    uuid: str
    node: str | None = None
    index: int | None = None
    name: str | None = None
    scope: str = "unknown"
    mig: bool = False
    energy_j: float | None = None
    coverage: float | None = None
    pools: tuple[str, ...] = ()
    phase_energy_j: dict[str, float] = field(default_factory=dict)
    subphase_energy_j: dict[str, float] = field(default_factory=dict)
    updates_energy_j: float = 0.0
    achieved_mhz: float | None = None
    busy_fraction: float | None = None
    capped_fraction: float | None = None
    slowed_fraction: float | None = None
    notes: list[str] = field(default_factory=list)
    estimated: bool = False
    sampled_power_w: float | None = None


@dataclass(slots=True)
class NodeRow:
    """One node as Slurm names it. ``state``: joined, lost, not_measured, or silent (never heard of)."""

    node: str
    state: str = "silent"
    reason: str | None = None
    hostname: str | None = None
    source: str | None = None
    backend: str | None = None
    backend_reason: str | None = None
    driver: str | None = None
    clock_offset_s: float | None = None
    clock_offset_error_s: float | None = None


@dataclass(slots=True)
class PlanRow:
    """A plan of the controller; a clock of None is the governor."""

    plan_id: int
    t_s: float | None = None
    generation_mhz: float | None = None
    training_mhz: float | None = None
    idle_mhz: float | None = None
    state: str | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def is_governor(self) -> bool:
        """Whether every clock is left to the governor."""
        return self.generation_mhz is None and self.training_mhz is None and self.idle_mhz is None


@dataclass(slots=True)
class SwitchTotals:
    """All clock switches together: how many, how long, what failed."""

    switches: int = 0
    gpus_set: int = 0
    failures: int = 0
    latencies_s: list[float] = field(default_factory=list)
    failure_texts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class EventRow:
    """Something out of the ordinary, at ``t_s`` seconds into the run."""

    t_s: float | None
    kind: str
    node: str | None
    uuid: str | None
    text: str


@dataclass(slots=True)
class Run:
    """A whole run as the ledger has it."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    controller: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    granted: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    gpus: dict[str, GpuRow] = field(default_factory=dict)
    pools: dict[str, list[str]] = field(default_factory=dict)
    phases: list[PhaseRow] = field(default_factory=list)
    #: Lines of phases of a wide job whose joules by GPU were never told: the run was killed before.
    phases_not_by_gpu: int = 0
    updates: list[UpdateRow] = field(default_factory=list)
    plans: dict[int, PlanRow] = field(default_factory=dict)
    switches: SwitchTotals = field(default_factory=SwitchTotals)
    events: list[EventRow] = field(default_factory=list)
    event_counts: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, list[tuple[int | None, float]]] = field(default_factory=dict)
    power: PowerMap = field(default_factory=PowerMap)
    last_t_s: float = 0.0
    lines: int = 0
    damage: str | None = None

    @property
    def simulated(self) -> str | None:
        """The ``--simulate`` specification, None on real GPUs."""
        value = self.start.get("simulated")
        return str(value) if value else None

    @property
    def mode(self) -> str | None:
        """The execution mode: what the controller was given, else what the trainer said, else the policy."""
        policy = self.start.get("policy")
        asked = policy.get("mode") if isinstance(policy, dict) else None
        for value in (self.controller.get("mode"), self.trainer.get("mode"), asked):
            if isinstance(value, str) and value != "auto":
                return value.lower()
        return None

    @property
    def policy(self) -> dict[str, Any]:
        """The policy as resolved (contract 3.8); empty when the ledger has none."""
        value = self.start.get("policy")
        return value if isinstance(value, dict) else {}

    @property
    def complete(self) -> bool:
        """Whether the run was recorded from its start to its end."""
        return (
            self.damage is None
            and bool(self.start)
            and self.end is not None
            and self.end.get("status") == "complete"
        )
