"""Ledgers of runs whose truth is known, written with the real LedgerWriter.

The truth is a small closed model, not the simulator: phase times and energies under the governor grow with
the tokens, and a lowered update takes ``1 + slowdown`` times as long for ``1 - saving`` of the energy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eerl_launch.ledger import SCHEMA_VERSION, Event, LedgerWriter

POLICY = {
    "policy": "eerl",
    "mode": "auto",
    "max_throughput_loss": 0.02,
    "report": {
        "price_per_kwh": None,
        "currency": "USD",
        "carbon_g_per_kwh": None,
        "pue": None,
        "formats": ["html", "json", "csv", "txt"],
    },
}


@dataclass
class RunSpec:
    """What the run was like. Powers in W, times in s, ``saving`` and ``slowdown`` as fractions."""

    nodes: int = 2
    gpus_per_node: int = 2
    updates: int = 60
    calibration: int = 15
    lock_from: int = 40
    #: In the search one update in so many is the governor's; 0 for none.
    governor_every: int = 4
    saving: float = 0.12
    slowdown: float = 0.0
    growth: float = 2.0
    noise: float = 0.01
    seed: int = 0
    generation_mhz: int = 1500
    training_mhz: int = 1200
    governor_mhz: int = 1980
    subphases: bool = True
    more_phases: int = 0
    validation_every: int = 20
    counts: bool = True
    warm_up: int = 1
    simulated: str | None = None
    policy: dict[str, Any] = field(default_factory=lambda: {**POLICY, "report": dict(POLICY["report"])})
    start: dict[str, Any] = field(default_factory=dict)
    end: bool = True
    exit_code: int = 0
    edit: Callable[[Event], Iterator[Event] | None] | None = None

    @property
    def uuids(self) -> list[str]:
        """One UUID per GPU, node by node."""
        return [
            f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"
            for node in range(self.nodes)
            for gpu in range(self.gpus_per_node)
        ]


def node_names(spec: RunSpec) -> list[str]:
    """node01, node02, …"""
    return [f"node{number:02d}" for number in range(1, spec.nodes + 1)]


def start_events(spec: RunSpec) -> Iterator[Event]:
    """The start line, a node line per node, the controller and the trainer."""
    yield {
        "ev": "start",
        "t_s": 0.0,
        "schema_version": SCHEMA_VERSION,
        "run_id": "4711",
        "job_id": "4711",
        "array_task": None,
        "restart": 0,
        "user": "ada",
        "cluster": "test",
        "job_name": "grpo",
        "partition": "gpu",
        "account": "science",
        "nodes": node_names(spec),
        "time_unix_s": 1_790_000_000.0,
        "time_iso": "2026-09-21T14:13:20+00:00",
        "simulated": spec.simulated,
        "time_scale": 1.0,
        "policy": spec.policy,
        "policy_file": "policy.yaml",
        "command": "python",
        "versions": {"eerl": "0.1.0"},
        **spec.start,
    }
    for number, node in enumerate(node_names(spec)):
        first = number * spec.gpus_per_node
        yield {
            "ev": "node",
            "t_s": 0.5,
            "node": node,
            "state": "joined",
            "reason": None,
            "hostname": node,
            "source": "broker",
            "backend": "locked-clocks",
            "backend_reason": "",
            "driver": "580.105.08",
            "clock_offset_s": 0.0001 * number,
            "clock_offset_error_s": 0.00005,
            "gpus": [
                {
                    "uuid": uuid,
                    "index": index,
                    "name": "NVIDIA H100 80GB HBM3",
                    "min_mhz": 345,
                    "max_mhz": 1980,
                    "energy_scope": "gpu",
                    "mig": False,
                }
                for index, uuid in enumerate(spec.uuids[first : first + spec.gpus_per_node])
            ],
        }
    yield {
        "ev": "controller",
        "t_s": 0.6,
        "settings": {},
        "mode": "colocated_sync",
        "grid": {"supported_mhz": list(range(345, 1981, 15)), "governor_mhz": spec.governor_mhz},
        "seed": 0,
    }
    yield {
        "ev": "run",
        "t_s": 1.0,
        "framework": "trl",
        "mode": "colocated_sync",
        "total_updates": spec.updates,
    }


def state_of(spec: RunSpec, index: int) -> str:
    """Calibration, then search with governor updates in between, confirmation, lock."""
    if index < spec.warm_up + spec.calibration:
        return "CALIBRATION"
    if index < spec.lock_from - 6:
        return "SEARCH"
    return "CONFIRMATION" if index < spec.lock_from else "LOCKED"


def is_governor(spec: RunSpec, index: int) -> bool:
    """Whether the update runs under the governor."""
    state = state_of(spec, index)
    between = spec.governor_every and index % spec.governor_every == 0
    return state == "CALIBRATION" or (state == "SEARCH" and bool(between))


def governor_truth(generated: int, valid: int, longest: int, gpus: int) -> dict[str, tuple[float, float]]:
    """Seconds and joules of each phase under the governor for this much work."""
    generation_s = 20.0 * (generated / 800_000) ** 0.5 * (longest / 4000) ** 0.4
    training_s = 15.0 * (valid / 600_000) ** 0.9
    return {
        "generation": (generation_s, 420.0 * gpus * generation_s),
        "reward": (2.0, 120.0 * gpus * 2.0),
        "logprob": (training_s * 0.3, 600.0 * gpus * training_s * 0.3),
        "training": (training_s, 650.0 * gpus * training_s),
        "refit": (1.5, 200.0 * gpus * 1.5),
    }


def true_saving_percent(spec: RunSpec, events: Iterable[Event]) -> float:
    """What the whole run saved: the phases of lowered updates would have taken the governor so much more."""
    measured_j = governor_j = 0.0
    for event in events:
        if event["ev"] == "update":
            record = event["record"]
            phases_j = sum(phase["energy_j"] for phase in record["phases"].values())
            more = 0.0 if is_governor(spec, event["index"]) else spec.saving / (1.0 - spec.saving)
            measured_j += record["energy_j"]
            governor_j += record["energy_j"] + more * phases_j
    return 100.0 * (1.0 - measured_j / governor_j)


def run_events(spec: RunSpec) -> Iterator[Event]:
    """The whole run; ``spec.edit`` may replace events one by one."""
    for event in _events(spec):
        edited = spec.edit(event) if spec.edit else None
        if edited is None:
            yield event
        else:
            yield from edited


def _events(spec: RunSpec) -> Iterator[Event]:
    yield from start_events(spec)
    rng = random.Random(spec.seed)
    gpus = spec.nodes * spec.gpus_per_node
    uuids = spec.uuids
    shares = [1.0 + 0.1 * (place / gpus) for place in range(len(uuids))]
    weights = [share / sum(shares) for share in shares]
    cumulative = dict.fromkeys(uuids, 0.0)
    clock_s = 3.0
    for uuid, weight in zip(uuids, weights, strict=True):
        cumulative[uuid] += 3.0 * 90.0 * gpus * weight
    plan_id = 0
    yield _plan(0, 0.7, None, None, "CALIBRATION", spec)
    lowered = False
    for index in range(spec.updates):
        governor = is_governor(spec, index)
        state = state_of(spec, index)
        if lowered == governor:
            plan_id += 1
            wanted = (None, None) if governor else (spec.generation_mhz, spec.training_mhz)
            yield _plan(plan_id, clock_s, *wanted, state, spec)
            yield {
                "ev": "clock",
                "t_s": clock_s,
                "plan_id": plan_id,
                "phase": "generation",
                "mhz": wanted[0],
                "latency_s": 0.02,
                "gpus_set": gpus,
                "failures": [],
            }
        lowered = not governor
        grow = spec.growth ** (index / max(spec.updates - 1, 1))
        spread = math.exp(rng.gauss(0, 0.1))
        generated = int(800_000 * grow * spread)
        valid = int(generated * 0.75 * math.exp(rng.gauss(0, 0.03)))
        longest = int(4000 * grow * math.exp(rng.gauss(0, 0.05)))
        truth = governor_truth(generated, valid, longest, gpus)
        begin_s = clock_s
        update_j = dict.fromkeys(uuids, 0.0)
        label = index + 1
        phase_records: dict[str, Any] = {}
        steps = dict(truth)
        steps |= {f"stage_{place:02d}": (0.5, 0.5 * 300.0 * gpus) for place in range(spec.more_phases)}
        if spec.validation_every and label % spec.validation_every == 0:
            steps["validation"] = (30.0, 380.0 * gpus * 30.0)
        for phase, (truth_s, truth_j) in steps.items():
            noise_s, noise_j = math.exp(rng.gauss(0, spec.noise)), math.exp(rng.gauss(0, spec.noise))
            slow = 1.0 if governor else 1.0 + spec.slowdown
            cheap = 1.0 if governor else 1.0 - spec.saving
            if index < spec.warm_up:
                slow, cheap = 5.0, 3.0
            took_s, took_j = truth_s * noise_s * slow, truth_j * noise_j * cheap
            energy = {uuid: took_j * weight for uuid, weight in zip(uuids, weights, strict=True)}
            mhz = None if governor else spec.generation_mhz
            if not governor and phase in ("training", "logprob"):
                mhz = spec.training_mhz
            line = {
                "ev": "phase",
                "t_s": clock_s + took_s,
                "update": label,
                "phase": phase,
                "begin_s": clock_s,
                "end_s": clock_s + took_s,
                "elapsed_s": took_s,
                "energy_j": took_j,
                "energy_reason": None,
                "gpu_energy_j": energy,
                "requested_mhz": mhz,
                "achieved_mhz": 1755.0 if mhz is None and phase == "training" else (mhz or 1980) - 3.0,
                "busy_fraction": {"generation": 0.82, "training": 0.97, "logprob": 0.95}.get(phase, 0.15),
                "capped_fraction": 0.6 if mhz is None and phase == "training" else 0.0,
                "exclusive": True,
                "complete": True,
            }
            yield line
            if spec.subphases and phase == "generation":
                part = {uuid: value * 0.3 for uuid, value in energy.items()}
                yield {
                    **line,
                    "phase": "generation/prefill",
                    "end_s": clock_s + took_s * 0.25,
                    "elapsed_s": took_s * 0.25,
                    "energy_j": took_j * 0.3,
                    "gpu_energy_j": part,
                    "exclusive": False,
                }
            phase_records[phase] = {"elapsed_s": took_s, "energy_j": took_j}
            clock_s += took_s
            for uuid, value in energy.items():
                update_j[uuid] += value
        gap_s, gap_j = 0.8, 0.8 * 110.0 * gpus
        clock_s += gap_s
        for uuid, weight in zip(uuids, weights, strict=True):
            update_j[uuid] += gap_j * weight
        total_j = sum(update_j.values())
        for uuid, value in update_j.items():
            cumulative[uuid] += value
        counts = spec.counts
        yield {
            "ev": "update",
            "t_s": clock_s,
            "index": index,
            "begin_s": begin_s,
            "end_s": clock_s,
            "state": state,
            "plan_id": plan_id,
            "record": {
                "update": label,
                "plan_id": plan_id,
                "elapsed_s": clock_s - begin_s,
                "energy_j": total_j,
                "phases": phase_records,
                "pools": {
                    role: {
                        "requested_mhz": None if governor else mhz,
                        "achieved_mhz": float(spec.governor_mhz if governor else mhz),
                        "energy_j": total_j,
                        "busy_s": 0.8 * (clock_s - begin_s),
                        "wait_s": 0.2 * (clock_s - begin_s),
                    }
                    for role, mhz in (("generation", spec.generation_mhz), ("training", spec.training_mhz))
                },
                "generated_tokens": generated if counts else None,
                "longest_generated_tokens": longest if counts else None,
                "valid_tokens": valid if counts else None,
                "longest_consumed_tokens": longest if counts else None,
                "reward": 0.2 + 0.3 * index / spec.updates,
                "flags": ["validation"] if "validation" in steps else [],
            },
            "governor": None,
            "gpu_energy_j": dict(update_j),
            "unattributed": {"elapsed_s": gap_s, "energy_j": gap_j},
            "usable": index >= spec.warm_up,
            "unusable_reason": None if index >= spec.warm_up else "warm-up",
        }
        yield {"ev": "tick", "t_s": clock_s, "gpu_energy_j": dict(cumulative), "nodes_silent": []}
    if spec.end:
        clock_s += 2.0
        for uuid, weight in zip(uuids, weights, strict=True):
            cumulative[uuid] += 2.0 * 90.0 * gpus * weight
        yield end_event(spec, clock_s, cumulative)


def _plan(
    plan_id: int, t_s: float, generation: int | None, training: int | None, state: str, spec: RunSpec
) -> Event:
    return {
        "ev": "plan",
        "t_s": t_s,
        "plan_id": plan_id,
        "generation_mhz": generation,
        "training_mhz": training,
        "idle_mhz": None,
        "state": state,
        "reason": "CALIBRATING" if generation is None else "TRIAL",
        "note": "",
    }


def end_event(spec: RunSpec, t_s: float, cumulative_j: dict[str, float]) -> Event:
    """The last line of a run that came to its end."""
    return {
        "ev": "end",
        "t_s": t_s,
        "time_unix_s": 1_790_000_000.0 + t_s,
        "exit_code": spec.exit_code,
        "signal": None,
        "status": "complete",
        "gpu_energy_j": dict(cumulative_j),
        "gpu_coverage": dict.fromkeys(cumulative_j, 1.0),
        "resets": dict.fromkeys(node_names(spec), "ok"),
        "markers": {"received": 7 * spec.updates, "malformed": 0, "lost": 0},
        "updates": spec.updates,
    }


def constant_power_events(
    spec: RunSpec, powers_w: list[float], seconds: float, phase_s: float
) -> Iterator[Event]:
    """E01: GPUs at constant power, generation and training in turn with a pause of half a second between."""
    yield from start_events(spec)
    clock_s, label = 1.0, 0
    while clock_s + 2 * phase_s + 1.0 <= seconds:
        begin_s, label = clock_s, label + 1
        for phase in ("generation", "training"):
            energy = {uuid: power * phase_s for uuid, power in zip(spec.uuids, powers_w, strict=True)}
            yield {
                "ev": "phase",
                "t_s": clock_s + phase_s,
                "update": label,
                "phase": phase,
                "begin_s": clock_s,
                "end_s": clock_s + phase_s,
                "elapsed_s": phase_s,
                "energy_j": sum(energy.values()),
                "gpu_energy_j": energy,
                "exclusive": True,
                "complete": True,
            }
            clock_s += phase_s + 0.5
        took_s = clock_s - begin_s
        energy = {uuid: power * took_s for uuid, power in zip(spec.uuids, powers_w, strict=True)}
        yield {
            "ev": "update",
            "t_s": clock_s,
            "index": label - 1,
            "begin_s": begin_s,
            "end_s": clock_s,
            "record": {"update": label, "plan_id": 0, "elapsed_s": took_s, "energy_j": sum(energy.values())},
            "gpu_energy_j": energy,
            "unattributed": {"elapsed_s": 1.0, "energy_j": sum(powers_w)},
            "usable": True,
        }
    total = {uuid: power * seconds for uuid, power in zip(spec.uuids, powers_w, strict=True)}
    yield end_event(spec, seconds, total)


def write_ledger(folder: Path, events: Iterable[Event]) -> Path:
    """``ledger.jsonl`` in ``folder`` with these events; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with LedgerWriter(folder) as ledger:
        for event in events:
            ledger.append(event)
    return folder


def write_run(folder: Path, spec: RunSpec | None = None) -> Path:
    """The ledger of a run like ``spec``; the folder."""
    return write_ledger(folder, run_events(spec or RunSpec()))
