"""What the adapters would do with this Python's frameworks; also inside a container, where eerl is not installed:

    python -m eerl_trainer.adapters.look [--json] [NAME]

Imports the frameworks that are installed, which takes its time, and says which of their names were hooked.
``eerl doctor --adapter`` runs it in the trainer's Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import socket
import sys
from typing import Any

from .. import mark
from . import registry, watch


def _modules(choice: str, names: tuple[str, ...]) -> list[str]:
    """The framework's modules that these adapters of ours wait for."""
    return [module for module, ours in registry.wanted(choice).items() if ours in names]


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def framework(name: str, names: tuple[str, ...]) -> dict[str, Any]:
    """One framework: whether it is there, and which of its names are hooked, missing, or cannot be imported."""
    modules = _modules(name, names)
    found: dict[str, Any] = {"framework": name, "version": None, "hooked": [], "missing": [], "absent": []}
    if not any(_installed(module.partition(".")[0]) for module in modules):
        return found
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            found["absent"].append(f"{module} (no {error.name})")
        except Exception as error:
            found["absent"].append(f"{module} ({error!r})")
    for ours in names:
        adapter = getattr(sys.modules.get(f"{__package__}.{ours}"), "adapter", None)
        if adapter is not None:
            found["version"] = adapter.version
            found["hooked"] += adapter.hooked
            found["missing"] += adapter.missing
    return found


def listens(path: str | None) -> str:
    """Whether somebody listens where markers go."""
    if not path:
        return "no EERL_SOCKET: not under eerl-run"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            connection.connect(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return "ok"


def look(choice: str) -> dict[str, Any]:
    """Everything, as JSON can carry it. ``choice`` as for ``--adapter``."""
    active = any(type(finder).__name__ == "Watch" for finder in sys.meta_path)
    markers = listens(os.environ.get("EERL_SOCKET"))
    mark.mute(True)  # what is hooked here is no trainer
    watch.start(choice)
    names = {name: ours for name, ours in registry.ADAPTERS.items() if choice in ("auto", name)}
    return {
        "python": f"{sys.executable} {platform.python_version()}",
        "active": active,
        "markers": markers,
        "frameworks": [framework(name, ours) for name, ours in names.items()],
    }


def text(found: dict[str, Any]) -> str:
    """The findings for people."""
    lines = [
        f"python      {found['python']}",
        f"hooks       {'on' if found['active'] else 'off: PYTHONPATH or sitecustomize is ignored here'}",
        f"markers     {found['markers']}",
    ]
    for one in found["frameworks"]:
        seen = "not installed" if one["version"] is None else one["version"]
        lines.append(f"{one['framework']:<11} {seen}")
        lines += [f"{'':<11} {kind} {name}" for kind in ("hooked", "missing", "absent") for name in one[kind]]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    words = [word for word in sys.argv[1:] if word != "--json"]
    found = look(words[0] if words else "auto")
    print(json.dumps(found) if "--json" in sys.argv else text(found))


if __name__ == "__main__":
    main()
