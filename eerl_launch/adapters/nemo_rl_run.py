"""What kind of NeMo RL run it is, from its configuration: a dict until 0.6, pydantic since. No markers here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .tokens import setting

#: Engines whose generation goes on while weights change (the others drain, whatever the configuration says).
_IN_FLIGHT_ENGINES = ("vllm", "megatron", "trtllm")


@dataclass(frozen=True, slots=True)
class Run:
    """Mode and length of a run; ``first`` is the number of its first update, 1 unless it was resumed."""

    mode: str
    first: int = 1
    updates_left: int | None = None
    #: Responses of one generation round, and optimizer steps an update; for loops that hand out metrics only.
    round_responses: int | None = None
    optimizer_steps: int | None = None
    #: A separate process generates and counts.
    asynchronous: bool = False
    #: One pool, asynchronous: engines generate while the loop waits for responses, and sleep while it trains.
    waits_generate: bool = False
    reasons: list[str] = field(default_factory=list)


def describe(config: Any, made: Any, *, single_controller: bool = False) -> Run:
    """The run that ``setup`` made of ``config``; ``made``: its result, which holds where a resumed run goes on."""
    colocated = bool(setting(config, "policy", "generation", "colocated", "enabled"))
    asynchronous = single_controller or bool(setting(config, "grpo", "async_grpo", "enabled"))
    asynchronous = asynchronous or bool(setting(config, "ppo", "async_ppo", "enabled"))
    reasons = []
    if not asynchronous:
        mode = "colocated_sync" if colocated else "disaggregated_sync"
    elif colocated:
        mode = "colocated_sync"
        reasons.append(
            "its asynchronous loop on one pool of GPUs generates parts of several batches in an update, so "
            "generated tokens are unknown and clocks stay with the governor"
        )
    else:
        mode = "async_inflight" if single_controller or _in_flight(config) else "async_drained"
    algorithm = setting(config, "grpo") or setting(config, "ppo")
    prompts = setting(algorithm, "num_prompts_per_step")
    each = setting(algorithm, "num_generations_per_prompt")
    total = setting(algorithm, "max_num_steps")
    done = _done(made, asynchronous)
    training_batch = setting(config, "policy", "train_global_batch_size")
    whole_batch = prompts * each if prompts and each else None
    drawn = whole_batch
    if setting(algorithm, "use_dynamic_sampling") and whole_batch:
        drawn = int(prompts * (setting(algorithm, "batch_multiplier") or 1)) * each
    return Run(
        mode=mode,
        first=done + 1,
        updates_left=max(0, int(total) - done) if total else None,
        round_responses=drawn,
        optimizer_steps=-(-whole_batch // training_batch) if whole_batch and training_batch else None,
        asynchronous=asynchronous and not colocated,
        waits_generate=asynchronous and colocated,
        reasons=reasons,
    )


def _in_flight(config: Any) -> bool:
    """Whether responses under way live through a change of weights."""
    wanted = setting(config, "grpo", "async_grpo", "in_flight_weight_updates")
    wanted = wanted or setting(config, "ppo", "async_ppo", "in_flight_weight_updates")
    backend = setting(config, "policy", "generation", "backend")
    if backend == "vllm" and not setting(config, "policy", "generation", "vllm_cfg", "async_engine"):
        return False
    return bool(wanted) and backend in _IN_FLIGHT_ENGINES


def _done(made: Any, asynchronous: bool) -> int:
    """Updates that an earlier job of this run has made, from the state that ``setup`` returned."""
    parts = made if isinstance(made, tuple) else (made,)
    for part in parts:
        state = setting(part, "save_state") or part
        for name in ("current_step",) if asynchronous else ("total_steps", "current_step"):
            steps = setting(state, name) if setting(state, "consumed_samples") is not None else None
            if isinstance(steps, int):
                return steps
    return 0
