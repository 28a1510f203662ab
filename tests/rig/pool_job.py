"""An RL-shaped program whose generation and training have a node each; markers come from both nodes.

    eerl-run -- srun -N2 -n2 --overlap python tests/rig/pool_job.py --mode drained --meet DIR

Task 0 is the engine, task 1 the trainer. They meet through files in DIR, which both nodes see. Each loads the stub
GPUs of its own node. Standard library and the marker client only.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvml_stub.stub import Stub

from eerl_launch import mark

MODES = {"disaggregated": "disaggregated_sync", "drained": "async_drained", "inflight": "async_inflight"}
LOOK_S = 0.005
HANG_S = 60.0
REFIT_S = 0.4
#: From the last response to the first batch.
HAND_OVER_S = 0.15


class Gpus:
    """The job's GPUs on this node."""

    def __init__(self) -> None:
        numbers = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
        self.indices = [int(number) for number in numbers.split(",") if number]
        self.stub = Stub()
        self.rest()

    @property
    def uuids(self) -> list[str]:
        return [self.stub.uuid(index) for index in self.indices]

    def work(self, kind: str, seconds: float) -> None:
        """Load the GPUs for a while."""
        for index in self.indices:
            self.stub.set_load(
                index, generation=float(kind == "generation"), training=float(kind == "training")
            )
        time.sleep(seconds)
        self.rest()

    def rest(self) -> None:
        for index in self.indices:
            self.stub.set_load(index)

    def leave(self) -> None:
        for index in self.indices:
            self.stub.clear_load(index)


class Meeting:
    """Two processes that wait for each other's word."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def say(self, word: str) -> None:
        (self.folder / word).touch()

    def hear(self, word: str) -> None:
        deadline = time.monotonic() + HANG_S
        while not (self.folder / word).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(word)
            time.sleep(LOOK_S)


def generate(gpus: Gpus, update: int, seconds: float, lose_end: bool) -> None:
    if lose_end:
        mark.begin("generation", update)
        gpus.work("generation", seconds)
        return
    with mark.phase("generation", update) as phase:
        gpus.work("generation", seconds)
        phase.set(generated_tokens=10_000 + update, longest_response_tokens=500 + update)


def train(gpus: Gpus, update: int, seconds: float) -> None:
    with mark.phase("training", update) as phase:
        gpus.work("training", seconds)
        phase.set(valid_tokens=8000 + update)


def engine(wish: argparse.Namespace, gpus: Gpus, meeting: Meeting) -> None:
    """Task 0: waits for the weights of the update before; in flight it only pauses for them."""
    if wish.mode == "inflight":
        done = threading.Event()
        paused = threading.Lock()

        def follow() -> None:
            for update in range(wish.updates):
                meeting.hear(f"trained-{update}")
                with paused:
                    mark.pause(update)
                    meeting.say(f"paused-{update}")
                    gpus.rest()
                    meeting.hear(f"sent-{update}")
                    mark.resume(update)
            done.set()

        threading.Thread(target=follow, daemon=True).start()
        mark.begin("generation", 0)
        pieces = 0
        while not done.is_set():
            with paused:
                gpus.work("generation", 0.05)
            time.sleep(LOOK_S)
            pieces += 1
            if pieces % 20 == 0:
                mark.end("generation", pieces // 20 - 1, generated_tokens=5000, longest_response_tokens=500)
                meeting.say(f"generated-{pieces // 20 - 1}")
                mark.begin("generation", pieces // 20)
        return
    for update in range(wish.updates):
        generate(gpus, update, wish.generation, wish.lose_ends)
        meeting.say(f"generated-{update}")
        refitted = update if wish.mode == "disaggregated" else update - 1
        if refitted >= 0:
            meeting.hear(f"sent-{refitted}")


def trainer(wish: argparse.Namespace, gpus: Gpus, meeting: Meeting) -> None:
    """Task 1: trains on a batch and sends the weights."""
    for update in range(wish.updates):
        meeting.hear(f"generated-{update}")
        time.sleep(HAND_OVER_S)
        train(gpus, update, wish.training)
        if wish.mode == "drained" and update + 1 < wish.updates:
            meeting.hear(f"generated-{update + 1}")
        if wish.mode == "inflight":
            meeting.say(f"trained-{update}")
            meeting.hear(f"paused-{update}")
            time.sleep(REFIT_S)
        else:
            with mark.phase("refit", update):
                time.sleep(REFIT_S)
        meeting.say(f"sent-{update}")
        time.sleep(wish.late)
        mark.update(
            update,
            valid_tokens=8000 + update,
            generated_tokens=10_000 + update,
            longest_response_tokens=500 + update,
            policy_age=0 if wish.mode == "disaggregated" else 1,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--generation", type=float, default=1.5, metavar="S")
    parser.add_argument("--training", type=float, default=1.5, metavar="S")
    parser.add_argument("--silent", choices=("engine", "trainer"), help="who never says which GPUs it has")
    parser.add_argument("--lose-ends", action="store_true", help="no end of generation is ever marked")
    parser.add_argument("--late", type=float, default=0.0, metavar="S", help="counts come this much later")
    wish = parser.parse_args()
    gpus, meeting = Gpus(), Meeting(wish.meet)
    first = os.environ["SLURM_PROCID"] == "0"
    if first:
        mark.run(framework="rig", mode=MODES[wish.mode], total_updates=wish.updates)
    if wish.silent != ("engine" if first else "trainer"):
        mark.pool("generation" if first else "training", gpus.uuids)
    mark.flush(1.0)
    meeting.say(f"here-{int(first)}")
    meeting.hear(f"here-{int(not first)}")
    time.sleep(0.5)  # a marker of the other node is relayed
    (engine if first else trainer)(wish, gpus, meeting)
    gpus.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
