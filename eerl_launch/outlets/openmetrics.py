"""A run as OpenMetrics text, such as node_exporter's textfile collector reads it: gauges without timestamps.

Gauges only, so that the file is right for parsers of either format (Prometheus 0.0.4 knows no ``info``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eerl_launch.outlets.parcel import Parcel
from eerl_launch.report.document import Document
from eerl_launch.whole_file import write_whole

Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]
_ABOUT = ("job_id", "job_name", "user", "account", "cluster", "partition", "policy", "mode", "framework")


def deliver(parcel: Parcel) -> str:
    """Write the file, renamed into place: ``metrics.prom`` in the run folder, or one of its own where asked for."""
    document, asked = parcel["document"], parcel["metrics_folder"]
    run_id = re.sub(r"[^A-Za-z0-9._-]", "-", str(document["run"]["run_id"] or "unknown")).removeprefix(
        "eerl-"
    )
    path = Path(asked) / f"eerl-{run_id}.prom" if asked else Path(parcel["folder"]) / "metrics.prom"
    try:
        write_whole(path, render(document))  # the collector takes *.prom only, so never a half one
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error
    return str(path)


def render(document: Document) -> str:
    """The text, ``# EOF`` at its end."""
    run = document["run"]
    job = {
        name: str(run[name] or "")
        for name in ("run_id", "job_id", "job_name", "user", "cluster", "partition")
    }
    job["simulated"] = "true" if document["simulated"] else "false"
    lines: list[str] = []
    for name, unit, words, samples in _families(document):
        known = [({**job, **labels}, value) for labels, value in samples if value is not None]
        if not known:
            continue
        full = f"eerl_{name}_{unit}" if unit else f"eerl_{name}"
        lines += [f"# HELP {full} {_escaped(words)}", f"# TYPE {full} gauge"]
        lines += [f"# UNIT {full} {unit}"] if unit else []
        lines += [f"{full}{_labels(labels)} {float(value)!r}" for labels, value in known]
    return "\n".join([*lines, "# EOF", ""])


def _families(document: Document) -> Iterable[tuple[str, str, str, list[Sample]]]:
    """Name, unit, help and samples of every gauge; values None are left out."""
    total, updates = document["allocation"], document["updates"]
    whole: Mapping[str, Any] = document["result"]["whole"] or {}

    def one(value: float | None) -> list[Sample]:
        return [({}, value)]

    def percent(name: str) -> list[Sample]:
        bounds = (
            ("estimate", f"{name}_percent"),
            ("low", f"{name}_low_percent"),
            ("high", f"{name}_high_percent"),
        )
        return [
            ({"bound": bound}, None if (value := whole.get(key)) is None else value / 100.0)
            for bound, key in bounds
        ]

    about = {name: str(document["run"][name] or "") for name in _ABOUT}
    yield "job_info", "", "What the run was; always 1.", [(about, 1.0)]
    yield "job_complete", "", "1 when the run was recorded to its end.", one(float(document["complete"]))
    yield "job_energy", "joules", "Energy of the job's GPUs.", one(total["energy_j"])
    yield "job_elapsed", "seconds", "Time from the run's start to its end.", one(total["elapsed_s"])
    yield "job_mean_power", "watts", "Mean power of the job's GPUs.", one(total["mean_power_w"])
    yield "job_coverage", "ratio", "Share of GPU time that was measured.", one(total["coverage_fraction"])
    yield "job_updates", "", "Policy updates.", one(updates["updates"])
    yield "job_valid", "tokens", "Valid training tokens.", one(updates["valid_tokens"])
    yield "job_generated", "tokens", "Generated tokens.", one(updates["generated_tokens"])
    yield "job_energy_saved", "joules", "Energy saved against the governor.", one(whole.get("saved_energy_j"))
    yield (
        *("job_energy_saved", "ratio"),
        "Energy saved per valid token against the governor, with its 95 % interval.",
        percent("saving"),
    )
    yield (
        *("job_throughput_change", "ratio"),
        "Change of valid tokens per second against the governor, with its 95 % interval.",
        percent("throughput_change"),
    )
    cost: Mapping[str, Any] = document["cost"] or {}
    currency = {"currency": str(cost.get("currency") or "")}
    yield "job_cost", "", "Cost of the energy, as the policy prices it.", [(currency, cost.get("price"))]
    yield "job_carbon", "grams", "CO2 of the energy, as the policy counts it.", one(cost.get("carbon_g"))
    phases = [row for row in document["phases"] if row["phase"] != "total"]
    yield "phase_energy", "joules", "Energy by phase.", [(_phase(row), row["energy_j"]) for row in phases]
    yield "phase_elapsed", "seconds", "Time by phase.", [(_phase(row), row["elapsed_s"]) for row in phases]
    nodes = document["nodes"]
    yield (
        "node_energy",
        "joules",
        "Energy by node.",
        [({"node": row["node"]}, row["energy_j"]) for row in nodes],
    )


def _phase(row: Mapping[str, Any]) -> Labels:
    """Those of the partition add up to the job; subphases lie inside their phase."""
    return {"phase": row["phase"], "partition_of_job": "true" if row["exclusive"] else "false"}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _labels(labels: Labels) -> str:
    pairs = (
        f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}"
