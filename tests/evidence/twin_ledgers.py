"""Ledgers of runs in the virtual-time twin, whose truth is known, written with the real LedgerWriter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from eerl_launch.ledger import SCHEMA_VERSION, Event, LedgerWriter
from eerl_launch.update_lines import record_to_dict
from eerl_twin import FixedPlan, PlanSource, Run, World, simulate

GOVERNOR = FixedPlan()


def quiet(world: World) -> World:
    """The world without the faults of a bad day: what is left is work and noise."""
    from eerl_twin import without_events

    return without_events(world)


def run_twin(world: World, source: PlanSource, updates: int, seed: int) -> Run:
    """A run of the twin."""
    return simulate(world, source, updates, seed)


def events(run: Run, policy: str, **start: Any) -> Iterator[Event]:
    """The ledger of a twin run."""
    world = run.world
    uuids = [f"GPU-{number}" for number in range(4)]
    yield {
        "ev": "start",
        "t_s": 0.0,
        "schema_version": SCHEMA_VERSION,
        "job_id": "1",
        "nodes": ["n1"],
        "time_iso": "2026-11-30T00:00:00+00:00",
        "simulated": "h100:1x4",
        "time_scale": 1.0,
        "policy": {"policy": policy, "mode": "auto"},
        "versions": {"eerl": "0.1.0"},
        **start,
    }
    gpus = [{"uuid": uuid, "index": place, "name": "H100"} for place, uuid in enumerate(uuids)]
    yield {"ev": "node", "t_s": 0.1, "node": "n1", "state": "joined", "driver": "580", "gpus": gpus}
    grid = {"supported_mhz": list(world.grid.supported_mhz), "governor_mhz": world.grid.governor_mhz}
    yield {"ev": "controller", "t_s": 0.2, "settings": {}, "mode": world.mode.value, "grid": grid, "seed": 0}
    yield {"ev": "run", "t_s": 0.3, "framework": "twin", "mode": world.mode.value}
    known: set[int] = set()
    at_s, total_j = 1.0, 0.0
    for index, (record, plan, state) in enumerate(zip(run.records, run.plans, run.states, strict=True)):
        if plan is not None and plan.plan_id not in known:
            known.add(plan.plan_id)
            yield {
                "ev": "plan",
                "t_s": at_s,
                "plan_id": plan.plan_id,
                "generation_mhz": plan.generation_mhz,
                "training_mhz": plan.training_mhz,
                "idle_mhz": plan.idle_mhz,
                "state": "CALIBRATION" if state is None else state.name,
                "reason": plan.reason.name,
                "note": plan.note,
            }
        assert record.elapsed_s is not None
        end_s = at_s + record.elapsed_s
        total_j += record.energy_j or 0.0
        yield {
            "ev": "update",
            "t_s": end_s,
            "index": index,
            "label": record.update,
            "begin_s": at_s,
            "end_s": end_s,
            "record": record_to_dict(record),
            "responses": 512,
            "state": None if state is None else state.name,
            "plan_id": record.plan_id,
            "governor": None,
            "gpu_energy_j": {uuid: (record.energy_j or 0.0) / len(uuids) for uuid in uuids},
            "unattributed": {"elapsed_s": 0.0, "energy_j": 0.0},
            "usable": True,
            "unusable_reason": None,
        }
        at_s = end_s
    yield {
        "ev": "end",
        "t_s": at_s,
        "exit_code": 0,
        "status": "complete",
        "gpu_energy_j": {uuid: total_j / len(uuids) for uuid in uuids},
        "updates": len(run.records),
    }


def write_run(folder: Path, run: Run, policy: str, **start: Any) -> Path:
    """The run's ledger in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with LedgerWriter(folder) as ledger:
        for event in events(run, policy, run_id=str(folder), **start):
            ledger.append(event)
    return folder


def edit(folder: Path, change: Any) -> Path:
    """The ledger with every event as ``change`` returns it; None leaves it out."""
    path = folder / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [new for line in lines if (new := change(line)) is not None]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    return folder


__all__ = ["GOVERNOR", "edit", "quiet", "replace", "run_twin", "write_run"]
