"""Runs slurm_examples/trl_grpo.py and writes down, beside its markers, what the loss really consumed.

Called by test_trl.py in the environment with torch and TRL: ``trl_witness.py EXAMPLE OUT [options of the example]``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    example, out, *options = sys.argv[1:]
    names = runpy.run_path(example, run_name="example")
    trainer_class = names["GRPOTrainer"]
    generated: list[list[int]] = []
    consumed: list[int] = []
    compute_loss, generate = trainer_class._compute_loss, trainer_class._generate

    def seen_loss(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
        if self.model.training:
            consumed.append(int(inputs["completion_mask"].sum()))
        return compute_loss(self, model, inputs)

    def seen_generate(self: Any, *args: Any) -> Any:
        result = generate(self, *args)
        if self.model.training:
            generated.append([len(ids) for ids in result[1]])
        return result

    trainer_class._compute_loss, trainer_class._generate = seen_loss, seen_generate
    with tempfile.TemporaryDirectory() as folder:
        trainer = names["build_trainer"](names["parse_arguments"](options), Path(folder))
        trainer.train()
        if os.environ.get("WITNESS_EVALUATE"):
            trainer.evaluate(trainer.train_dataset.select(range(4)))
    rank = trainer.accelerator.process_index
    Path(f"{out}.{rank}").write_text(
        json.dumps({"generated": generated, "consumed": consumed, "log": trainer.state.log_history})
    )


main()
