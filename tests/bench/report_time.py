"""Time and memory of ``eerl report`` on a long, wide run: 2000 updates, 64 GPUs, 6 phases."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measured import Number
from report.ledgers import RunSpec, write_run

UPDATES, NODES, GPUS_PER_NODE = 2000, 8, 8
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


def measure() -> list[Number]:
    """Seconds and peak RSS of the command, beside reading the same ledger with json alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = RunSpec(nodes=NODES, gpus_per_node=GPUS_PER_NODE, updates=UPDATES, lock_from=60)
        write_run(folder, spec)
        ledger = folder / "ledger.jsonl"
        size_mb = ledger.stat().st_size / 1e6
        read_s, read_mb = run_program(READ, str(ledger))
        report_s, report_mb = run_program(_REPORT, str(folder))
        page_mb = (folder / "report.html").stat().st_size / 1e6
    what = "json.loads of every line of the same ledger, and nothing else"
    note = (
        f"report: {UPDATES} updates, {NODES * GPUS_PER_NODE} GPUs, 6 phases: "
        f"ledger {size_mb:.0f} MB, page {page_mb:.1f} MB"
    )
    return [
        Number("report of a long run: time", "s", report_s, read_s, what, note=note),
        Number("report of a long run: peak RSS", "mb", report_mb, read_mb, what),
    ]


def run_program(program: str, *arguments: str) -> tuple[float, float]:
    """Wall seconds and peak resident MB of a Python program that must succeed.

    The peak is the program's own VmHWM: what wait4 tells would include this process, as it was at the fork.
    """
    begin = time.monotonic()
    command = [sys.executable, "-I", "-c", program + _TELL_PEAK, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return time.monotonic() - begin, int(done.stdout.split()[-1]) * 1024 / 1e6
