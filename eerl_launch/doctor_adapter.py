"""``eerl doctor --adapter``: which hooks the adapters would set, seen from the trainer's own Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eerl_launch import adapter_folder
from eerl_launch.doctor_node import Check

#: Importing a framework reads gigabytes from a shared file system.
_IMPORT_S = 300.0


def check_adapter(choice: str, python: str | None, env: Mapping[str, str]) -> Iterator[Check]:
    """The findings, from ``python`` or the first one on the path; ``choice`` as for ``eerl-run --adapter``."""
    path = env.get("PATH")
    interpreter = shutil.which(python or "python", path=path) or shutil.which(python or "python3", path=path)
    if interpreter is None:
        yield Check(
            "adapter",
            "fail",
            f"no {python or 'python'} on the path",
            "activate the trainer's environment, or --python",
        )
        return
    with tempfile.TemporaryDirectory(prefix="eerl-doctor-") as folder:
        found = _look(interpreter, choice, Path(folder), env)
    if isinstance(found, str):
        yield Check(
            "adapter", "fail", f"{interpreter}: {found}", "see whether it starts and is Python 3.10 or later"
        )
        return
    if found["active"]:
        yield Check("adapter", "ok", f"{found['python']}: hooks are on")
    else:
        seen = f"{found['python']}: hooks are off, PYTHONPATH or sitecustomize is ignored"
        yield Check("adapter", "fail", seen, "start it without -I, -S and -E")
    for one in found["frameworks"]:
        yield from _framework(one, wanted=choice != "auto")


def _look(interpreter: str, choice: str, folder: Path, env: Mapping[str, str]) -> dict[str, Any] | str:
    """What ``look`` found in that Python, or why it found nothing."""
    hooks = adapter_folder.environment(env, adapter_folder.lay(folder, "adapters"), choice)
    command = [interpreter, "-m", f"{adapter_folder.PACKAGE_NAME}.adapters.look", "--json", choice]
    try:
        done = subprocess.run(
            command,
            env={**env, **hooks},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return dict(json.loads(lines[-1]))


def _framework(one: Mapping[str, Any], *, wanted: bool) -> Iterator[Check]:
    name = f"adapter {one['framework']}"
    if one["absent"] and not one["hooked"]:
        seen = f"installed, but does not import: {one['absent'][0]}"
        yield Check(name, "warn", seen, "mend the environment; the trainer would fail too")
        return
    if one["version"] is None:
        yield Check(
            name,
            "fail" if wanted else "ok",
            "not installed in this Python",
            "activate the trainer's environment, or --python" if wanted else "",
        )
        return
    count = len(one["hooked"])
    cure = "please report it; until then send these markers from the script"
    if one["missing"]:
        yield Check(
            name, "warn", f"{one['version']} has no {', '.join(one['missing'])}; {count} names hooked", cure
        )
    else:
        yield Check(
            name, "ok" if count else "warn", f"{one['version']}: {count} names hooked", "" if count else cure
        )
