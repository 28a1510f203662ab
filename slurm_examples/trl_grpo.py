"""A GRPO training with TRL, as anybody writes it: not a line of it knows of eerl.

    sbatch slurm_examples/trl_grpo.sbatch            # on a cluster with eerl's plugin
    eerl-run -- python slurm_examples/trl_grpo.py    # anywhere

Needs torch and trl. The model is tiny and random, and trains on CPU in seconds.
"""

from __future__ import annotations

import argparse
import os
import string
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses by threads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character."""
    words = ["<pad>", "<eos>", "<unk>", *string.printable]
    inner = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
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


def build_trainer(options: argparse.Namespace, folder: Path) -> GRPOTrainer:
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
    return GRPOTrainer(
        model=model, reward_funcs=digits, args=config, train_dataset=prompts, processing_class=tokenizer
    )


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="GRPO with TRL on CPU and a tiny random model.")
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
