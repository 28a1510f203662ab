"""Ray: take the environment of eerl along to its workers, which may be started by a cluster that never had it.

Three ways a cluster comes to be, and what reaches its workers:

- ``ray.init()`` starts a local one: workers inherit the driver's environment;
- ``ray start`` had started it: only a runtime environment reaches them. Ray calls RAY_RUNTIME_ENV_HOOK for it once it
  has merged the job's with the driver's; we are that hook, while ``ray.init`` runs and nowhere else, since a Python
  that cannot import it would fail to connect;
- ``ray job submit``: the driver itself is started by the cluster, so its command gets the environment.

The user's own hook runs first, the user's own values stay, and other keys are not touched.
"""

from __future__ import annotations

import functools
import importlib
import os
import shlex
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import watch
from .base import Adapter

adapter = Adapter("ray")

HOOK_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
_TAKEN_ALONG = ("EERL_SOCKET", "EERL_ADAPTER", "EERL_RUN_DIR", "EERL_RUN_ID")

_theirs: str | None = None


@adapter.on("ray._private.worker")
def worker(module: ModuleType) -> None:
    """``ray.init``, bound from here by ``ray`` itself."""
    adapter.hook(module, "init", initialising, costs="eerl in the workers of a cluster that ran before")


@adapter.on("ray._private.runtime_env.uv_runtime_env_hook")
def uv_run(module: Any) -> None:
    """Under ``uv run`` Ray calls this hook of its own and no other."""
    module.hook = _after(module.hook)


@adapter.on("ray.dashboard.modules.job.sdk")
def jobs(module: ModuleType) -> None:
    """``ray job submit`` and whoever submits by Python."""
    client = module.JobSubmissionClient
    client.submit_job = _submitting(client.submit_job)


def folder() -> str:
    """Our folder on PYTHONPATH, in this process."""
    return str(Path(__file__).parents[2])


def _ours() -> dict[str, str]:
    """What eerl-run gave; a driver may have cleared its environment since."""
    return {**watch.given, **os.environ}


def initialising(*args: Any, **kwargs: Any) -> Generator[None, Any, None]:
    """While ``ray.init`` runs its runtime-environment hook is ours."""
    global _theirs
    before = os.environ.get(HOOK_VARIABLE)
    _theirs = before
    os.environ[HOOK_VARIABLE] = f"{__name__}.{inject.__name__}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(HOOK_VARIABLE, None)
        else:
            os.environ[HOOK_VARIABLE] = before


def inject(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Ray's hook: the runtime environment with ours added."""
    if _theirs:
        module, _, name = _theirs.rpartition(".")
        runtime_env = getattr(importlib.import_module(module), name)(runtime_env)
    return _with_ours(runtime_env)


def _with_ours(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    try:
        given = dict(runtime_env or {})
        variables = dict(given.get("env_vars") or {})
        # Ray puts in what a worker's node has; an empty rest is taken away again when Python starts there.
        path = variables.get("PYTHONPATH", "${PYTHONPATH}")
        if folder() not in path.split(os.pathsep):
            variables["PYTHONPATH"] = f"{folder()}{os.pathsep}{path}"
        ours = _ours()
        for name in _TAKEN_ALONG:
            if name in ours:
                variables.setdefault(name, ours[name])
        return {**given, "env_vars": variables}
    except Exception as error:
        adapter.say(f"the runtime environment is left as it was ({error!r}); workers may run without markers")
        return runtime_env


def _after(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def with_ours(*args: Any, **kwargs: Any) -> Any:
        return _with_ours(hook(*args, **kwargs))

    return with_ours


def _submitting(submit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(submit)
    def submit_job(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("entrypoint"), str):
            kwargs["entrypoint"] = command(kwargs["entrypoint"])
        return submit(*args, **kwargs)

    return submit_job


def command(entrypoint: str) -> str:
    """The job's shell command, its Pythons started as eerl-run would start them."""
    exports = [f'PYTHONPATH={shlex.quote(folder())}"${{PYTHONPATH:+:$PYTHONPATH}}"']
    ours = _ours()
    exports += [f"{name}={shlex.quote(ours[name])}" for name in _TAKEN_ALONG if name in ours]
    return f"export {' '.join(exports)}; {entrypoint}"
