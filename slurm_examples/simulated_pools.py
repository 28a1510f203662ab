"""Trainers whose generation and training have GPUs of their own: in turns, side by side, or in flight.

The three loops of ``simulated_grpo.py --mode``. Each names its pools and marks what a real trainer of its kind
would; an engine and a trainer are a thread each.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from simulated_work import (
    LOGPROB_TOKEN_S,
    TRAINING_TOKEN_S,
    Rollout,
    decode_pieces,
    draw_rollout,
    generate,
    stream,
    warm_up,
)

from eerl_launch import mark
from eerl_launch.devices.base import DeviceError
from eerl_launch.simulate import SimWorkload

REFIT_S = 1.2
#: Batches that may be generated ahead of the one being trained on: the policy age of in-flight updates.
MOST_AHEAD = 2
#: An engine looks up between decode steps; here after this many virtual seconds of them.
LOOK_S = 0.5


@dataclass(frozen=True)
class Pools:
    """The two workloads of a run and its length."""

    engine: SimWorkload
    trainer: SimWorkload
    updates: int
    seed: int
    log_every: int

    def batch(self, update: int) -> Rollout:
        return draw_rollout(stream(self.seed, update), update / self.updates, len(self.engine.members))

    def pace(self, update: int) -> float:
        return warm_up(update) * stream(self.seed + 1, update).lognormvariate(0, 0.006)

    def train(self, update: int, batch: Rollout, slow: float = 1.0) -> None:
        """Log-probabilities and the step itself, on the training pool."""
        gpus = len(self.trainer.members)
        with mark.phase("logprob", update):
            self.trainer.run_phase("training", LOGPROB_TOKEN_S * batch.generated_tokens / gpus, load=0.85)
        with mark.phase("training", update) as phase:
            self.trainer.run_phase("training", slow * TRAINING_TOKEN_S * batch.valid_tokens / gpus)
            phase.set(valid_tokens=batch.valid_tokens)

    def send_weights(self) -> None:
        """Weights go from the one pool to the other; both are busy a little."""
        both = [
            threading.Thread(target=pool.run_phase, args=("generation", REFIT_S, 0.3))
            for pool in (self.engine, self.trainer)
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()

    def report(self, update: int, batch: Rollout, **more: float) -> None:
        """The counts of an update, as a trainer logs them."""
        reward = 0.2 + 0.5 * update / self.updates + stream(self.seed + 2, update).gauss(0, 0.02)
        mark.update(
            update,
            generated_tokens=batch.generated_tokens,
            valid_tokens=batch.valid_tokens,
            longest_response_tokens=batch.longest,
            responses=len(batch.lengths),
            reward=round(reward, 4),
            **more,
        )
        if (update + 1) % self.log_every == 0 or update + 1 == self.updates:
            print(
                f"simulated_grpo: update {update + 1}/{self.updates}: {batch.generated_tokens} tokens, "
                f"longest {batch.longest}, reward {reward:.2f}",
                flush=True,
            )


def take_turns(pools: Pools) -> None:
    """Disaggregated synchronous: the trainer waits for the batch, the engine for the weights."""
    for update in range(pools.updates):
        batch = pools.batch(update)
        with mark.phase("generation", update) as phase:
            generate(pools.engine, batch, pools.pace(update))
            phase.set(generated_tokens=batch.generated_tokens, longest_response_tokens=batch.longest)
        with mark.phase("reward", update):
            pools.trainer.run_phase("idle", 0.8)
        pools.train(update, batch, warm_up(update))
        with mark.phase("refit", update):
            pools.send_weights()
        pools.report(update, batch)


def meet(pools: Pools) -> None:
    """Asynchronous drained: the next batch is generated while this one is trained on; they meet at the refit."""

    def engine(update: int) -> None:
        batch = pools.batch(update)
        with mark.phase("generation", update) as phase:
            generate(pools.engine, batch, pools.pace(update))
            phase.set(generated_tokens=batch.generated_tokens, longest_response_tokens=batch.longest)

    engine(0)
    for update in range(pools.updates):
        ahead = threading.Thread(target=engine, args=(update + 1,))
        if update + 1 < pools.updates:
            ahead.start()
        pools.train(update, pools.batch(update), warm_up(update))
        if update + 1 < pools.updates:
            ahead.join()
        with mark.phase("refit", update):
            pools.send_weights()
        pools.report(update, pools.batch(update), policy_age=min(update, 1))


class Engine(threading.Thread):
    """Generates batch after batch, held only while weights change; never more than a few ahead of the trainer."""

    def __init__(self, pools: Pools) -> None:
        super().__init__(daemon=True)
        self._pools = pools
        self._running = threading.Lock()
        self._may_run = threading.Event()
        self._may_run.set()
        self._ahead = threading.Semaphore(MOST_AHEAD)
        self.version = 0
        #: Batches that are whole, with the weights' version when they were begun.
        self.whole: queue.Queue[tuple[Rollout, int]] = queue.Queue()

    def run(self) -> None:
        for update in range(self._pools.updates):
            self._ahead.acquire()
            batch, version = self._pools.batch(update), self.version
            with mark.phase("generation", update) as phase:
                for seconds, load in decode_pieces(batch, self._pools.pace(update)):
                    self._decode(seconds, load)
                phase.set(generated_tokens=batch.generated_tokens, longest_response_tokens=batch.longest)
            self.whole.put((batch, version))

    def _decode(self, seconds: float, load: float) -> None:
        while seconds > 0:
            self._may_run.wait()
            with self._running:
                self._pools.engine.run_phase("generation", min(seconds, LOOK_S), load)
            seconds -= LOOK_S

    def consumed(self) -> None:
        """The trainer is done with a batch: there is room for one more."""
        self._ahead.release()

    def refit(self, update: int) -> None:
        """Pause in the middle of whatever is being decoded, change the weights, go on."""
        self._may_run.clear()
        with self._running:
            mark.pause(update)
            self._pools.send_weights()
            self.version = update + 1
            mark.resume(update)
        self._may_run.set()


def in_flight(pools: Pools) -> None:
    """Asynchronous in flight: generation pauses for new weights and goes on with what it had begun."""
    engine = Engine(pools)
    engine.start()
    for update in range(pools.updates):
        batch, version = engine.whole.get()
        pools.train(update, batch, warm_up(update))
        engine.consumed()
        engine.refit(update)
        pools.report(update, batch, policy_age=update - version)
    engine.join()


def _loop(mode: str, body: Callable[[Pools], None]) -> Callable[[int, int, int], None]:
    def loop(updates: int, seed: int, log_every: int) -> None:
        with SimWorkload() as everything:
            members = everything.members
        half = len(members) // 2
        if not half:
            raise DeviceError("separate pools need at least two GPUs, such as --simulate h100:2x8")
        with SimWorkload(gpus=members[:half]) as engine, SimWorkload(gpus=members[half:]) as trainer:
            mark.run(framework="simulated_grpo", mode=mode, total_updates=updates, model="simulated")
            mark.pool("generation", engine.uuids)
            mark.pool("training", trainer.uuids)
            body(Pools(engine, trainer, updates, seed, log_every))

    return loop


POOL_LOOPS = {
    "disaggregated": _loop("disaggregated_sync", take_turns),
    "drained": _loop("async_drained", meet),
    "inflight": _loop("async_inflight", in_flight),
}
