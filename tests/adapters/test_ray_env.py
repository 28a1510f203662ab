"""What is added to Ray's runtime environments and job commands, without Ray; test_ray.py has the real one."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from eerl_launch.adapters import ray_env, watch


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment under eerl-run."""
    monkeypatch.setenv("EERL_SOCKET", "/dev/shm/it's here/s")
    monkeypatch.setenv("EERL_ADAPTER", "auto")
    for name in ("EERL_RUN_DIR", "EERL_RUN_ID", "RAY_RUNTIME_ENV_HOOK"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken away again
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray_env, "_theirs", None)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (None, "{ours}:${{PYTHONPATH}}"),
        ({}, "{ours}:${{PYTHONPATH}}"),
        ({"env_vars": {"PYTHONPATH": "/a:/b"}}, "{ours}:/a:/b"),
        ({"env_vars": {"PYTHONPATH": "/a:{ours}"}}, "/a:{ours}"),
    ],
)
def test_the_path_is_put_first(given: dict[str, Any] | None, path: str) -> None:
    """Before the user's own, or before what the worker's node has; never twice."""
    ours = ray_env.folder()
    if given and "env_vars" in given:
        given = {"env_vars": {"PYTHONPATH": given["env_vars"]["PYTHONPATH"].format(ours=ours)}}

    made = ray_env.inject(given)

    assert made is not None and made["env_vars"]["PYTHONPATH"] == path.format(ours=ours)


def test_the_users_values_stay() -> None:
    """Other keys and variables are as they were, also in the user's own dictionary."""
    given = {"working_dir": "/w", "env_vars": {"EERL_SOCKET": "/mine", "X": "1"}}

    made = ray_env.inject(given)

    assert made is not None and made["working_dir"] == "/w"
    assert made["env_vars"]["EERL_SOCKET"] == "/mine" and made["env_vars"]["X"] == "1"
    assert made["env_vars"]["EERL_ADAPTER"] == "auto"
    assert given == {"working_dir": "/w", "env_vars": {"EERL_SOCKET": "/mine", "X": "1"}}


def test_a_driver_that_has_cleared_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers get what Python was started with."""
    monkeypatch.setattr(watch, "given", {"EERL_SOCKET": "/given/s", "EERL_ADAPTER": "trl"})
    monkeypatch.delenv("EERL_SOCKET")
    monkeypatch.delenv("EERL_ADAPTER")

    made = ray_env.inject(None)

    assert made is not None
    assert (made["env_vars"]["EERL_SOCKET"], made["env_vars"]["EERL_ADAPTER"]) == ("/given/s", "trl")
    assert "EERL_SOCKET=/given/s" in ray_env.command("python train.py")


def test_something_odd_is_left_alone() -> None:
    """What is no runtime environment is Ray's to complain about."""
    odd: Any = {"env_vars": 3}

    assert ray_env.inject(odd) is odd


def test_the_hook_is_set_while_ray_starts_only() -> None:
    """Children that cannot import us must not find it, and the user's own is put back."""
    seen: list[str | None] = []
    module: Any = SimpleNamespace(init=lambda **kwargs: seen.append(os.environ.get("RAY_RUNTIME_ENV_HOOK")))
    ray_env.worker(module)

    module.init()
    os.environ["RAY_RUNTIME_ENV_HOOK"] = "their.hook"
    module.init(runtime_env={})

    assert seen == ["eerl_launch.adapters.ray_env.inject"] * 2
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "their.hook"


def test_under_uv_run() -> None:
    """Ray's hook for it is called, and its result gets ours."""
    module: Any = SimpleNamespace(hook=lambda env: {**(env or {}), "py_executable": "uv run python"})
    ray_env.uv_run(module)

    made = module.hook({"env_vars": {"X": "1"}})

    assert made["py_executable"] == "uv run python"
    assert made["env_vars"]["X"] == "1" and made["env_vars"]["PYTHONPATH"].startswith(ray_env.folder())


def test_a_submitted_command_keeps_its_meaning() -> None:
    """A shell runs it with our variables, its own path behind ours, and its own exit code."""
    command = ray_env.command("sh -c 'echo \"$PYTHONPATH|$EERL_SOCKET|$EERL_RUN_ID\"; exit 7' && echo no")

    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/own"},
    )

    assert done.returncode == 7
    assert done.stdout == f"{ray_env.folder()}:/own|/dev/shm/it's here/s|\n"
