"""The environment with torch and TRL, made once: ``.venvs/trl``, about 1.5 GB with a CPU build of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs" / "trl"
#: Versions the example was tried with; torch first, so that a local or CPU build satisfies TRL.
PACKAGES = ("torch==2.13.0", "trl==1.16.0")


def trl_python() -> Path:
    """An interpreter that imports TRL; skips, with pip's own words, where it cannot be installed."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / ".installed").exists():
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True, capture_output=True
        )
        for package in PACKAGES:
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", package], capture_output=True, text=True
            )
            if done.returncode != 0:
                pytest.skip(f"TRL cannot be installed here; pip: {done.stderr.strip()[-300:]}")
        (FOLDER / ".installed").touch()
    return python
