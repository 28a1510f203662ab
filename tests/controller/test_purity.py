"""The controller calculates and does nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import eerl_controller

ALLOWED = {
    "__future__",
    "abc",
    "collections",
    "dataclasses",
    "eerl_controller",
    "enum",
    "itertools",
    "math",
    "numbers",
    "numpy",
    "scipy",
    "statistics",
    "types",
    "typing",
}


def test_it_imports_nothing_that_could_reach_the_world() -> None:
    """No clock, file, socket, process, thread, logger or environment."""
    folder = Path(eerl_controller.__file__).parent

    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in ALLOWED, f"{path.name} imports {name}"


def test_importing_it_does_not_load_scipy() -> None:
    """The launcher's session starts sooner without it."""
    code = "import sys, eerl_controller; print('scipy' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"


def test_the_public_names_are_sorted_and_real() -> None:
    """What the launcher and the report may use."""
    names = eerl_controller.__all__

    assert all(hasattr(eerl_controller, name) for name in names)
    assert {"Controller", "GovernorModel", "GovernorPrediction", "Reason", "Settings", "State"} <= set(names)


def test_modules_stay_readable() -> None:
    """One reason to change each; a module too long to read is two."""
    folder = Path(eerl_controller.__file__).parent

    lengths = {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.py")}

    assert sorted(lengths.values())[-2] <= 330, lengths
    assert max(lengths.values()) <= 480, lengths
