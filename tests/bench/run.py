"""Runs the benchmarks, prints a table and writes ``.build/bench.json``. Nothing is asserted.

make bench                                       all but the long ones, about ten minutes
.venv/bin/python tests/bench/run.py --only marker --only report
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import (
    adapter_overhead,
    compare_time,
    energy_error,
    footprint,
    launch_time,
    marker_call,
    observe_time,
    phase_switch,
    report_time,
    scoreboard_time,
    what_if_error,
)
from bench.measured import Number, remarks, table
from rig.cluster import Cluster, missing

RESULT = Path(__file__).resolve().parents[2] / ".build" / "bench.json"
NODES, GPUS_PER_NODE = 4, 8

#: By name; those of the last table need root and Slurm, and get the rig's cluster.
ALONE: dict[str, Callable[[], list[Number]]] = {
    "marker": marker_call.measure,
    "adapter": adapter_overhead.measure,
    "launch": launch_time.measure_outside,
    "observe": observe_time.measure,
    "scoreboard": scoreboard_time.measure,
    "what-if": what_if_error.measure,
    "report": report_time.measure,
    "compare": compare_time.measure,
}
#: Only when asked for.
LONG: dict[str, Callable[[], list[Number]]] = {"observe-very-many": observe_time.measure_very_many}
ON_CLUSTER: dict[str, Callable[[Cluster], list[Number]]] = {
    "launch-in-job": launch_time.measure_inside,
    "switch": phase_switch.measure,
    "footprint": footprint.measure,
    "energy": energy_error.measure,
}


def main() -> int:
    """0 when every benchmark ran (whatever it measured), 1 when one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--only", action="append", choices=[*ALONE, *LONG, *ON_CLUSTER], help="may be repeated"
    )
    parser.add_argument("--json", type=Path, default=RESULT, help="where the numbers are written")
    wish = parser.parse_args()
    chosen = wish.only or [*ALONE, *ON_CLUSTER]
    begin = time.monotonic()
    load_before = os.getloadavg()[0]
    found: dict[str, list[Number]] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        cluster: Cluster | None = None
        for name in chosen:
            if name in ON_CLUSTER:
                reason = missing()
                if reason:
                    skipped[name] = reason
                    print(f"SKIPPED {name}: {reason}", flush=True)
                    continue
                if cluster is None:
                    cluster = Cluster.start(nodes=NODES, gpus=GPUS_PER_NODE, plugstack="default=on")
                    stack.callback(cluster.stop)
            began = time.monotonic()
            try:
                alone = (ALONE | LONG).get(name)
                found[name] = alone() if alone else ON_CLUSTER[name](_given(cluster))
            except Exception as error:
                failed[name] = repr(error)
                traceback.print_exc()
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    numbers = [number for part in found.values() for number in part]
    document = {
        "schema_version": 1,
        "measured": {name: [number.public() for number in part] for name, part in found.items()},
        "skipped": skipped,
        "failed": failed,
        "machine": _machine() | {"load_before": load_before, "load_after": os.getloadavg()[0]},
        "took_s": time.monotonic() - begin,
    }
    wish.json.parent.mkdir(parents=True, exist_ok=True)
    wish.json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    print(f"\n{table(numbers)}\n")
    for remark in remarks(numbers):
        print(f"- {remark}")
    for name, reason in [*skipped.items(), *failed.items()]:
        print(f"NOT MEASURED, {name}: {reason}")
    print(f"\n{wish.json}, in {document['took_s']:.0f} s")
    return 1 if failed else 0


def _given(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise RuntimeError("no cluster")
    return cluster


def _machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu_model": model,
        "cores": os.cpu_count(),
        "memory_mb": int(memory) * 1024 / 1e6,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("eerl", "numpy", "scipy", "pandas")},
        "time_unix_s": time.time(),
    }


def _slurm() -> str | None:
    """Slurm's version; None where there is none."""
    slurmd = shutil.which("slurmd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if slurmd is None:
        return None
    return subprocess.run([slurmd, "-V"], capture_output=True, text=True).stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
