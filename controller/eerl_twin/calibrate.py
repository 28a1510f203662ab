"""``python -m eerl_twin.calibrate PATH/headroom.csv``: fits the presets and freezes them with their errors.

Writes ``presets.json`` beside this file and a table of errors, ``calibration.md``. Takes tens of minutes: every
family is fitted once on all its rows and ten times with a tenth of them held out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eerl_controller import ExecutionMode
from eerl_twin.family import Configuration
from eerl_twin.fit import FOLDS, Fit, FixedRow, check, fit, held_out

#: GB200 rows vary from run to run by more than clocks do (paper, appendix C); these are the ones fitted.
GB200_FAMILIES = {("Nemotron-Super-49B", "colocated_sync")}
HERE = Path(__file__).parent
Checked = list[tuple[FixedRow, float, float]]


def read_rows(path: Path) -> list[FixedRow]:
    """The comparisons of the paper's appendices C and D that the fit uses."""
    rows = []
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            if line["gpu"] != "H100" and (line["model"], line["mode"]) not in GB200_FAMILIES:
                continue
            configuration = Configuration(
                line["model"],
                line["gpu"],
                ExecutionMode(line["mode"]),
                int(line["gen_gpus"]),
                int(line["train_gpus"]),
                line["size"],
            )
            rows.append(
                FixedRow(
                    configuration,
                    _mhz(line["gen_mhz"]),
                    _mhz(line["train_mhz"]),
                    float(line["throughput_change_pct"]),
                    float(line["energy_saving_pct"]),
                )
            )
    return rows


def _mhz(text: str) -> int | None:
    return None if text == "governor" else int(text)


def errors(checked: Checked) -> dict[str, dict[str, float]]:
    """Errors in percentage points by mode and over all: throughput change and energy saving."""
    out = {}
    modes = sorted({row.configuration.mode.value for row, _, _ in checked})
    for mode in ("all", *modes):
        off = np.array(
            [
                (change - row.throughput_change_pct, saving - row.energy_saving_pct)
                for row, change, saving in checked
                if mode in ("all", row.configuration.mode.value)
            ]
        )
        root, middle = np.sqrt((off**2).mean(axis=0)), np.median(np.abs(off), axis=0)
        out[mode] = {
            "rows": len(off),
            "throughput_rmse_pp": round(float(root[0]), 3),
            "throughput_median_pp": round(float(middle[0]), 3),
            "saving_rmse_pp": round(float(root[1]), 3),
            "saving_median_pp": round(float(middle[1]), 3),
            "saving_bias_pp": round(float(off[:, 1].mean()), 3),
        }
    return out


def _family(fitted: Fit, rows: Sequence[FixedRow], unseen: Checked) -> dict[str, Any]:
    """A family's frozen numbers and errors, as plain values."""
    configurations = []
    for configuration, own in fitted.own.items():
        mine = [row for row in rows if row.configuration == configuration]
        generation = [row.generation_mhz for row in mine if row.generation_mhz is not None]
        training = [row.training_mhz for row in mine if row.training_mhz is not None]
        configurations.append(
            {
                "model": configuration.model,
                "gpu": configuration.gpu,
                "mode": configuration.mode.value,
                "generation_gpus": configuration.generation_gpus,
                "training_gpus": configuration.training_gpus,
                "size": configuration.size,
                "lowest_generation_mhz": min(generation, default=None),
                "lowest_training_mhz": min(training, default=None),
                "own": dict(own),
            }
        )
    return {
        "shared": dict(fitted.shared),
        "configurations": configurations,
        "fitted_error": errors([check(fitted, row) for row in rows]),
        "held_out_error": errors(unseen),
    }


def as_markdown(content: dict[str, Any]) -> str:
    """The table of errors."""
    lines = [
        "# How well the presets reproduce the paper's fixed-clock rows",
        "",
        f"Made by `{content['provenance']['made_by']}`; do not edit. Errors in percentage points of throughput",
        "change and energy saving: root mean square (median). Held out: each row as predicted by a fit that never",
        f"saw it, in {FOLDS} folds. Equal settings in the paper's own tables differ by about 0.8 points.",
        "",
        "| family | mode | rows | throughput, fitted | throughput, held out | saving, fitted | saving, held out |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, family in content["families"].items():
        for mode, seen in family["fitted_error"].items():
            unseen = family["held_out_error"][mode]
            cells = [
                f"{error[f'{what}_rmse_pp']:.2f} ({error[f'{what}_median_pp']:.2f})"
                for what in ("throughput", "saving")
                for error in (seen, unseen)
            ]
            lines.append(f"| {name} | {mode} | {seen['rows']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", content["provenance"]["limits"], ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, write, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eerl_twin.calibrate", description=__doc__)
    parser.add_argument("headroom", type=Path, help="the paper's headroom.csv")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: the package)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(argv)
    if not options.headroom.is_file():
        parser.error(f"{options.headroom} is not a file; give the path of the paper's headroom.csv")
    rows = read_rows(options.headroom)
    families: dict[str, Any] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in sorted({row.configuration.family for row in rows}, reverse=True):
            mine = [row for row in rows if row.configuration.family == name]
            folds = pool.map(partial(held_out, mine), range(FOLDS))
            fitted = pool.submit(fit, mine).result()
            families[name] = _family(fitted, mine, [item for fold in folds for item in fold])
    content = {
        "schema_version": 1,
        "provenance": {
            "source": "arXiv 2611.05748v1, appendices C and D (headroom.csv)",
            "sha256": hashlib.sha256(options.headroom.read_bytes()).hexdigest(),
            "made_by": "python -m eerl_twin.calibrate headroom.csv",
            "limits": (
                "Assumed, not fitted: seconds of an update, mean response lengths, the 68 W floor of a waiting GPU, "
                "the idle clock of 345 MHz in every disaggregated and drained row. Of GB200 only colocated Nemotron "
                "is fitted. Below the lowest tested clock of a configuration everything is extrapolation."
            ),
        },
        "families": families,
    }
    (options.out / "presets.json").write_text(json.dumps(content, indent=1) + "\n")
    table = as_markdown(content)
    (options.out / "calibration.md").write_text(table)
    sys.stdout.write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
