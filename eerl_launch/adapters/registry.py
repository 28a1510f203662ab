"""Which adapter wants to see which module of a framework. Loaded into every Python of the job: keep it small."""

from __future__ import annotations

#: Defining module → our module that adapts it. A patch there reaches every ``from X import Y`` made later.
MODULES = {
    "trl.trainer.grpo_trainer": "trl",
    "trl.generation.vllm_generation": "trl",
}

#: What ``--adapter`` takes → the modules of ours that it means.
ADAPTERS = {
    "trl": ("trl",),
}


def wanted(choice: str) -> dict[str, str]:
    """The rows of :data:`MODULES` for a value of ``--adapter``; none for a name that is not known."""
    if choice == "auto":
        return dict(MODULES)
    return {module: ours for module, ours in MODULES.items() if ours in ADAPTERS.get(choice, ())}
