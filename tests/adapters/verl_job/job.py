"""A run of verl's synchronous trainer on a CPU, started as its own ``main_ppo`` starts it: in an actor of Ray."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import ray
from hydra import compose, initialize_config_module
from verl.trainer.main_ppo import run_ppo

STEPS = 4


@ray.remote(num_cpus=0)
class Runner:
    def run(self, config):  # type: ignore[no-untyped-def]

        import stubs
        import transfer_queue as tq

        config.transfer_queue.enable = True
        tq.init(config.transfer_queue)
        mode = config.trainer.v1.trainer_mode
        if mode == "separate_async":
            import stubs_async

            trainer, engines = stubs_async.Trainer(config), stubs_async.Manager(config)
        else:
            trainer, engines = stubs.TRAINERS[mode](config), stubs.Engines(config.stub_turns)
        trainer.init()
        trainer.fit(engines)
        counts = stubs.counts(trainer.actor_rollout_wg, engines, ahead=mode != "sync")
        Path(config.stub_record).write_text("".join(f"{json.dumps(line)}\n" for line in counts))
        tq.close()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--turns", type=int, default=1)
    options.add_argument("overrides", nargs="*")
    chosen = options.parse_args()
    with (
        tempfile.NamedTemporaryFile() as record,
        initialize_config_module("verl.trainer.config", version_base=None),
    ):
        config = compose(
            "ppo_trainer",
            [
                "data.train_batch_size=4",
                "data.gen_batch_size=4",
                "actor_rollout_ref.rollout.n=3",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.actor.use_kl_loss=true",
                "algorithm.adv_estimator=grpo",
                f"trainer.total_training_steps={STEPS}",
                "trainer.test_freq=2",
                "trainer.save_freq=-1",
                "trainer.val_before_train=true",
                "trainer.logger=[]",
                "trainer.resume_mode=disable",
                f"+stub_turns={chosen.turns}",
                f"+stub_record={record.name}",
                "+ray_kwargs.ray_init.include_dashboard=false",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
                *(() if os.environ["RAY_ADDRESS"] != "local" else ("ray_kwargs.ray_init.num_cpus=4",)),
                *chosen.overrides,
            ],
        )
        run_ppo(config, Runner)
        print(Path(record.name).read_text(), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
