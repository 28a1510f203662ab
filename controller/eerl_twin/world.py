"""A world: everything that decides how an RL run goes, and nothing that happens by chance in one run.

Seconds, watts per GPU, MHz and tokens. A world and a seed give one run's conditions; the clocks do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from eerl_controller import ClockGrid, ExecutionMode
from eerl_twin.response import PowerShape, TimeResponse

SYNCHRONOUS = (ExecutionMode.COLOCATED_SYNC, ExecutionMode.DISAGGREGATED_SYNC)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Response lengths: lognormal around a prompt's own mean, cut at the limit.

    ``spread`` is the log standard deviation within a prompt, ``prompt_spread`` between prompts, ``growth`` the
    change of the log mean by update, ``wander`` the sd of its random walk. ``overlong_masked`` is the share of
    cut responses left out of the loss, ``masked_share`` of all responses, and ``rounds_share`` the probability
    of one more generation round whose tokens are thrown away (dynamic sampling). In-flight, the trainer waits for
    ``latency_share`` of the longest response: those still longer are carried into a later batch.
    """

    prompts: int = 64
    responses_per_prompt: int = 8
    mean_tokens: float = 1500.0
    spread: float = 0.5
    prompt_spread: float = 0.4
    limit_tokens: int = 4096
    growth: float = 0.0
    wander: float = 0.0
    masked_share: float = 0.0
    overlong_masked: float = 0.0
    rounds_share: float = 0.0
    latency_share: float = 0.5

    @property
    def responses(self) -> int:
        """Responses of one batch."""
        return self.prompts * self.responses_per_prompt


@dataclass(frozen=True, slots=True)
class Costs:
    """Governor seconds by work. Batched decoding takes ``per_longest_s`` a step and ``per_generated_s`` a token.

    ``*_square_s`` is attention: seconds by token and 1,000 tokens before it. Log-prob and critic are shares of
    training. ``rest_s`` runs outside any phase; ``switch_s`` is lost at each clock change inside an update.
    """

    generation_fixed_s: float = 2.0
    per_generated_s: float = 4e-5
    per_longest_s: float = 8e-3
    generation_square_s: float = 0.0
    training_fixed_s: float = 1.0
    per_trained_s: float = 4e-5
    training_square_s: float = 0.0
    logprob_share: float = 0.2
    critic_share: float = 0.0
    reward_s: float = 1.0
    refit_s: float = 3.0
    rest_s: float = 2.0
    switch_s: float = 0.03


@dataclass(frozen=True, slots=True)
class Activity:
    """What a GPU draws when it does one thing: ``floor_w`` whatever the clock and ``clock_w`` at the top clock.

    ``ceiling`` is the highest clock reached, as a fraction of the top: power cap or governor. Requests above it
    act like the governor.
    """

    floor_w: float
    clock_w: float
    ceiling: float = 1.0


@dataclass(frozen=True, slots=True)
class Power:
    """Watts per GPU by activity. ``tail_load`` is the part of generation's extra power that its tail draws.

    The defaults are the anchors known for an H100: 71 W waiting at 345 MHz, 122 W with a context at 1980 MHz.
    """

    shape: PowerShape = field(default_factory=PowerShape)
    wait: Activity = Activity(68.0, 54.0)
    generation: Activity = Activity(150.0, 250.0, 0.95)
    training: Activity = Activity(190.0, 500.0, 0.9)
    refit: Activity = Activity(110.0, 90.0)
    tail_load: float = 0.6
    #: Power limit of a GPU; None when it never binds below an activity's own ceiling.
    cap_w: float | None = None
    #: Where the governor keeps a waiting GPU, as a fraction of the top clock: 1 with a CUDA context.
    governor_waits_at: float = 1.0


@dataclass(frozen=True, slots=True)
class Noise:
    """What varies at equal work and clocks, as sd of the log. Levels are AR(1), tails Student's t.

    ``slow_start`` multiplies the first updates; a straggler adds ``straggler_factor`` - 1 (up to) of generation's
    time at waiting power.
    """

    level_sd: float = 0.006
    level_correlation: float = 0.5
    phase_sd: float = 0.006
    phase_correlation: float = 0.2
    tail_df: float = 6.0
    power_sd: float = 0.003
    power_correlation: float = 0.8
    straggler_share: float = 0.0
    straggler_factor: float = 2.0
    slow_start: tuple[float, ...] = (4.0, 1.3)


@dataclass(frozen=True, slots=True)
class Shift:
    """From the update with this index on the world is another.

    Factors on costs and on the excess that low clocks add, a change of log lengths, and ``lock_cost``, what any
    lock costs its phase from then on besides the world's offset.
    """

    update: int
    generation_cost: float = 1.0
    training_cost: float = 1.0
    generation_sensitivity: float = 1.0
    training_sensitivity: float = 1.0
    log_length: float = 0.0
    lock_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Ageing:
    """Slow drift by update, in the log: of either phase's time and of power."""

    generation_time: float = 0.0
    training_time: float = 0.0
    power: float = 0.0


@dataclass(frozen=True, slots=True)
class Visits:
    """Validation and checkpoint: every so many updates (0: never), for so many seconds."""

    validation_every: int = 0
    validation_s: float = 0.0
    checkpoint_every: int = 0
    checkpoint_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong: shares are probabilities by update, throttling comes in episodes.

    ``late_max`` updates pass at most before a late record arrives; ``mixed_share`` of plan changes come into
    force in mid-update.
    """

    throttle_share: float = 0.0
    throttle_updates: int = 3
    throttle_factor: float = 0.8
    partial_energy_share: float = 0.0
    missing_counts_share: float = 0.0
    lost_share: float = 0.0
    late_share: float = 0.0
    late_max: int = 3
    mixed_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All parameters of a run. ``plan_lag`` is how many updates a plan waits for its boundary (0 or 1).

    ``lock_offset_*`` is the throughput that any locked clock costs its phase. ``max_policy_age`` bounds how many
    batches generation may be ahead (in-flight). A pool that waits less than ``idle_min_gap_s`` keeps its clock.
    ``staleness_cost`` is the reward lost by each update of policy age.
    """

    name: str
    mode: ExecutionMode = ExecutionMode.COLOCATED_SYNC
    supported_mhz: tuple[int, ...] = tuple(range(345, 1981, 15))
    generation_gpus: int = 32
    training_gpus: int = 32
    lengths: Lengths = Lengths()
    costs: Costs = Costs()
    generation_response: TimeResponse = field(default_factory=lambda: TimeResponse(bound=0.25))
    training_response: TimeResponse = field(default_factory=lambda: TimeResponse(bound=0.4))
    refit_response: TimeResponse = field(default_factory=lambda: TimeResponse(bound=0.05))
    power: Power = field(default_factory=Power)
    lock_offset_generation: float = 0.005
    lock_offset_training: float = 0.005
    noise: Noise = Noise()
    shifts: tuple[Shift, ...] = ()
    ageing: Ageing = Ageing()
    visits: Visits = Visits()
    faults: Faults = Faults()
    max_policy_age: int = 2
    idle_min_gap_s: float = 2.0
    staleness_cost: float = 0.0
    plan_lag: int = 0
    tells_remaining: bool = True

    def __post_init__(self) -> None:
        if self.plan_lag not in (0, 1):
            raise ValueError(f"plan_lag must be 0 or 1, not {self.plan_lag}")
        colocated = self.mode is ExecutionMode.COLOCATED_SYNC
        if colocated and self.generation_gpus != self.training_gpus:
            raise ValueError(
                f"a colocated job has one pool, not {self.generation_gpus} and {self.training_gpus} GPUs"
            )

    @property
    def grid(self) -> ClockGrid:
        """The clocks a controller of this world may ask for, MHz."""
        return ClockGrid(self.supported_mhz, max(self.supported_mhz))

    @property
    def top_mhz(self) -> int:
        """The highest clock, MHz: what all relative clocks relate to."""
        return max(self.supported_mhz)

    def to_dict(self) -> dict[str, Any]:
        """Every parameter by name, ready for JSON."""
        values = asdict(self)
        values["mode"] = self.mode.value
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> World:
        """The world that :meth:`to_dict` wrote; raises TypeError for a name that is not a parameter."""
        plain = dict(values)
        plain["mode"] = ExecutionMode(plain["mode"])
        plain["supported_mhz"] = tuple(plain["supported_mhz"])
        for name, kind in (("lengths", Lengths), ("costs", Costs), ("ageing", Ageing), ("visits", Visits)):
            plain[name] = kind(**plain[name])
        plain["faults"] = Faults(**plain["faults"])
        plain["noise"] = Noise(**{**plain["noise"], "slow_start": tuple(plain["noise"]["slow_start"])})
        plain["shifts"] = tuple(Shift(**item) for item in plain["shifts"])
        for name in ("generation_response", "training_response", "refit_response"):
            plain[name] = TimeResponse(**_points(plain[name]))
        power = dict(plain["power"])
        power["shape"] = PowerShape(**_points(power["shape"]))
        for name in ("wait", "generation", "training", "refit"):
            power[name] = Activity(**power[name])
        plain["power"] = Power(**power)
        return cls(**plain)


def _points(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with their lists as tuples again."""
    return {**values, "clocks": tuple(values["clocks"]), "values": tuple(values["values"])}
