"""``eerl doctor --adapter``: what would be hooked in the trainer's own Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from adapters.test_activation import framework

from eerl_launch import adapter_folder, doctor_adapter
from eerl_launch.doctor_node import Check

#: A trainer with two of the names that the adapter hooks.
TRAINER = (
    "class GRPOTrainer:\n    def __init__(self): pass\n    def _generate(self): pass\n"
    "    def _prepare_inputs(self): pass\n"
)


def look(site: Path | None, choice: str = "auto", python: str | None = sys.executable) -> dict[str, Check]:
    """The findings by name, with ``site`` on the trainer's path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("EERL_", "PYTHON"))}
    if site is not None:
        env["PYTHONPATH"] = str(site)
    return {check.name: check for check in doctor_adapter.check_adapter(choice, python, env)}


def test_a_framework_that_lacks_names(tmp_path: Path) -> None:
    """What is hooked is counted and what this version has not is named, without harm to its modules."""
    found = look(framework(tmp_path, TRAINER))

    assert found["adapter"].state == "ok"
    check = found["adapter trl"]
    assert check.state == "warn"
    assert "GRPOTrainer._calculate_rewards" in check.seen and "GRPOTrainer._generate," not in check.seen
    assert "3 names hooked" in check.seen


def test_a_framework_that_is_not_there(tmp_path: Path) -> None:
    """Among all of them that is no fault; asked for by name it is."""
    assert look(None)["adapter trl"].state == "ok"
    assert look(None, "trl")["adapter trl"].state == "fail"


def test_a_framework_that_does_not_import(tmp_path: Path) -> None:
    """Its own exception is told."""
    found = look(framework(tmp_path, "raise OSError('no libcudart')"))

    assert found["adapter trl"].state == "warn" and "no libcudart" in found["adapter trl"].seen


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_a_python_that_is_none(python: str) -> None:
    """It is named, with a cure."""
    found = look(None, python=python)

    assert [check.state for check in found.values()] == ["fail"]
    assert python in found["adapter"].seen and found["adapter"].cure


def test_from_inside_a_container(tmp_path: Path) -> None:
    """Without eerl installed, the same is told by the folder on the path, with the marker socket."""
    site = framework(tmp_path, TRAINER)
    hooks = adapter_folder.environment(
        {"PYTHONPATH": str(site)}, adapter_folder.lay(tmp_path, "adapters"), "auto"
    )
    done = subprocess.run(
        [sys.executable, "-m", "eerl_trainer.adapters.look", "trl"],
        env={**os.environ, **hooks, "EERL_SOCKET": str(tmp_path / "s")},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "hooks       on" in done.stdout and "hooked GRPOTrainer._generate" in done.stdout
    assert f"markers     {tmp_path / 's'}: No such file" in done.stdout


def test_the_command(tmp_path: Path) -> None:
    """``eerl doctor --adapter`` prints it, as JSON too; an unknown name is an error with what is allowed."""
    main = [sys.executable, "-c", "from eerl_launch.tools import main; main()"]
    command = [*main, "doctor", "--python", sys.executable, "--adapter"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(framework(tmp_path, TRAINER)), *sys.path])}

    done = subprocess.run([*command, "trl", "--json"], env=env, capture_output=True, text=True, timeout=120)
    unknown = subprocess.run([*command, "tlr"], env=env, capture_output=True, text=True, timeout=120)

    assert [check["name"] for check in json.loads(done.stdout)["checks"]] == ["adapter", "adapter trl"]
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "allowed are auto, trl" in unknown.stderr
