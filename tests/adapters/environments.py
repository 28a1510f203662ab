"""Environments with frameworks, made once each under ``.venvs/``; CPU builds do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"


def trl_python() -> Path:
    """An interpreter that imports TRL, about 1.5 GB; torch first, so that a local or CPU build satisfies TRL."""
    return environment("trl", "torch==2.13.0", "trl==1.16.0", "aiohttp", "requests")


def ray_python() -> Path:
    """An interpreter that imports Ray and can submit jobs to it, about 0.4 GB."""
    return environment("ray", "ray[default]==2.60.0")


def verl_python() -> Path:
    """An interpreter that runs verl's loop, without any engine; about 1.9 GB, three minutes."""
    packages = ("TransferQueue==0.1.11", "cachetools", "uvicorn", "fastapi")
    return environment("verl", "torch==2.13.0", "verl==0.9.1", *packages)


def environment(name: str, *packages: str) -> Path:
    """The interpreter of an environment with these packages; skips, with pip's own words, where pip fails."""
    python = FOLDER / name / "bin" / "python"
    record = FOLDER / name / ".installed"
    installed = record.read_text().split() if record.exists() else []
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER / name)], check=True, capture_output=True)
    for package in packages:
        if package in installed:
            continue
        pip = [str(python), "-m", "pip", "install", "--quiet", package]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{name} cannot be installed here; pip: {done.stderr.strip()[-300:]}")
        installed.append(package)
        record.write_text("\n".join(installed) + "\n")
    return python
