"""A model on a kind of GPU, as the paper measured it: from few fitted numbers to a world of any configuration.

What is fitted is in ``SHARED`` (one value for a family) and ``OWN`` (one for each configuration). What the paper's
relative numbers cannot tell is assumed, and said so here: mean response lengths, seconds of an update, and watts
of a waiting GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eerl_controller import ExecutionMode
from eerl_twin.response import PowerShape, TimeResponse
from eerl_twin.work_cost import Shares, costs_for
from eerl_twin.world import Activity, Lengths, Noise, Power, World


@dataclass(frozen=True, slots=True)
class Parameter:
    """A fitted number: where the fit starts, and bounds that it approaches but never reaches.

    ``width`` is the sd of its prior on the logit scale between the bounds.
    """

    name: str
    start: float
    low: float
    high: float
    width: float = 1.5

    def value(self, free: float) -> float:
        """The number at an unbounded coordinate."""
        return self.low + (self.high - self.low) / (1.0 + math.exp(-free))

    def free(self, value: float) -> float:
        """The coordinate of a number inside the bounds."""
        share = (value - self.low) / (self.high - self.low)
        return math.log(share / (1.0 - share))


#: One value for a model on a kind of GPU. Watts are of a GPU with a limit of 700 W; ceilings, knee and clocks are
#: fractions of the top clock; ``*_bound_batch`` is how the bound share moves (in logits) when the batch doubles.
SHARED = (
    Parameter("generation_floor_w", 150.0, 75.0, 350.0),
    Parameter("generation_clock_w", 200.0, 20.0, 500.0),
    Parameter("training_floor_w", 190.0, 75.0, 400.0),
    Parameter("training_clock_w", 350.0, 40.0, 620.0),
    Parameter("wait_clock_w", 54.0, 30.0, 80.0, 0.7),
    Parameter("knee", 0.6, 0.3, 0.9),
    Parameter("lowest_voltage", 0.75, 0.4, 0.99),
    Parameter("generation_ceiling", 0.88, 0.8, 1.0),
    Parameter("training_ceiling", 0.88, 0.75, 1.0),
    Parameter("generation_exponent", 1.2, 0.5, 3.0),
    Parameter("training_exponent", 1.0, 0.5, 3.0),
    Parameter("generation_bound", 0.25, 0.01, 0.97),
    Parameter("generation_bound_batch", 0.0, -1.0, 1.0),
    Parameter("training_bound", 0.35, 0.01, 0.97),
    Parameter("training_bound_batch", 0.0, -1.0, 1.0),
    Parameter("log_ratio", -0.7, -4.0, 2.0),
    Parameter("log_ratio_medium", 0.0, -2.0, 2.0),
    Parameter("log_ratio_large", 0.0, -2.0, 2.0),
    Parameter("log_ratio_overlapping", 0.0, -2.0, 2.0),
    Parameter("split_exponent", 0.7, 0.0, 1.5),
    Parameter("rest_share", 0.08, 0.005, 0.3),
)
#: One value for each configuration: its own ratio of training to generation, and what any lock costs (0 to 2 %).
OWN = (
    Parameter("log_ratio_own", 0.0, -1.5, 1.5, 0.5),
    Parameter("lock_offset", 0.008, 0.0, 0.02, 1.0),
)

#: Prompts and responses by size (paper, table 1) and assumed seconds of a governor update.
SIZES = {
    "Qwen3-30B-A3B": {"S": (32, 4, 60.0), "M": (64, 8, 120.0), "L": (128, 16, 300.0)},
    "Nemotron-Super-49B": {"S": (16, 4, 120.0), "M": (16, 8, 150.0), "L": (32, 8, 240.0)},
    "Mistral-NeMo-12B": {"M": (64, 8, 90.0)},
}
#: Sequence limit (table 1), assumed mean response as a share of it, and noise from appendix B's prediction errors.
LIMIT_TOKENS = {"Qwen3-30B-A3B": 4096, "Nemotron-Super-49B": 8192, "Mistral-NeMo-12B": 4096}
MEAN_SHARE = 0.35
NOISE_SD = {"Qwen3-30B-A3B": 0.009, "Nemotron-Super-49B": 0.005, "Mistral-NeMo-12B": 0.015}
CLOCKS = {
    "H100": tuple(range(345, 1981, 15)),
    "GB200": tuple(int(120 + 7.5 * step) for step in range(260)),
}
LIMIT_W = {"H100": 700.0, "GB200": 1200.0}
#: Responses of a batch for each GPU at which the bound share has its plain value.
PLAIN_BATCH = 16.0
WAIT_FLOOR_W = 68.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One block of the paper's tables: a model on GPUs, a mode, a split, a size."""

    model: str
    gpu: str
    mode: ExecutionMode
    generation_gpus: int
    training_gpus: int
    size: str

    @property
    def family(self) -> str:
        """What shares its parameters with this configuration."""
        return f"{self.model} {self.gpu}"

    @property
    def name(self) -> str:
        """A name for people, as ``qwen-h100-disaggregated_sync-8-32-M``."""
        short = self.model.split("-")[0].rstrip("0123456789").lower()
        return f"{short}-{self.gpu.lower()}-{self.mode.value}-{self.generation_gpus}-{self.training_gpus}-{self.size}"


def _bound(parameters: Mapping[str, float], phase: str, batch_per_gpu: float) -> float:
    plain = parameters[f"{phase}_bound"]
    moved = math.log(plain / (1.0 - plain))
    moved += parameters[f"{phase}_bound_batch"] * math.log2(batch_per_gpu / PLAIN_BATCH)
    return 1.0 / (1.0 + math.exp(-moved))


def world_of(configuration: Configuration, parameters: Mapping[str, float]) -> World:
    """The world of a configuration; ``parameters`` has every name of ``SHARED`` and ``OWN``."""
    p, c = parameters, configuration
    prompts, responses, update_s = SIZES[c.model][c.size]
    limit = LIMIT_TOKENS[c.model]
    scale = LIMIT_W[c.gpu] / 700.0
    batch = prompts * responses
    lengths = Lengths(
        prompts=prompts,
        responses_per_prompt=responses,
        mean_tokens=MEAN_SHARE * limit,
        spread=0.6,
        prompt_spread=0.4,
        limit_tokens=limit,
        wander=0.01,
    )
    overlapping = c.mode in (ExecutionMode.ASYNC_DRAINED, ExecutionMode.ASYNC_INFLIGHT)
    log_ratio = p["log_ratio"] + p["log_ratio_own"]
    log_ratio += {"S": 0.0, "M": p["log_ratio_medium"], "L": p["log_ratio_large"]}[c.size]
    log_ratio += p["log_ratio_overlapping"] * overlapping
    log_ratio += p["split_exponent"] * math.log(c.generation_gpus / c.training_gpus)
    ratio = math.exp(log_ratio)
    busy_s = update_s * (1.0 - p["rest_share"])
    generation_s = busy_s / max(1.0, ratio) if overlapping else busy_s / (1.0 + ratio)
    rest_s = update_s * p["rest_share"]
    costs = costs_for(
        Shares(
            generation_s=generation_s,
            training_s=generation_s * ratio,
            reward_s=0.2 * rest_s,
            refit_s=0.5 * rest_s,
            rest_s=0.3 * rest_s,
        ),
        lengths,
    )
    wait = Activity(scale * WAIT_FLOOR_W, scale * p["wait_clock_w"])
    sd = NOISE_SD[c.model]
    return World(
        name=c.name,
        mode=c.mode,
        supported_mhz=CLOCKS[c.gpu],
        generation_gpus=c.generation_gpus,
        training_gpus=c.training_gpus,
        lengths=lengths,
        costs=costs,
        generation_response=TimeResponse(
            bound=_bound(p, "generation", batch / c.generation_gpus), exponent=p["generation_exponent"]
        ),
        training_response=TimeResponse(
            bound=_bound(p, "training", batch / c.training_gpus), exponent=p["training_exponent"]
        ),
        power=Power(
            shape=PowerShape(knee=p["knee"], lowest_voltage=p["lowest_voltage"]),
            wait=wait,
            generation=Activity(
                scale * p["generation_floor_w"], scale * p["generation_clock_w"], p["generation_ceiling"]
            ),
            training=Activity(
                scale * p["training_floor_w"], scale * p["training_clock_w"], p["training_ceiling"]
            ),
            refit=Activity(wait.floor_w + scale * 40.0, wait.clock_w + scale * 40.0),
        ),
        lock_offset_generation=p["lock_offset"],
        lock_offset_training=p["lock_offset"],
        noise=Noise(level_sd=0.8 * sd, phase_sd=0.6 * sd),
        max_policy_age=2 if c.mode is ExecutionMode.ASYNC_INFLIGHT else 1,
        # A record that ends with a refit pause comes too late for the clocks to change in that pause.
        plan_lag=int(c.mode is ExecutionMode.ASYNC_INFLIGHT),
    )
