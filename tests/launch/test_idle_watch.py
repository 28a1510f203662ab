"""When each GPU ran out of work in generation, by its utilisation, on its way into the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eerl_launch.devices.base import GpuSample
from eerl_launch.devices.sim import gpu_uuid
from eerl_launch.energy import Allocation, NodeEnergy
from eerl_launch.idle_watch import IdleWatch

BIN = Path(sys.executable).parent
#: Both GPUs generate for 10 s, then the second alone for 6 s more; the first has nothing to do meanwhile.
UNEVEN = """
from eerl_launch import mark
from eerl_launch.simulate import SimWorkload

mark.run(framework="mine", mode="colocated_sync")
with SimWorkload() as both, SimWorkload(gpus=[(0, 1)]) as second:
    for update in range(3):
        with mark.phase("generation", update):
            both.run_phase("generation", 10.0)
            second.run_phase("generation", 6.0)
        with mark.phase("training", update):
            both.run_phase("training", 5.0)
        mark.update(update, generated_tokens=100, valid_tokens=100, longest_response_tokens=10, responses=10)
"""


def watched(*readings: tuple[float, int | None]) -> IdleWatch:
    """A GPU that was read so: (run time in seconds, utilisation in percent)."""
    watch = IdleWatch()
    for t_s, util_pct in readings:
        watch.read(t_s, util_pct)
    return watch


def test_the_tail_is_from_the_first_idle_reading_on() -> None:
    """Busy to 4 s, idle from 5 s on: 3 s of a phase that ends at 8 s; pauses in between are no tail."""
    watch = watched((1, 90), (2, 0), (3, 80), (4, 70), (5, 0), (6, 0), (7, 0), (8, 0))

    assert watch.tail_s(1.0, 8.0) == 3.0
    assert watch.tail_s(1.0, 4.5) == 0.0
    assert watch.tail_s(6.0, 8.0) == 2.0, "no longer than the phase"


def test_load_that_is_not_told_is_unknown() -> None:
    """No utilisation, or none since the phase began: None, not zero."""
    assert watched((1, None), (2, None)).tail_s(0.0, 2.0) is None
    assert watched((1, 50)).tail_s(3.0, 4.0) is None
    assert watched((5, 0)).tail_s(1.0, 4.0) is None, "read only after the phase"


def test_forgetting_keeps_the_tail() -> None:
    """What a later phase needs stays, however often busy and idle took turns before."""
    watch = watched(*((number / 5, number % 2) for number in range(40_000)), (9000.0, 0))
    before = watch.tail_s(8500.0, 9100.0)

    watch.forget_before(8500.0)

    assert watch.tail_s(8500.0, 9100.0) == before == 100.0


def test_tails_of_several_rounds_add_up_by_gpu() -> None:
    """Two rounds of generation in an update; a GPU whose reading is missing at one of them is unknown."""
    node = NodeEnergy("n1", ["GPU-0", "GPU-1"])
    for i in range(101):
        t_s = i * 0.2
        first = GpuSample(0, util_pct=0 if 3 <= t_s % 10 < 5 else 80)
        node.add(t_s, [first, GpuSample(0, util_pct=None)])
    allocation = Allocation({"n1": node})

    tails_s = allocation.idle_tail_s([(0.0, 4.9), (10.0, 14.9)])

    assert tails_s["GPU-0"] == pytest.approx(2 * 1.9, abs=0.41)
    assert tails_s["GPU-1"] is None
    assert allocation.idle_tail_s([(0.0, 4.9)], frozenset({"GPU-1"})) == {"GPU-1": None}


def test_a_run_tells_which_gpu_waited(tmp_path: Path) -> None:
    """A whole simulated run: 6 of 16 s of generation the first GPU waits for the second, and the profile shows it."""
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    argv = [str(BIN / "eerl-run"), "--simulate", "h100:1x2", "--time-scale", "10", "--out", str(tmp_path)]

    done = subprocess.run(
        [*argv, "--", sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("eerl-*")
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    tails = [line["gpu_idle_tail_s"] for line in lines if line["ev"] == "phase" and "gpu_idle_tail_s" in line]
    assert len(tails) == 3
    shown = subprocess.run(
        [str(BIN / "eerl"), "profile", str(folder), "--json"], capture_output=True, text=True, check=True
    )
    rows = json.loads(shown.stdout)["runs"][0]["imbalance"]["by_gpu"]
    by_gpu = {row["uuid"]: row for row in rows}
    first, second = by_gpu[gpu_uuid(0, 0)], by_gpu[gpu_uuid(0, 1)]
    assert first["waiting_fraction"] == pytest.approx(6 / 16, abs=0.15)
    assert second["waiting_fraction"] < 0.05
    assert second["last_updates"] == 3
