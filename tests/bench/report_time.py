"""Time and memory of ``eerl report`` on two runs: a long one, and one that is longer and wide."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.measured import Number
from bench.wide_run import WideSpec, write_wide_run
from report.ledgers import RunSpec, write_run

LONG = RunSpec(nodes=8, gpus_per_node=8, updates=2000, lock_from=60)
WIDE = WideSpec(nodes=128, gpus_per_node=8, updates=10_000, lock_from=60, more_phases=58)
READ = """
import json, sys
for line in open(sys.argv[1], "rb"):
    json.loads(line)
"""
_REPORT = """
import sys
from eerl_launch.tools import eerl
eerl(["report", sys.argv[1], "--quiet"], standalone_mode=False)
"""
_TELL_PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(line.split()[1])
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the wall and of processors, and peak resident MB."""

    wall_s: float
    processor_s: float
    peak_mb: float


def measure() -> list[Number]:
    """Seconds and peak RSS of the command for both runs, beside reading the same ledger with json alone."""
    with tempfile.TemporaryDirectory() as name:
        long = write_run(Path(name) / "long", LONG)
        wide = write_wide_run(Path(name) / "wide", WIDE)
        return _report(long, "a long run", LONG) + _report(
            wide, "a very long and wide run", WIDE, 30.0, 2000.0
        )


def _report(
    folder: Path, what: str, spec: RunSpec, target_s: float | None = None, target_mb: float | None = None
) -> list[Number]:
    ledger = folder / "ledger.jsonl"
    size_mb = ledger.stat().st_size / 1e6
    read = run_program(READ, str(ledger))
    made = run_program(_REPORT, str(folder))
    page_mb = (folder / "report.html").stat().st_size / 1e6
    reference = "json.loads of every line of the same ledger, and nothing else"
    note = (
        f"report of {what}: {spec.updates} updates, {spec.nodes * spec.gpus_per_node} GPUs, "
        f"{6 + spec.more_phases} phases: ledger {size_mb:.0f} MB, page {page_mb:.1f} MB; "
        f"processor time {made.processor_s:.1f} s, of reading {read.processor_s:.1f} s"
    )
    return [
        Number(f"report of {what}: time", "s", made.wall_s, read.wall_s, reference, target_s, note=note),
        Number(f"report of {what}: peak RSS", "mb", made.peak_mb, read.peak_mb, reference, target_mb),
    ]


def run_program(program: str, *arguments: str) -> Spent:
    """What a Python program that must succeed takes.

    The peak is the program's own VmHWM: what wait4 tells would include this process, as it was at the fork.
    """
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-I", "-c", program + _TELL_PEAK, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(wall_s, processor_s, int(done.stdout.split()[-1]) * 1024 / 1e6)
