"""An RL-shaped program for end-to-end tests: marked phases of settable length that load the node's stub GPUs.

    eerl-run -- python tests/rig/job.py --updates 30 --generation 2 --training 2

The load is set on this node's GPUs of the job; on further nodes of the job run ``job.py --follow FILE`` and give
``--lead FILE`` to the first, and they load theirs in step. With ``--scale`` the work of a phase takes longer at a
lower achieved clock, as in life. Standard library and the marker client only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvml_stub.stub import Stub

from eerl_launch import mark

STEP_S = 0.02


class Gpus:
    """The job's GPUs on this node, as Slurm numbers them; none outside a job with GPUs."""

    def __init__(self, lead: Path | None) -> None:
        numbers = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
        self.indices = [int(number) for number in numbers.split(",") if number]
        self.stub = Stub() if self.indices else None
        self.lead = lead

    def load(self, phase: str) -> None:
        """Load as this phase does; an empty name is an idle CUDA context, "end" is none."""
        for index in self.indices:
            assert self.stub is not None
            self.stub.set_load(
                index,
                generation=1.0 if phase == "generation" else 0.0,
                training={"training": 1.0, "logprob": 0.6}.get(phase, 0.0),
                context=phase != "end",
            )
        if self.lead is not None:
            new = self.lead.with_suffix(".new")
            new.write_text(phase)
            new.replace(self.lead)

    def speed(self, phase: str) -> float:
        """How fast the slowest GPU works at this phase, 1 at the top clock."""
        if self.stub is None or phase not in ("generation", "training", "logprob"):
            return 1.0
        rate = self.stub.generation_speed if phase == "generation" else self.stub.training_speed
        return min(rate(index) for index in self.indices)

    def work(self, phase: str, seconds: float, scale: bool) -> None:
        """Run a phase that takes ``seconds`` at the top clock."""
        self.load(phase)
        done, before = 0.0, time.monotonic()
        while done < seconds:
            time.sleep(min(STEP_S, seconds - done))
            now = time.monotonic()
            done += (now - before) * (self.speed(phase) if scale else 1.0)
            before = now
        self.load("")


def follow(gpus: Gpus, lead: Path) -> None:
    """Load this node's GPUs as the leader's file says, until it says "end"."""
    phase = ""
    while phase != "end":
        now = lead.read_text() if lead.exists() else ""
        if now != phase:
            gpus.load(now)
        phase = now
        time.sleep(STEP_S / 2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--generation", type=float, default=2.0, metavar="S")
    parser.add_argument("--training", type=float, default=2.0, metavar="S")
    parser.add_argument("--logprob", type=float, default=0.0, metavar="S")
    parser.add_argument("--refit", type=float, default=0.0, metavar="S")
    parser.add_argument("--scale", action="store_true", help="work follows the achieved clock")
    parser.add_argument("--lead", type=Path)
    parser.add_argument("--follow", type=Path)
    parser.add_argument("--mode", default="colocated_sync", help="what the run marker says")
    parser.add_argument("--no-markers", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--touch-on", nargs=2, action="append", default=[], metavar=("SIGNAL", "FILE"))
    parser.add_argument("--started", type=Path, help="a file to make when the first update begins")
    parser.add_argument("--exit", type=int, default=0, metavar="CODE")
    parser.add_argument("--kill-self", metavar="SIGNAL")
    return parser.parse_args()


def main() -> int:
    wish = parse()
    gpus = Gpus(wish.lead)
    if wish.follow is not None:
        follow(gpus, wish.follow)
        return 0
    if wish.no_markers:
        os.environ.pop("EERL_SOCKET", None)
    if wish.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    files = {signal.Signals[name].value: Path(file) for name, file in wish.touch_on}

    def touch(number: int, frame: FrameType | None) -> None:
        with files[number].open("a") as file:
            file.write(f"{number}\n")

    for number in files:
        signal.signal(number, touch)

    mark.run(framework="rig", mode=wish.mode, total_updates=wish.updates)
    for update in range(1, wish.updates + 1):
        if wish.started is not None:
            wish.started.touch()
        print(f"update {update}", flush=True)
        counts = {"generated_tokens": 10000 + 10 * update, "longest_response_tokens": 512 + update}
        with mark.phase("generation", update=update) as phase:
            gpus.work("generation", wish.generation, wish.scale)
            phase.set(**counts)
        for name, seconds in (("logprob", wish.logprob), ("training", wish.training), ("refit", wish.refit)):
            if seconds > 0:
                with mark.phase(name, update=update):
                    gpus.work(name, seconds, wish.scale)
        mark.update(update, valid_tokens=8000 + 10 * update, **counts)
    gpus.load("end")
    if wish.kill_self:
        os.kill(os.getpid(), signal.Signals[wish.kill_self])
    return int(wish.exit)


if __name__ == "__main__":
    sys.exit(main())
