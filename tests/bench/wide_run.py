"""The ledger of a long run of many phases and GPUs, in the form in which the session writes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report.ledgers import RunSpec, run_events, write_ledger

from eerl_launch.gpu_detail import UPDATES_BETWEEN, TickDetail, millijoules

Event = dict[str, Any]
_WHOLE = "all"


@dataclass
class WideSpec(RunSpec):
    """A run whose joules are first those of all GPUs together, so that it takes seconds to make up."""

    @property
    def uuids(self) -> list[str]:
        """One name for all GPUs."""
        return [_WHOLE]


def write_wide_run(folder: Path, spec: WideSpec) -> Path:
    """The ledger of a run like ``spec``; the folder."""
    return write_ledger(folder, _widened(spec))


def _widened(spec: WideSpec) -> Iterator[Event]:
    """The events with every GPU in them: as many as the session would write (``eerl_launch.gpu_detail``)."""
    by_node = [
        [f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}" for gpu in range(spec.gpus_per_node)]
        for node in range(spec.nodes)
    ]
    uuids = [uuid for members in by_node for uuid in members]
    weights = [0.95 + 0.1 * place / len(uuids) for place in range(len(uuids))]
    gpus = [weight / sum(weights) for weight in weights]
    ticks, sums, updates, nodes = TickDetail(), dict[tuple[str, bool], float](), 0, iter(by_node)
    model: Event = {}
    for event in run_events(spec):
        kind = event["ev"]
        if kind == "node":
            model = model or event["gpus"][0]
            event["gpus"] = [model | {"uuid": uuid, "index": at} for at, uuid in enumerate(next(nodes))]
        elif kind == "phase" and event["phase"] != "generation":
            key = (event["phase"], event["exclusive"])
            sums[key] = sums.get(key, 0.0) + event["energy_j"]
            event |= {"gpu_energy_j": None, "gpus": len(uuids)}
        elif kind in ("phase", "update", "tick", "end"):
            whole_j = event["gpu_energy_j"][_WHOLE]
            by_gpu = {uuid: whole_j * share for uuid, share in zip(uuids, gpus, strict=True)}
            event["gpu_energy_j"] = (
                ticks.totals(by_gpu, event["t_s"]) if kind == "tick" else millijoules(by_gpu)
            )
            updates += kind == "update"
            if kind == "end" or (kind == "update" and updates % UPDATES_BETWEEN == 0):
                yield _sums(event["t_s"], sums, dict(zip(uuids, gpus, strict=True)))
        if kind == "end":
            event["gpu_coverage"] = dict.fromkeys(uuids, 1.0)
        yield event


def _sums(t_s: float, sums: dict[tuple[str, bool], float], gpus: dict[str, float]) -> Event:
    return {
        "ev": "gpu_phases",
        "t_s": t_s,
        "phases": [name for name, _ in sums],
        "exclusive": [exclusive for _, exclusive in sums],
        "gpu_phase_energy_j": {
            uuid: [round(joules * share, 3) for joules in sums.values()] for uuid, share in gpus.items()
        },
    }
