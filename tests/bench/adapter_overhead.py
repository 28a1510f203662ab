"""What the adapters cost a trainer: time inside their hooks in a real TRL run, and at the start of every Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from adapters.environments import trl_python
from bench.measured import Number, median
from launch.marker_listener import Listener

from eerl_launch import adapter_folder

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 12
STARTS = 40


def measure() -> list[Number]:
    """Share of the training that is ours, and a Python's start with the hooks beside one without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hooks = adapter_folder.environment({}, adapter_folder.lay(folder, "adapters"), "auto")
        return [*_in_training(folder, hooks), _at_start(hooks)]


def _in_training(folder: Path, hooks: dict[str, str]) -> list[Number]:
    listener = Listener(folder / "s")
    command = [str(trl_python()), str(Path(__file__).with_name("timed_hooks.py")), str(folder / "spent")]
    command += [str(ROOT / "slurm_examples" / "trl_grpo.py"), "--updates", str(UPDATES)]
    try:
        subprocess.run(
            command,
            env={**os.environ, **hooks, "EERL_SOCKET": str(folder / "s"), "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        )
    finally:
        listener.close()
    spent = json.loads((folder / "spent").read_text())
    per_update_ms = 1000 * spent["train_s"] / spent["updates"]
    note = f"{spent['calls']} calls in {spent['updates']} updates of {per_update_ms:.0f} ms"
    share = 100 * spent["hooks_s"] / spent["train_s"]
    return [Number("TRL, time inside the hooks", "percent", share, target=1.0, note=note)]


def _at_start(hooks: dict[str, str]) -> Number:
    plain_env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with_s, without_s = [], []
    for _ in range(STARTS):  # by turns, so that the machine's load is the same for both
        for env, times in ((plain_env, without_s), ({**plain_env, **hooks}, with_s)):
            begin_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
            times.append(time.perf_counter() - begin_s)
    added_ms = 1000 * (median(with_s) - median(without_s))
    return Number(
        "a Python's start with the hooks, added",
        "ms",
        added_ms,
        reference=1000 * median(without_s),
        reference_is="python -c pass",
        target=15.0,
    )
