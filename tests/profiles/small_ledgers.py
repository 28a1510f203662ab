"""Ledgers of two updates or so, whose every number is chosen by the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eerl_launch.ledger import SCHEMA_VERSION, Event

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def start(nodes: int = 2, gpu: str = "NVIDIA H100", mode: str = "colocated_sync", **run: Any) -> list[Event]:
    """The first lines: four GPUs over the nodes, and the trainer's word on itself."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    share = len(GPUS) // nodes
    events: list[Event] = [
        {
            "ev": "start",
            "t_s": 0.0,
            "schema_version": SCHEMA_VERSION,
            "nodes": names,
            "simulated": None,
            "policy": {"policy": "governor", "mode": "auto"},
            "versions": {"eerl": "0.1.0"},
        }
    ]
    for number, name in enumerate(names):
        own = GPUS[number * share : (number + 1) * share]
        gpus = [{"uuid": uuid, "index": place, "name": gpu} for place, uuid in enumerate(own)]
        events.append({"ev": "node", "t_s": 0.1, "node": name, "state": "joined", "gpus": gpus})
    return [*events, {"ev": "run", "t_s": 0.2, "framework": "mine", "mode": mode, **run}]


def phase(name: str, begin_s: float, elapsed_s: float, watts: Iterable[float], **more: Any) -> Event:
    """A phase with a constant draw for each GPU."""
    joules = {uuid: power * elapsed_s for uuid, power in zip(GPUS, watts, strict=False)}
    return {
        "ev": "phase",
        "t_s": begin_s + elapsed_s,
        "update": None,
        "phase": name,
        "begin_s": begin_s,
        "end_s": begin_s + elapsed_s,
        "elapsed_s": elapsed_s,
        "energy_j": sum(joules.values()),
        "gpu_energy_j": joules,
        "exclusive": "/" not in name,
        "complete": True,
        **more,
    }


def update(
    index: int,
    begin_s: float,
    elapsed_s: float,
    energy_j: float | None,
    counts: Mapping[str, Any],
    responses: float | None = None,
    rest: tuple[float, float] = (0.0, 0.0),
    **record: Any,
) -> Event:
    """An update with its counts, and what of it no phase claims as (seconds, joules)."""
    return {
        "ev": "update",
        "t_s": begin_s + elapsed_s,
        "index": index,
        "label": index,
        "begin_s": begin_s,
        "end_s": begin_s + elapsed_s,
        "plan_id": 0,
        "responses": responses,
        "record": {"update": index, "elapsed_s": elapsed_s, "energy_j": energy_j, **counts, **record},
        "unattributed": {"elapsed_s": rest[0], "energy_j": rest[1]},
        "gpu_energy_j": {},
    }


def lengths(index: int, mean: float, responses: int, **quantiles: float) -> Event:
    """The trainer's metric of an update's response lengths."""
    told = {"name": "response_length_tokens", "value": mean, "update": index, "responses": responses}
    return {"ev": "metric", "t_s": 1.0, **told, **quantiles}


def end(t_s: float) -> Event:
    """The last line of a run that came to its end."""
    return {"ev": "end", "t_s": t_s, "status": "complete", "exit_code": 0, "gpu_energy_j": {}}
