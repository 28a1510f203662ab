"""Time of ``eerl compare`` on one controller run and two governor runs of 1000 updates each, 16 GPUs, 6 phases."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.measured import Number
from bench.report_time import READ, run_program
from report.ledgers import RunSpec, write_run

UPDATES = 1000
_COMPARE = """
import sys
from eerl_launch.tools import eerl
eerl(["compare", *sys.argv[1:], "--format", "csv"], standalone_mode=False)
"""


def measure() -> list[Number]:
    """Seconds of the command, beside reading the same ledgers with json alone."""
    with tempfile.TemporaryDirectory() as name:
        controlled = RunSpec(nodes=2, gpus_per_node=8, updates=UPDATES, lock_from=60)
        governor = replace(controlled, calibration=UPDATES)
        folders = [
            write_run(Path(name) / str(seed), replace(spec, seed=seed))
            for seed, spec in enumerate((controlled, governor, governor))
        ]
        read_s = sum(run_program(READ, str(folder / "ledger.jsonl")).wall_s for folder in folders)
        made = run_program(_COMPARE, *map(str, folders))
    what = "json.loads of every line of the same ledgers, and nothing else"
    note = (
        f"compare: 3 runs of {UPDATES} updates, 16 GPUs, 6 phases; peak RSS {made.peak_mb:.0f} MB, "
        f"processor time {made.processor_s:.1f} s"
    )
    return [Number("compare of three long runs: time", "s", made.wall_s, read_s, what, target=5.0, note=note)]
