"""The adapters where the trainer finds them: copied into the private folder of every node, first on PYTHONPATH.

Trainers on other nodes import from a path that the first node has chosen, before its agent has seen whether the
private folder there is ours. So the last part of the path is a secret of the job: it is in environments, which other
users cannot read, and on no command line, which they can.

A copy, since the trainer's environment or container need not hold eerl; the private folder is visible in both. The
copy is called ``eerl_trainer``, so that it hides no installed ``eerl_launch``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from eerl_launch import adapters
from eerl_launch.adapters import registry, speaker

#: Tells an agent the folder's name.
VARIABLE = "EERL_ADAPTER_FOLDER"
PACKAGE_NAME = "eerl_trainer"
#: Made by a Python process in which the hooks are on.
LOADED_NAME = "loaded"
_BESIDE = ("__init__.py", "mark.py", "mark_sender.py")
_START = "sitecustomize.py"

CHOICES = ("auto", "none", *registry.ADAPTERS)


def new_name() -> str:
    """A name for this job's folder that nobody else can know beforehand."""
    return f"adapters-{secrets.token_hex(8)}"


def lay(private: Path, name: str) -> Path:
    """Copy the adapters into ``private`` unless they are there whole; the folder for PYTHONPATH.

    Raises OSError. Whole or not there at all: what starts meanwhile finds no half of it.
    """
    folder = private / name
    if (folder / _START).exists():
        return folder
    making = private / f"{name}.{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    try:
        _copy(making)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return folder


def _copy(to: Path) -> None:
    """File by file, with modes of our own: where eerl is installed may be read-only."""
    ours, package = Path(adapters.__file__).parent, to / PACKAGE_NAME
    (package / "adapters").mkdir(parents=True)
    for path in ours.glob("*.py"):
        shutil.copyfile(path, to / _START if path.name == _START else package / "adapters" / path.name)
    for name in _BESIDE:
        shutil.copyfile(ours.parent / name, package / name)


def remove(private: Path, name: str) -> None:
    """Take the copy away, and the trainer's locks; processes that run keep what they have loaded."""
    shutil.rmtree(private / name, ignore_errors=True)
    for lock in (speaker.LOCK_NAME, speaker.HELPER_NAME):
        (private / lock).unlink(missing_ok=True)


def environment(env: Mapping[str, str], folder: Path, choice: str) -> dict[str, str]:
    """What the command's environment gets, so that every Python under it starts with our hooks."""
    path = env.get("PYTHONPATH")
    return {
        "EERL_ADAPTER": choice,
        "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
    }


def why_off(command: Sequence[str]) -> str | None:
    """Why Python's own options in ``command`` keep the hooks from loading, where that can be seen."""
    name = os.path.basename(command[0])  # noqa: PTH119 - a word
    if not name.startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            continue
        for letter in word[1:]:
            if letter in "ISE":
                return f"{name} -{letter} ignores PYTHONPATH or sitecustomize"
            if letter in "cm":
                return None
            if letter in "WX":
                if word.endswith(letter):
                    next(words, None)
                break
    return None
