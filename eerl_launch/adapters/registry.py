"""Which adapter wants to see which module of a framework. Loaded into every Python of the job: keep it small."""

from __future__ import annotations

#: Defining module → our module that adapts it. A patch there reaches every ``from X import Y`` made later.
MODULES = {
    "trl.trainer.grpo_trainer": "trl",
    "trl.generation.vllm_generation": "trl",
    "trl.experimental.async_grpo.async_grpo_trainer": "trl_async",
    "trl.experimental.async_grpo.async_rollout_worker": "trl_async",
    "ray._private.worker": "ray_env",
    "ray._private.runtime_env.uv_runtime_env_hook": "ray_env",
    "ray.dashboard.modules.job.sdk": "ray_env",
}

#: What ``--adapter`` takes → the modules of ours that it means.
ADAPTERS = {
    "trl": ("trl", "trl_async"),
}
#: What every framework may stand on.
SHARED = ("ray_env",)


def wanted(choice: str) -> dict[str, str]:
    """The rows of :data:`MODULES` for a value of ``--adapter``; none for a name that is not known."""
    if choice == "auto":
        return dict(MODULES)
    chosen = (*ADAPTERS.get(choice, ()), *SHARED)
    return {module: ours for module, ours in MODULES.items() if ours in chosen}
