"""TRL's GRPOTrainer with eerl's markers: the few lines that a real training script needs, in one subclass.

    sbatch slurm_examples/trl_grpo.sbatch            # on a cluster with eerl's plugin
    eerl-run -- python slurm_examples/trl_grpo.py    # anywhere

Needs torch and trl (tried with trl 1.16.0). The model is tiny and random, and runs on CPU in seconds: what is shown
here is where the markers go. Copy ``MarkedGRPOTrainer`` and use it in place of ``GRPOTrainer``. Without eerl-run
every marker call does nothing.
"""

from __future__ import annotations

import argparse
import os
import string
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses by threads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from eerl_launch import mark


class MarkedGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that tells eerl what it does.

    An update is one rollout and everything trained on it (``steps_per_generation * num_iterations`` micro-steps).
    All ranks send the same totals, and eerl takes several senders of one phase as one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._rollout = 0  # number of the update that runs
        self._counts: dict[str, int] = {}
        self._scoring = False
        self._training_marked = False
        super().__init__(*args, **kwargs)
        self.add_callback(_UpdateEnds(self))

    @property
    def micro_steps_per_update(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    def _generate(self, prompts: list) -> Any:
        if not self.model.training:  # part of a validation, which is marked as a whole
            return super()._generate(prompts)
        self._rollout = (
            self.state.global_step * self.args.gradient_accumulation_steps // self.micro_steps_per_update
        )
        with mark.phase("generation", self._rollout) as phase:
            result = super()._generate(prompts)
            completion_ids, tool_mask = result[1], result[2]
            # Of multi-turn responses the model generated only what its mask says; tools wrote the rest.
            own = (
                [sum(mask) for mask in tool_mask]
                if tool_mask is not None
                else [len(ids) for ids in completion_ids]
            )
            lengths = self.accelerator.gather(torch.tensor(own, device=self.accelerator.device))
            self._counts = {
                "generated_tokens": int(lengths.sum()),
                "longest_response_tokens": int(lengths.max()),
                "responses": lengths.numel(),
            }
            phase.set(**self._counts)
        return result

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with mark.phase("reward", self._rollout) if self.model.training else nullcontext():
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        # Called before training for old and reference log-probabilities, and again by the loss, which is training.
        with mark.phase("logprob", self._rollout) if self._scoring else nullcontext():
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list) -> dict[str, Any]:
        self._scoring = self.model.training
        try:
            batch = super()._generate_and_score_completions(inputs)
        finally:
            self._scoring = False
        if self.model.training:
            # Sum of the loss mask over all ranks: truncated and tool tokens that the loss leaves out are not in it.
            self._counts["valid_tokens"] = int(batch["num_items_in_batch"])
        return batch

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and not self._training_marked:
            mark.begin("training", self._rollout)
            self._training_marked = True
        return inputs

    def update_ends(self) -> None:
        """The last optimizer step on this rollout is done."""
        mark.end("training", self._rollout)
        self._training_marked = False
        rewards = self._metrics["train"].get("reward")
        mark.update(self._rollout, **self._counts, reward=rewards[-1] if rewards else None)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with mark.phase("validation", self._rollout):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with mark.phase("checkpoint", self._rollout):
            super()._save_checkpoint(*args, **kwargs)


class _UpdateEnds(TrainerCallback):
    """Sees optimizer steps; several of them can make one update."""

    def __init__(self, trainer: MarkedGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: GRPOConfig, state: Any, control: Any, **kwargs: Any) -> None:
        updates = state.max_steps * args.gradient_accumulation_steps // self.trainer.micro_steps_per_update
        mark.run(framework="trl", mode="colocated_sync", total_updates=updates)

    def on_step_end(self, args: GRPOConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer._step % self.trainer.micro_steps_per_update == 0:
            self.trainer.update_ends()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character."""
    words = ["<pad>", "<eos>", "<unk>", *string.printable]
    inner = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def make_model(folder: Path, tokenizer: PreTrainedTokenizerFast, hidden: int) -> LlamaForCausalLM:
    """A tiny Llama with random weights; beta > 0 loads its reference model from where the first rank saved it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.config._name_or_path = str(folder)
    model.save_pretrained(folder)
    return model


def digits(completions: list[str], **kwargs: Any) -> list[float]:
    """Reward: the share of digits in the answer."""
    return [sum(char.isdigit() for char in text) / max(1, len(text)) for text in completions]


def build_trainer(options: argparse.Namespace, folder: Path) -> MarkedGRPOTrainer:
    tokenizer = make_tokenizer()
    prompts = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(10) for b in range(10)])
    config = GRPOConfig(
        output_dir=str(folder / "out"),
        max_steps=options.updates,
        per_device_train_batch_size=options.responses,
        num_generations=4,
        num_iterations=options.iterations,
        max_completion_length=options.max_tokens,
        mask_truncated_completions=options.mask_truncated,
        beta=options.beta,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=options.seed,
    )
    model = make_model(folder / "model", tokenizer, options.hidden)
    return MarkedGRPOTrainer(
        model=model, reward_funcs=digits, args=config, train_dataset=prompts, processing_class=tokenizer
    )


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="GRPO with TRL on CPU, a tiny random model, and eerl's markers."
    )
    parser.add_argument("--updates", type=int, default=50, help="optimizer steps")
    parser.add_argument("--responses", type=int, default=8, help="per update and process")
    parser.add_argument("--max-tokens", type=int, default=32, help="of a response")
    parser.add_argument("--hidden", type=int, default=64, help="size of the model; larger takes longer")
    parser.add_argument(
        "--beta",
        type=float,
        default=0.0,
        help="above 0: with a reference model (logprob phase); one process only",
    )
    parser.add_argument("--iterations", type=int, default=1, help="optimizer steps on each rollout")
    parser.add_argument("--mask-truncated", action="store_true", help="truncated responses leave the loss")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main() -> None:
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="trl_grpo-") as name:
        trainer = build_trainer(options, Path(name))
        trainer.train()
    print(f"trl_grpo: {trainer.state.global_step} optimizer steps done")


if __name__ == "__main__":
    main()
