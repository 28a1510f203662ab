"""A training with TRL's AsyncGRPOTrainer that knows nothing of eerl, and a witness of what it generates and consumes.

    async_grpo_script.py OUT [--steps N] [--every N] [--accumulate N] [--server URL] [--beside]

With ``vllm_standin`` on its path, since vLLM and the attention kernel need a GPU. A worker and a weight transfer of
our own, which the trainer takes as arguments, generate; with ``--server`` TRL's own do, which ask that server for
completions. With ``--beside`` a second trainer trains in a thread meanwhile. What the first trainer's first rank
really did is written to OUT.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import trl
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

PROMPT_TOKENS, GROUP = 4, 4


class Worker:
    """Puts groups of random responses, of which a few tokens are a tool's and not the model's."""

    def __init__(self) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=24)
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.version = 0
        self.put: list[tuple[int, int, float]] = []
        self._over = threading.Event()
        self._may_run = threading.Event()
        self._may_run.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version

    def check_health(self, stale_after_s: float) -> None:
        pass

    def hold(self, held: bool) -> None:
        """The server pauses: what is under way waits."""
        (self._may_run.clear if held else self._may_run.set)()

    def _run(self) -> None:
        rng = random.Random(0)
        for group in itertools.count():
            for _ in range(GROUP):
                sample = self._sample(rng, group)
                self._may_run.wait()
                if not self._hand_over(sample):
                    return
            time.sleep(0.02)

    def _hand_over(self, sample: Any) -> bool:
        while not self._over.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=0.05)
            except queue.Full:
                continue
            self.put.append((int(sample.completion_mask.sum()), sample.model_version, time.time()))
            return True
        return False

    def _sample(self, rng: random.Random, group: int) -> Any:
        length = rng.randint(3, 20)
        own = [0] * PROMPT_TOKENS + [int(index % 7 != 6) for index in range(length)]
        return RolloutSample(
            prompt=[],
            completion=[],
            input_ids=numpy.array([rng.randrange(3, 60) for _ in own]),
            completion_mask=numpy.array(own),
            old_log_probs=numpy.zeros(len(own), dtype=numpy.float32),
            advantage=rng.uniform(-1, 1),
            model_version=self.version,
            group_id=group,
            metrics={"reward": rng.random()},
        )


class Transfer:
    """Takes the weights and does nothing with them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        self._worker.hold(True)

    def send_weights(self, iterator: Any) -> None:
        for _ in iterator:
            pass

    def resume(self) -> None:
        self._worker.hold(False)

    def destroy(self) -> None:
        pass


def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Called by the worker once for each group, with what it generated."""
    with Path(os.environ["SCORED"]).open("a") as file:
        file.write(json.dumps([len(ids) for ids in completion_ids]) + "\n")
    return [random.random() for _ in completion_ids]


def shared_model(folder: Path, rank: int) -> str:
    """The first rank makes it, the others wait until it is whole."""
    if rank == 0 and not folder.exists():
        make_model(folder.with_suffix(".making"))
        folder.with_suffix(".making").rename(folder)
    while not folder.exists():
        time.sleep(0.05)
    return str(folder)


def make_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    words = ["<pad>", "<eos>", "<unk>", *map(str, range(60))]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    tokenizer.save_pretrained(folder)


class Witness(AsyncGRPOTrainer):
    """Writes down what the loss consumed and how old it was, by means that share nothing with an adapter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.micro: list[tuple[int, int]] = []
        self.syncs: list[tuple[float, float]] = []
        super().__init__(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.micro.append((int((inputs["token_index"] >= 0).sum()), self.model_version))
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _sync_weight(self) -> None:
        begin = time.time()
        super()._sync_weight()
        self.syncs.append((begin, time.time()))


def build(wish: argparse.Namespace, rank: int, worker: Worker | None) -> Witness:
    """A trainer; all are alike."""
    config = AsyncGRPOConfig(
        output_dir=str(wish.out.parent / "out"),
        max_steps=wish.steps,
        weight_sync_steps=wish.every,
        gradient_accumulation_steps=wish.accumulate,
        token_budget=128,
        num_generations=GROUP,
        max_completion_length=20,
        vllm_server_base_url=wish.server or "http://nobody",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dtype="float32",
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    return Witness(
        model=shared_model(wish.out.parent / "model", rank),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "1 2 3"}]}]),
        rollout_worker=worker,
        weight_transfer=Transfer(worker) if worker is not None else None,
    )


def trains_beside(first: Witness, second: Witness) -> None:
    """The second trains once the first does."""
    while not first.micro:
        time.sleep(0.01)
    second.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--server")
    parser.add_argument("--beside", action="store_true")
    wish = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    os.environ["SCORED"] = f"{wish.out}.scored"
    worker = Worker() if rank == 0 and not wish.server else None
    batches: list[list[int]] = []
    collate = async_grpo_trainer.DataCollatorForRollout.torch_call

    def seen_collate(collator: Any, examples: Any) -> Any:
        (rows,) = examples
        if threading.current_thread() is threading.main_thread():
            batches.append([int(sample["completion_mask"].sum()) for row in rows for sample in row.samples])
        return collate(collator, examples)

    async_grpo_trainer.DataCollatorForRollout.torch_call = seen_collate
    trainer = build(wish, rank, worker)
    second = (
        threading.Thread(target=trains_beside, args=(trainer, build(wish, rank, Worker())))
        if wish.beside
        else None
    )
    if second is not None:
        second.start()
    trainer.train()
    if second is not None:
        second.join()
    if torch.distributed.is_initialized():
        # A rank that ends with its group's threads at work may be aborted by them.
        torch.distributed.destroy_process_group()
    if rank:
        return
    trained = [entry for entry in trainer.state.log_history if "batch/trained_tokens_per_step" in entry]
    wish.out.write_text(
        json.dumps(
            {
                "put": worker.put if worker is not None else None,
                "micro": trainer.micro,
                "batches": batches,
                "syncs": trainer.syncs,
                "trained": [entry["batch/trained_tokens_per_step"] for entry in trained],
            }
        )
    )


if __name__ == "__main__":
    main()
