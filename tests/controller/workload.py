"""A small stochastic model of colocated RL, to judge the controller with; it never configures it.

Time of a phase is 1 - c + c * ceiling / clock of its governor time, c being the share bound by the clock. Power is
static plus dynamic, the latter by V^2 f with a voltage that is flat below a knee. Noise is correlated from update
to update; single updates straggle; the first ones are slow; responses grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from eerl_controller import ClockGrid, ClockPlan, Controller, PhaseRecord, PoolRecord, UpdateRecord

GRID = ClockGrid(range(345, 1981, 15), 1980)


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds under the governor by work, share bound by the clock, and power of all GPUs in watts."""

    per_generated_s: float = 0.0
    per_longest_s: float = 0.0
    per_valid_s: float = 0.0
    fixed_s: float = 0.0
    clock_bound: float = 0.5
    static_w: float = 2000.0
    dynamic_w: float = 3000.0
    #: The clock that the power cap lets the governor reach, MHz; None: its own.
    capped_mhz: int | None = None

    def governor_s(self, generated: float, longest: float, valid: float) -> float:
        """Seconds under the governor."""
        return (
            self.per_generated_s * generated
            + self.per_longest_s * longest
            + self.per_valid_s * valid
            + self.fixed_s
        )


def relative_voltage(mhz: float, top_mhz: float) -> float:
    """Voltage relative to the top: linear above a knee at 0.65 of the top clock, flat below."""
    return max(mhz / top_mhz, 0.65) * 0.6 + 0.4


@dataclass(frozen=True, slots=True)
class Workload:
    """One RL job on GPUs of one kind."""

    name: str
    generation: Phase
    training: Phase
    logprob: Phase
    rest_s: float = 4.0
    rest_w: float = 2200.0
    responses: int = 512
    mean_tokens: float = 1500.0
    spread: float = 0.12
    growth_per_update: float = 0.0
    limit_tokens: int = 4096
    valid_share: float = 1.0
    noise_sd: float = 0.01
    correlation: float = 0.4
    straggler_share: float = 0.0
    straggler_factor: float = 4.0
    slow_start: tuple[float, ...] = (6.0, 1.5)
    grid: ClockGrid = GRID


@dataclass
class Truth:
    """Totals of a finished run, beside what the governor would have used for the same work without noise."""

    elapsed_s: float = 0.0
    energy_j: float = 0.0
    governor_s: float = 0.0
    governor_j: float = 0.0
    plans: list[ClockPlan] = field(default_factory=list)
    records: list[UpdateRecord] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    @property
    def saving(self) -> float:
        """Saved energy as a fraction."""
        return 1.0 - self.energy_j / self.governor_j

    @property
    def loss(self) -> float:
        """Lost throughput as a fraction."""
        return 1.0 - self.governor_s / self.elapsed_s


class Job:
    """A running job: makes the record of one update after the other under given clocks."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.rng = np.random.default_rng(seed)
        self.done = 0
        self.level = 0.0
        self.truth = Truth()

    def _phase(self, phase: Phase, base_s: float, mhz: int | None) -> tuple[float, float, float]:
        """Seconds, joules and achieved MHz of a phase at a clock (None: governor)."""
        top = float(self.workload.grid.governor_mhz)
        ceiling = float(phase.capped_mhz or top)
        clock = ceiling if mhz is None else min(float(mhz), ceiling)
        seconds = base_s * (1.0 - phase.clock_bound + phase.clock_bound * ceiling / clock)
        voltage = relative_voltage(clock, top)
        # Work waits for memory part of the time: dynamic power follows the busy part of the phase.
        watts = phase.static_w + phase.dynamic_w * voltage * voltage * clock / top
        return seconds, seconds * watts, clock

    def update(
        self, generation_mhz: int | None, training_mhz: int | None, plan_id: int | None, **extra: object
    ) -> UpdateRecord:
        """Run one update."""
        w = self.workload
        growth = math.exp(w.growth_per_update * self.done)
        mean = min(w.mean_tokens * growth * math.exp(self.rng.normal(0.0, w.spread)), w.limit_tokens * 0.9)
        generated = mean * w.responses
        longest = min(w.limit_tokens, mean * (2.2 + 0.3 * self.rng.random()))
        valid = generated * w.valid_share
        self.level = w.correlation * self.level + self.rng.normal(
            0.0, w.noise_sd * math.sqrt(1.0 - w.correlation**2)
        )
        slow = math.exp(self.level)
        if self.done < len(w.slow_start):
            slow *= w.slow_start[self.done]
        straggling = 1.0
        if self.rng.random() < w.straggler_share:
            straggling = w.straggler_factor
        phases: dict[str, PhaseRecord] = {}
        pools: dict[str, PoolRecord] = {}
        totals = np.zeros(4)
        for name, phase, mhz in (
            ("generation", w.generation, generation_mhz),
            ("logprob", w.logprob, training_mhz),
            ("training", w.training, training_mhz),
        ):
            base_s = phase.governor_s(generated, longest, valid)
            if name == "generation":
                base_s *= straggling
            wobble = slow * math.exp(self.rng.normal(0.0, w.noise_sd / 3))
            seconds, joules, achieved = self._phase(phase, base_s, mhz)
            plain_s, plain_j, _ = self._phase(phase, base_s, None)
            joules *= math.exp(self.rng.normal(0.0, w.noise_sd / 3))
            totals += wobble * np.array([seconds, joules, plain_s, plain_j])
            phases[name] = PhaseRecord(elapsed_s=seconds * wobble, energy_j=joules * wobble)
            if name != "logprob":
                pools[name] = PoolRecord(requested_mhz=mhz, achieved_mhz=achieved)
        rest_s = w.rest_s * math.exp(self.rng.normal(0.0, 0.05))
        phases["refit"] = PhaseRecord(elapsed_s=rest_s / 2, energy_j=rest_s / 2 * w.rest_w)
        totals += np.array([rest_s, rest_s * w.rest_w] * 2)
        self.done += 1
        truth = self.truth
        truth.elapsed_s += float(totals[0])
        truth.energy_j += float(totals[1])
        truth.governor_s += float(totals[2])
        truth.governor_j += float(totals[3])
        fields: dict[str, object] = {
            "update": self.done,
            "plan_id": plan_id,
            "elapsed_s": float(totals[0]),
            "energy_j": float(totals[1]),
            "phases": phases,
            "pools": pools,
            "generated_tokens": int(generated),
            "longest_generated_tokens": int(longest),
            "valid_tokens": int(valid),
        }
        fields.update(extra)
        return UpdateRecord(**fields)  # type: ignore[arg-type]

    def expected(self, generation_mhz: int | None, training_mhz: int | None) -> tuple[float, float]:
        """Loss and saving of fixed clocks without noise, as fractions, for mean work."""
        w = self.workload
        generated = w.mean_tokens * w.responses
        longest, valid = min(w.limit_tokens, 2.35 * w.mean_tokens), generated * w.valid_share
        totals = np.array([w.rest_s, w.rest_s * w.rest_w] * 2, dtype=float)
        for phase, mhz in (
            (w.generation, generation_mhz),
            (w.logprob, training_mhz),
            (w.training, training_mhz),
        ):
            base_s = phase.governor_s(generated, longest, valid)
            totals += np.array([*self._phase(phase, base_s, mhz)[:2], *self._phase(phase, base_s, None)[:2]])
        return 1.0 - totals[2] / totals[0], 1.0 - totals[1] / totals[3]

    def oracle(self, allowed_loss: float = 0.02) -> tuple[float, int, int]:
        """Saving of the best fixed pair within the allowed loss, and its clocks in MHz."""
        best = (0.0, self.workload.grid.governor_mhz, self.workload.grid.governor_mhz)
        for generation in self.workload.grid.supported_mhz[::2]:
            for training in self.workload.grid.supported_mhz[::2]:
                loss, saving = self.expected(generation, training)
                if loss <= allowed_loss and saving > best[0]:
                    best = (saving, generation, training)
        return best


def play(
    controller: Controller,
    job: Job,
    updates: int,
    *,
    lag: int = 0,
    edit: Callable[[int], Mapping[str, object]] | None = None,
    tell_remaining: bool = False,
) -> Truth:
    """Run a job under the controller; a plan takes effect ``lag`` updates late. ``edit`` changes records by index."""
    waiting = [controller.plan] * (lag + 1)
    for index in range(updates):
        plan = waiting[0]
        extra: dict[str, object] = dict(edit(index)) if edit else {}
        if tell_remaining:
            extra.setdefault("remaining_updates", updates - index - 1)
        record = job.update(plan.generation_mhz, plan.training_mhz, plan.plan_id, **extra)
        waiting = [*waiting[1:], controller.observe(record)]
        job.truth.plans.append(plan)
        job.truth.records.append(record)
        job.truth.states.append(controller.state.value)
    return job.truth


#: Memory-bound generation, compute-bound training: the paper's usual picture on H100.
BALANCED = Workload(
    "balanced",
    generation=Phase(per_generated_s=4e-5, per_longest_s=8e-3, clock_bound=0.2, dynamic_w=3500.0),
    training=Phase(per_valid_s=4e-5, clock_bound=0.3, dynamic_w=8000.0),
    logprob=Phase(per_valid_s=8e-6, clock_bound=0.5, dynamic_w=7500.0),
)
#: Long generation with a tail, little training.
LONG_GENERATION = Workload(
    "long generation",
    generation=Phase(per_generated_s=6e-5, per_longest_s=4e-2, clock_bound=0.1, dynamic_w=3000.0),
    training=Phase(per_valid_s=1.5e-5, clock_bound=0.6, dynamic_w=8500.0),
    logprob=Phase(per_valid_s=4e-6, clock_bound=0.6, dynamic_w=7500.0),
    noise_sd=0.015,
    straggler_share=0.02,
    mean_tokens=2500.0,
    limit_tokens=8192,
)
#: Training under a power cap, growing responses.
CAPPED_GROWING = Workload(
    "capped, growing",
    generation=Phase(per_generated_s=3e-5, per_longest_s=8e-3, clock_bound=0.15, dynamic_w=3500.0),
    training=Phase(per_valid_s=5e-5, clock_bound=0.35, dynamic_w=9000.0, capped_mhz=1620),
    logprob=Phase(per_valid_s=1e-5, clock_bound=0.4, dynamic_w=8500.0, capped_mhz=1650),
    growth_per_update=0.002,
    mean_tokens=900.0,
    limit_tokens=8192,
)
#: Everything bound by the clock: almost nothing to gain within 2 %.
COMPUTE_BOUND = Workload(
    "compute bound",
    generation=Phase(per_generated_s=4e-5, per_longest_s=4e-3, clock_bound=0.7, dynamic_w=6000.0),
    training=Phase(per_valid_s=5e-5, clock_bound=0.95, dynamic_w=8000.0),
    logprob=Phase(per_valid_s=1e-5, clock_bound=0.95, dynamic_w=8000.0),
)
#: Both phases nearly free of the clock: agents waiting for tools, small models.
MEMORY_BOUND = Workload(
    "memory bound",
    generation=Phase(per_generated_s=5e-5, per_longest_s=1e-2, clock_bound=0.03, dynamic_w=3000.0),
    training=Phase(per_valid_s=3e-5, clock_bound=0.08, dynamic_w=6000.0),
    logprob=Phase(per_valid_s=8e-6, clock_bound=0.1, dynamic_w=6000.0),
    noise_sd=0.02,
)
#: Noisy small GPUs with a coarse, uneven clock table.
NOISY_COARSE = Workload(
    "noisy, coarse",
    generation=Phase(
        per_generated_s=6e-5, per_longest_s=1e-2, clock_bound=0.25, static_w=400.0, dynamic_w=900.0
    ),
    training=Phase(per_valid_s=4e-5, clock_bound=0.25, static_w=400.0, dynamic_w=1500.0),
    logprob=Phase(per_valid_s=8e-6, clock_bound=0.3, static_w=400.0, dynamic_w=1400.0),
    rest_w=500.0,
    noise_sd=0.03,
    spread=0.2,
    grid=ClockGrid([345, 360, 510, 615, 720, 870, 960, 1080, 1155, 1260, 1335, 1410], 1410),
)
#: Colocated Qwen, large, on 32 H100s: parameters that reproduce the paper's rows C.1 (see test_paper.py).
PAPER_QWEN = Workload(
    "paper qwen",
    generation=Phase(
        per_generated_s=1.6e-5,
        per_longest_s=1.2e-2,
        clock_bound=0.12,
        static_w=6000.0,
        dynamic_w=7000.0,
        capped_mhz=1755,
    ),
    training=Phase(per_valid_s=2.2e-5, clock_bound=0.15, static_w=6000.0, dynamic_w=14000.0, capped_mhz=1755),
    logprob=Phase(per_valid_s=7e-6, clock_bound=0.15, static_w=6000.0, dynamic_w=14000.0, capped_mhz=1755),
    responses=2048,
    rest_s=8.0,
    rest_w=7000.0,
)
WORKLOADS = (BALANCED, LONG_GENERATION, CAPPED_GROWING, COMPUTE_BOUND, MEMORY_BOUND, NOISY_COARSE)
