"""The trainer of the benchmarks: marked phases that load the node's stub GPUs, and a note of every edge.

    python tests/bench/trainer.py --edges FILE --updates 9 --phases generation:2.3,training:1.7

A line of FILE: update, phase, "begin" or "end", CLOCK_MONOTONIC in ns just before the marker, and what the stub's
GPUs have truly used until then, in mJ.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvml_stub.stub import Stub

from eerl_launch import mark


class Gpus:
    """The job's stub GPUs on this node, or none of them when they are to stay idle."""

    def __init__(self, idle: bool) -> None:
        self.stub = Stub()
        numbers = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
        self.indices = [int(number) for number in numbers.split(",") if number and not idle]

    def load(self, phase: str) -> None:
        """Load as this phase does; a context stays, so that the idle GPU keeps its clock."""
        for index in self.indices:
            self.stub.set_load(
                index,
                generation=1.0 if phase == "generation" else 0.0,
                training={"training": 1.0, "logprob": 0.6}.get(phase, 0.0),
            )

    def true_mj(self) -> float:
        """The exact integral of all GPUs of the job on this node."""
        return sum(self.stub.true_energy_mj(index) for index in self.indices)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--edges", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--phases", required=True, help="name:seconds,name:seconds,…")
    parser.add_argument("--no-load", action="store_true", help="leave the GPUs idle: markers only")
    parser.add_argument("--jitter", type=float, default=0.0, help="lengths vary by this share")
    parser.add_argument(
        "--first", type=float, default=3.0, metavar="S", help="idle time before the first update"
    )
    wish = parser.parse_args()
    gpus = Gpus(wish.no_load)
    phases = [
        (name, float(seconds)) for name, _, seconds in (p.partition(":") for p in wish.phases.split(","))
    ]
    rng = random.Random(1)
    edges: list[str] = []

    def note(update: int, phase: str, edge: str) -> None:
        true_mj = gpus.true_mj()
        edges.append(f"{update} {phase} {edge} {time.monotonic_ns()} {true_mj!r}\n")

    gpus.load("")
    time.sleep(wish.first)
    mark.run(framework="bench", mode="colocated_sync", total_updates=wish.updates)
    for update in range(1, wish.updates + 1):
        counts = {"generated_tokens": 10000 + 10 * update, "longest_response_tokens": 512 + update}
        for name, seconds in phases:
            note(update, name, "begin")
            mark.begin(name, update)
            gpus.load(name)
            time.sleep(seconds * (1 + wish.jitter * (rng.random() - 0.5)))
            note(update, name, "end")
            mark.end(name, update, **(counts if name == "generation" else {}))
            gpus.load("")
        mark.update(update, valid_tokens=8000 + 10 * update, **counts)
    time.sleep(0.5)
    wish.edges.write_text("".join(edges))


if __name__ == "__main__":
    main()
