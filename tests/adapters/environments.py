"""Environments with frameworks, made once each under ``.venvs/``; CPU builds do."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"


#: The newest, which every run of the tests uses.
TRL = "1.16.0"
#: Older ones, for ``make test-frameworks``: what each needs beside the newest one's torch.
_OLD_LIBRARIES = ("transformers==4.57.3", "datasets<5", "huggingface-hub<1")
OLDER_TRL = {
    "0.24.0": _OLD_LIBRARIES,
    "0.26.2": _OLD_LIBRARIES,
    "0.29.0": _OLD_LIBRARIES,
    "1.0.0": (),
    "1.8.0": (),
}

VERL = "0.9.1"
_OLD_VERL = (
    *(
        "transformers==4.56.2",
        "tokenizers==0.22.1",
        "huggingface_hub==0.35.3",
        "hf-xet",
        "openai==1.99.9",
        "jiter",
    ),
    *("datasets==4.0.0", "fsspec==2025.3.0", "dill==0.3.8", "multiprocess==0.70.16", "sniffio", "distro"),
    *("httpx==0.28.1", "httpcore==1.0.9", "h11", "anyio"),
)
OLDER_VERL: dict[str, tuple[str, ...]] = {
    "0.5.0": _OLD_VERL,
    "0.6.1": _OLD_VERL,
    "0.7.1": _OLD_VERL,
    "0.8.0": (),
}


def trl_python(version: str = TRL) -> Path:
    """An interpreter that imports this TRL; the newest is 1.5 GB, each older one 0.2 GB on top of it.

    torch comes first, so that a local or CPU build satisfies TRL.
    """
    newest = environment("trl", "torch==2.13.0", f"trl=={TRL}", "aiohttp", "requests")
    if version == TRL:
        return newest
    python = environment(f"trl-{version}", beside=newest)
    return environment(python.parts[-3], " ".join([f"trl=={version}", *OLDER_TRL[version]]))


def ray_python() -> Path:
    """An interpreter that imports Ray and can submit jobs to it, about 0.4 GB."""
    return environment("ray", "ray[default]==2.60.0")


def uv() -> Path:
    """The command uv, which a user may start Python with."""
    return environment("uv", "uv").parent / "uv"


def verl_python(version: str = VERL) -> Path:
    """An interpreter that runs this verl's loop, without any engine; 1.9 GB, three minutes, older ones 0.1 GB more.

    Older ones have no dependencies of their own but those that must be older too.
    """
    parts = ("TransferQueue==0.1.11", "cachetools", "uvicorn", "fastapi")
    newest = environment("verl", "torch==2.13.0", f"verl=={VERL}", *parts)
    if version == VERL:
        return newest
    python = environment(f"verl-{version}", beside=newest)
    return environment(python.parts[-3], " ".join(["--no-deps", f"verl=={version}", *OLDER_VERL[version]]))


def environment(name: str, *packages: str, beside: Path | None = None) -> Path:
    """The interpreter of an environment with these packages; skips, with pip's own words, where pip fails.

    One of ``packages`` may name several, to be resolved together. ``beside``: an interpreter whose packages are used
    where this environment has none of its own.
    """
    FOLDER.mkdir(exist_ok=True)
    # Two workers may want it at once.
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _environment(name, packages, beside)


def _environment(name: str, packages: Sequence[str], beside: Path | None) -> Path:
    python = FOLDER / name / "bin" / "python"
    record = FOLDER / name / ".installed"
    installed = record.read_text().splitlines() if record.exists() else []
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True, capture_output=True)
    if beside is not None:
        (own,), (theirs,) = ((p.parents[1] / "lib").glob("python3.*/site-packages") for p in (python, beside))
        (own / "beside.pth").write_text(f"{theirs}\n")
    for package in packages:
        if package in installed:
            continue
        pip = [str(python), "-m", "pip", "install", "--quiet", *package.split()]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{name} cannot be installed here; pip: {done.stderr.strip()[-300:]}")
        installed.append(package)
        record.write_text("\n".join(installed) + "\n")
    return python
