"""What the adapters ask of TRL's trainers: to be told of their events, and what they train, how and where."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from .running import from_a_signal

#: A hook, which goes on after its call.
Watching = Generator[None, Any, None]


def listen(trainer: Any, say: Callable[[str], None], **events: Callable[[], None]) -> None:
    """Have these called at the trainer's callback events; nothing they raise reaches it, but `say`."""
    from transformers import TrainerCallback  # TRL has imported it

    def method(name: str, tell: Callable[[], None]) -> Callable[..., None]:
        def told(callback: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                tell()
            except Exception as error:
                if from_a_signal(error):
                    raise
                say(f"eerl's {name} failed ({error!r}); markers may be missing")

        return told

    kind = type(
        "EerlCallback", (TrainerCallback,), {name: method(name, tell) for name, tell in events.items()}
    )
    trainer.add_callback(kind())


def about(trainer: Any, version: str | None) -> dict[str, str | None]:
    """What the run is along the axes of profiles, as far as the trainer's own objects say it."""
    rewards = {
        "model" if hasattr(f, "parameters") else "function" for f in getattr(trainer, "reward_funcs", ())
    }
    dataset = getattr(getattr(trainer, "train_dataset", None), "info", None)
    return {
        "framework_version": version,
        "model": model_name(trainer),
        "algorithm": getattr(trainer, "_name", None),
        "reward": " and ".join(sorted(rewards)) or None,
        "task": getattr(dataset, "dataset_name", None),
    }


def model_name(trainer: Any) -> str | None:
    """What is trained, as its configuration has it; a wrapped model keeps its configuration."""
    name = getattr(getattr(getattr(trainer, "model", None), "config", None), "_name_or_path", None)
    return name if isinstance(name, str) and name else None


def micro_steps(trainer: Any) -> int:
    """Micro-steps that one rollout feeds."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def mode(trainer: Any) -> str:
    """A vLLM server has GPUs of its own; everything else takes turns on the trainer's."""
    server = getattr(trainer.args, "use_vllm", False) and trainer.args.vllm_mode == "server"
    return "disaggregated_sync" if server else "colocated_sync"
