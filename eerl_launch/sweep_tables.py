"""The results of a study as files: text, JSON, CSV, a picture like figure 2, and a policy with the best setting.

The picture is there twice: alone as SVG, and on a page with the table of its numbers.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eerl_launch.compare_text import aligned, change
from eerl_launch.evidence.estimator import CONFIDENCE_PERCENT, Comparison
from eerl_launch.evidence.figures import CHANGES, Bar, Picture, Row, draw
from eerl_launch.evidence.picture_page import render_page
from eerl_launch.report import units
from eerl_launch.sweep_collect import WorkloadResult
from eerl_launch.sweep_study import Study, setting_name
from eerl_launch.whole_file import write_whole

SCHEMA = "eerl.sweep"
SCHEMA_VERSION = 1


def _row(result: WorkloadResult, item: Comparison, study: Study) -> dict[str, Any]:
    saving, faster, power = (
        item.energy.saving_interval(),
        item.throughput.change_interval(),
        item.power.change_interval(),
    )
    return {
        "workload": result.workload,
        "generation_mhz": item.setting[0],
        "training_mhz": item.setting[1],
        "updates": f"{study.first_update}-{study.last_update}",
        "throughput_change_percent": item.throughput_change_percent,
        "throughput_change_low_percent": faster[0],
        "throughput_change_high_percent": faster[1],
        "energy_saving_percent": item.energy_saving_percent,
        "energy_saving_low_percent": saving[0],
        "energy_saving_high_percent": saving[1],
        "power_change_percent": item.power.change_percent,
        "power_change_low_percent": power[0],
        "power_change_high_percent": power[1],
        "reward_delta": item.reward_delta,
        "seeds": item.seeds,
        "pairs": item.pairs,
        "within_limit": item.within(study.max_throughput_loss),
        "best": item is result.best,
    }


def document(study: Study, results: Sequence[WorkloadResult]) -> dict[str, Any]:
    """Everything, nothing rounded; clocks of null are the governor's."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "confidence_percent": CONFIDENCE_PERCENT,
        "max_throughput_loss_fraction": study.max_throughput_loss,
        "first_update": study.first_update,
        "last_update": study.last_update,
        "workloads": [
            {
                "workload": result.workload,
                "configuration": result.configuration or None,
                "simulated": result.simulated,
                "rows": [_row(result, item, study) for item in result.rows],
                "left_out": result.left_out,
                "missing": result.missing,
            }
            for result in results
        ],
    }


def render_csv(found: dict[str, Any]) -> str:
    """A row per workload and setting, like the paper's appendices C and D."""
    rows = [row for part in found["workloads"] for row in part["rows"]]
    out = io.StringIO()
    head = list(rows[0]) if rows else ["workload", "generation_mhz", "training_mhz"]
    writer = csv.DictWriter(out, head, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        clocks = {
            key: "governor" if row[key] is None else row[key] for key in ("generation_mhz", "training_mhz")
        }
        writer.writerow({**row, **clocks})
    return out.getvalue()


def render_text(study: Study, results: Sequence[WorkloadResult]) -> str:
    """The tables for a terminal."""
    found = document(study, results)
    lines = [
        f"Study {study.name}: updates {study.first_update}–{study.last_update}, against the governor of the same "
        f"allocation and seed; parentheses: {CONFIDENCE_PERCENT} % intervals"
    ]
    for result, part in zip(results, found["workloads"], strict=True):
        lines += ["", f"{result.workload}: {result.configuration or 'no run that counts'}"]
        if result.simulated:
            lines.append(f"SIMULATED GPUs ({result.simulated}): no number here is of real hardware")
        if part["rows"]:
            lines += _table(result, part["rows"])
        lines += [_best_words(study, result)]
        lines += [f"not counted: {text}" for text in result.left_out]
        lines += [f"missing: {text}" for text in result.missing]
    return "\n".join(lines) + "\n"


def _table(result: WorkloadResult, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per setting; in the asynchronous modes, where clocks may change what is learnt from, with reward."""
    asynchronous = result.configuration.startswith("async")
    head = ["gen/train MHz", "throughput %", "energy saving %", "power %", "seeds"]
    cells = [
        [
            setting_name(item.setting) + (" *" if row["best"] else ""),
            change(row, "throughput_change"),
            change(row, "energy_saving"),
            change(row, "power_change"),
            str(item.seeds),
            units.signed(item.reward_delta, 4),
        ]
        for item, row in zip(result.rows, rows, strict=True)
    ]
    if asynchronous:
        return aligned([*head, "reward change"], cells)
    return aligned(head, [line[:-1] for line in cells])


def _best_words(study: Study, result: WorkloadResult) -> str:
    limit = units.percent(study.max_throughput_loss, 1)
    if not result.rows:
        return "Nothing can be compared yet."
    if result.best is None:
        return f"No setting saves energy within {limit} of the governor's throughput: keep the governor."
    low = result.best.throughput.low
    sure = low is not None and low >= 1.0 - study.max_throughput_loss
    doubt = "" if sure else "; that it keeps within the limit is not certain: more seeds would tell"
    return f"* lowest energy per valid token within {limit} loss of throughput{doubt}"


def picture(study: Study, results: Sequence[WorkloadResult]) -> Picture:
    """Throughput, power and energy by setting (figure 2)."""
    groups = [
        (
            f"{result.workload} · {result.configuration}",
            [
                Row(
                    setting_name(item.setting),
                    (
                        Bar(item.throughput.change_percent, *item.throughput.change_interval()),
                        Bar(item.power.change_percent, *item.power.change_interval()),
                        Bar(item.energy.change_percent, *item.energy.change_interval()),
                    ),
                )
                for item in result.rows
            ],
        )
        for result in results
        if result.rows
    ]
    simulated = next((result.simulated for result in results if result.simulated), None)
    return Picture(
        f"{study.name}: change from the governor",
        CHANGES,
        groups,
        f"Geometric means over matched seeds; lines are {CONFIDENCE_PERCENT} % intervals.",
        simulated,
    )


def policy(study: Study, best: Comparison, result: WorkloadResult) -> str:
    """A policy file that holds the best setting."""
    plain = {
        "policy": "fixed",
        "mode": study.mode,
        "max_throughput_loss": study.max_throughput_loss,
        "fixed": {
            key: "governor" if mhz is None else mhz
            for key, mhz in zip(("generation_mhz", "training_mhz"), best.setting, strict=True)
        },
        "clocks": {"idle_mhz": study.idle_mhz},
    }
    comment = (
        f"# The best setting of study {study.name}, workload {result.workload} ({result.configuration}):\n"
        f"# energy saving {units.signed(best.energy_saving_percent, 2)} %, "
        f"throughput {units.signed(best.throughput_change_percent, 2)} %, over {best.seeds} seeds.\n"
    )
    if result.simulated:
        comment += f"# SIMULATED GPUs ({result.simulated}): not for real ones.\n"
    return comment + yaml.safe_dump(plain, sort_keys=False)


def write_tables(study: Study, results: Sequence[WorkloadResult], out: Path) -> list[Path]:
    """Write every file into ``out`` and return their paths; a policy of an earlier collection that no longer
    holds is removed."""
    found = document(study, results)
    files = {
        "sweep.txt": render_text(study, results),
        "sweep.json": json.dumps(found, indent=1, allow_nan=False) + "\n",
        "sweep.csv": render_csv(found),
    }
    if any(result.rows for result in results):
        figure = picture(study, results)
        files |= {"sweep.svg": draw(figure), "sweep.html": render_page(figure)}
    for result in results:
        name = f"policy-{result.workload}.yaml"
        if result.best is not None:
            files[name] = policy(study, result.best, result)
        else:
            (out / name).unlink(missing_ok=True)
    for name, text in files.items():
        write_whole(out / name, text)
    return [out / name for name in files]
