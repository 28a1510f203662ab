"""Which adapter wants to see which module of a framework. Loaded into every Python of the job: keep it small."""

from __future__ import annotations

#: Defining module → our module that adapts it. A patch there reaches every ``from X import Y`` made later.
MODULES = {
    "trl.trainer.grpo_trainer": "trl",
    "trl.generation.vllm_generation": "trl",
    "nemo_rl.utils.timer": "nemo_rl",
    "nemo_rl.utils.logger": "nemo_rl",
    "nemo_rl.algorithms.grpo": "nemo_rl",
    "nemo_rl.algorithms.ppo": "nemo_rl",
    "nemo_rl.algorithms.single_controller_utils.setup": "nemo_rl",
    "nemo_rl.models.policy.lm_policy": "nemo_rl",
    "nemo_rl.models.policy.workers.base_policy_worker": "nemo_rl_pools",
    "nemo_rl.models.generation.vllm.vllm_backend": "nemo_rl_pools",
    "nemo_rl.experience.rollouts": "nemo_rl",
    "nemo_rl.experience.rollout_manager": "nemo_rl",
    "openrlhf.trainer.ppo_trainer": "openrlhf",
    "openrlhf.trainer.ppo_utils.samples_generator": "openrlhf",
    "openrlhf.trainer.ppo_utils.experience_maker": "openrlhf",
    "openrlhf.trainer.ray.launcher": "openrlhf_pools",
    "openrlhf.trainer.ray.vllm_worker_wrap": "openrlhf_pools",
    "verl.utils.profiler.performance": "verl",
    "verl.utils.tracking": "verl",
    "verl.trainer.ppo.ray_trainer": "verl",
    "verl.trainer.ppo.metric_utils": "verl",
    "verl.trainer.ppo.v1.trainer_base": "verl",
    "verl.trainer.ppo.v1.replay_buffer": "verl",
    "verl.experimental.agent_loop.agent_loop": "verl",
    "verl.workers.engine_workers": "verl",
    "verl.checkpoint_engine.base": "verl",
    "trl.experimental.async_grpo.async_grpo_trainer": "trl_async",
    "trl.experimental.async_grpo.async_rollout_worker": "trl_async_worker",
    "ray._private.worker": "ray_env",
    "ray._private.runtime_env.uv_runtime_env_hook": "ray_env",
    "ray.dashboard.modules.job.sdk": "ray_env",
}

#: What ``--adapter`` takes → the modules of ours that it means.
ADAPTERS = {
    "trl": ("trl", "trl_async", "trl_async_worker"),
    "nemo_rl": ("nemo_rl", "nemo_rl_pools"),
    "openrlhf": ("openrlhf", "openrlhf_pools"),
    "verl": ("verl",),
}
#: What every framework may stand on.
SHARED = ("ray_env",)


def wanted(choice: str) -> dict[str, str]:
    """The rows of :data:`MODULES` for a value of ``--adapter``; none for a name that is not known."""
    if choice == "auto":
        return dict(MODULES)
    chosen = (*ADAPTERS.get(choice, ()), *SHARED)
    return {module: ours for module, ours in MODULES.items() if ours in chosen}
