"""The cost of the reward paradigm, a learned model or an explicit function: time, energy, data moved.

All phases named ``reward`` count with their subphases; data is what the trainer tells in metrics named
``reward…_bytes``. What a GPU draws while a function runs on the CPU is the cost of the wait, and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.signatures import SignatureRow
from eerl_launch.profiles.spread import as_array, ratio_of_sums, spread

REWARD = "reward"
MODEL, FUNCTION = "model", "function"
#: Subphases of the reward by whose names the paradigm is told when nobody says it.
_PARADIGM_OF = {
    "model": MODEL,
    "reward_model": MODEL,
    "rm": MODEL,
    "judge": MODEL,
    "function": FUNCTION,
    "rule": FUNCTION,
    "rules": FUNCTION,
    "verifier": FUNCTION,
}
NO_PHASE = "no phase named reward: its cost is in whatever phase it runs in, or in unattributed"
NO_BYTES = (
    "the trainer does not tell bytes moved: send a metric such as reward_transfer_bytes with the update"
)
NO_RESPONSES = "the trainer does not tell how many responses an update has"


def paradigm_of(run: Gathered) -> str | None:
    """The paradigm by the names of the reward's subphases, such as ``reward/model``; None when they say nothing."""
    names = {
        _PARADIGM_OF[part]
        for phase in run.phases
        for part in [phase.name.rpartition("/")[2].lower()]
        if phase.name.split("/", 1)[0] == REWARD and "/" in phase.name and part in _PARADIGM_OF
    }
    return " and ".join(sorted(names)) or None


def reward_cost(run: Gathered, rows: list[SignatureRow], paradigm: str | None) -> dict[str, Any]:
    """The reward's cost; ``rows`` is the run's signature."""
    own = [row for row in rows if row["phase"].split("/", 1)[0] == REWARD]
    whole = next((row for row in own if row["phase"] == REWARD and row["exclusive"]), None)
    moved, moved_reason = _moved(run)
    keys = (
        "updates",
        "mean_elapsed_s",
        "p90_elapsed_s",
        "mean_energy_j",
        "mean_power_w_per_gpu",
        "elapsed_fraction",
        "energy_fraction",
        "energy_j_per_valid_token",
        "busy_fraction",
        "energy_reason",
    )
    found: dict[str, Any] = {"paradigm": paradigm, "reason": None if whole else NO_PHASE}
    found |= {key: whole[key] if whole else None for key in keys}
    per_response, response_reason = _per_response(run)
    return found | {
        "energy_j_per_response": per_response,
        "energy_j_per_response_reason": response_reason,
        "parts": [
            {"phase": row["phase"], **{key: row[key] for key in keys}} for row in own if row is not whole
        ],
        "moved_bytes_per_update": moved,
        "moved_bytes_reason": moved_reason,
    }


def _per_response(run: Gathered) -> tuple[float | None, str | None]:
    phase = next((phase for phase in run.phases if phase.name == REWARD and phase.exclusive), None)
    if phase is None:
        return None, NO_PHASE
    found = ratio_of_sums(phase.energy_j, run.values("responses"))
    return found, NO_RESPONSES if found is None else None


def _moved(run: Gathered) -> tuple[dict[str, Any] | None, str | None]:
    """Bytes by update of each metric of the reward's data, and why there is none."""
    labels = [row.update for row in run.updates]
    found = {}
    for name, by_update in run.details.bytes_moved.items():
        if name.startswith(REWARD):
            values = as_array([by_update.get(label) for label in labels])
            if np.isfinite(values).any():
                known = spread(values)
                found[name] = None if known is None else known.to_dict()
    return (found, None) if found else (None, NO_BYTES)
