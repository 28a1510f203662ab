"""The shipped examples without a cluster: the simulated trainer says what it does, and knows nothing of savings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launch.marker_listener import Listener

from eerl_launch.devices.sim import SimGpus, SimSource, SimSpec

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "slurm_examples" / "simulated_grpo.py"


def demo(folder: Path, updates: int, mhz: int | None) -> list[dict[str, Any]]:
    """The markers of a short run at one clock, 1000 times as fast as life."""
    folder.mkdir()
    simulation = SimGpus.create(folder / "sim", SimSpec("h100", 1, 2), time_scale=1000.0)
    if mhz is not None:
        SimSource(simulation.directory, 0).lock(mhz)
    listener = Listener(folder / "s")
    try:
        done = subprocess.run(
            [sys.executable, str(DEMO), "--updates", str(updates), "--seed", "7"],
            env={**os.environ, "EERL_SIM_DIR": str(simulation.directory), "EERL_SOCKET": str(folder / "s")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        listener.drain()
    finally:
        listener.close()
    assert "simulated GPUs" in done.stdout.splitlines()[0]
    return [json.loads(line) for line in listener.lines]


def test_simulated_trainer_marks_everything(tmp_path: Path) -> None:
    """Each update has its phases in order and its counts; validation comes after the 25th."""
    markers = demo(tmp_path / "run", 26, None)

    assert markers[0]["ev"] == "run" and markers[0]["total_updates"] == 26
    steps = [(m["ev"], m.get("phase")) for m in markers if m.get("update") == 3 and m["ev"] != "metric"]
    assert steps == [
        (event, phase)
        for phase in ("generation", "reward", "logprob", "training", "refit")
        for event in ("begin", "end")
    ] + [("update", None)]
    updates = [m for m in markers if m["ev"] == "update"]
    assert [u["update"] for u in updates] == list(range(26))
    assert all(0 < u["valid_tokens"] <= u["generated_tokens"] for u in updates)
    assert [m["update"] for m in markers if m.get("phase") == "validation"] == [24, 24]


def test_simulated_work_does_not_depend_on_clocks(tmp_path: Path) -> None:
    """Runs under other clocks get the same responses, so that they can be compared."""
    free, locked = demo(tmp_path / "free", 4, None), demo(tmp_path / "locked", 4, 900)

    counts = ("generated_tokens", "valid_tokens", "longest_response_tokens", "reward")
    free_work, locked_work = (
        [[m[name] for name in counts] for m in markers if m["ev"] == "update"] for markers in (free, locked)
    )
    assert free_work == locked_work
    assert len({tuple(work) for work in free_work}) == 4


def test_simulated_trainer_without_a_simulation() -> None:
    """Started alone it says how to start it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("EERL_")}

    done = subprocess.run([sys.executable, str(DEMO)], env=env, capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert "eerl-run --simulate h100:2x8" in done.stderr
