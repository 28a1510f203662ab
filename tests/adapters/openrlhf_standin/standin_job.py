"""A run of the stand-in. Its arguments are JSON, the only argument here; dots in their names as in OpenRLHF's."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any


def arguments(text: str) -> SimpleNamespace:
    given: dict[str, Any] = json.loads(text)
    return SimpleNamespace(
        train=SimpleNamespace(
            async_enable=given.get("async", False),
            partial_rollout_enable=given.get("partial", False),
            colocate_all=given.get("colocate", True),
            num_episodes=2,
        ),
        algo=SimpleNamespace(dynamic_filtering_enable=given.get("filter", False)),
        rollout=SimpleNamespace(batch_size=2),
        ckpt=SimpleNamespace(save_steps=given.get("save", float("inf"))),
        eval=SimpleNamespace(steps=given.get("eval", float("inf"))),
        prompts=5,
        done=given.get("done", 0),
        last=given.get("last", 4),
        fails_at=given.get("fails_at", []),
        max_len=1000,
    )


def main() -> None:
    args = arguments(sys.argv[1])
    if args.train.async_enable:
        asynchronous(args)
        return
    from openrlhf.trainer.ppo_trainer import PPOTrainer

    PPOTrainer(args).fit(args.last)


def asynchronous(args: SimpleNamespace) -> None:
    """The actor that trains; the one that generates is a process of its own, one batch ahead."""
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer
    from openrlhf.trainer.ppo_utils import samples_generator

    generator = subprocess.Popen(
        [sys.executable, "-m", "standin_generator", sys.argv[1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def generate(update: int) -> None:
        assert generator.stdin is not None and generator.stdout is not None
        generator.stdin.write(f"{update}\n")
        generator.stdin.flush()

    def wait() -> None:
        assert generator.stdout is not None
        print(generator.stdout.readline(), end="", flush=True)

    trainer, step = BasePPOTrainer(args), args.done
    trainer.init_checkpoint_states()
    generate(step + 1)
    wait()
    while step < args.last:
        generate(step + 2)
        if not args.train.partial_rollout_enable:
            wait()  # the lock that generation holds
        plain = SimpleNamespace(args=args)
        samples = [
            samples_generator.SamplesGenerator._process_response_into_experience(
                plain, samples_generator._response(length, samples_generator.words(step + 1, row), 1.0)
            )
            for row, length in enumerate(samples_generator.lengths(step + 1))
        ]
        _, step = trainer.train_step(samples, step)
        if args.train.partial_rollout_enable:
            wait()
        trainer.save_logs_and_checkpoints(step)
    generator.stdin.close()
    generator.wait()


if __name__ == "__main__":
    main()
