"""Sums, units and counts of the report against runs whose truth is known."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from report.ledgers import RunSpec, constant_power_events, write_ledger, write_run

from eerl_launch.report import write_report


def strict(path: Path) -> dict:
    """The JSON file, refusing NaN and infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {path}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, every row with as many cells as the header."""
    rows = list(csv.reader(path.open(encoding="utf-8", newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


@pytest.fixture
def constant(tmp_path: Path) -> Path:
    """Field case E01: 2 nodes of 2 GPUs at 100, 200, 300 and 400 W for 120 s."""
    spec = RunSpec()
    return write_ledger(tmp_path, constant_power_events(spec, [100.0, 200.0, 300.0, 400.0], 120.0, 10.0))


def test_total_and_gpus_are_power_times_time(constant: Path) -> None:
    """Four GPUs at constant power for 120 s used 120 kJ, each its own part of it."""
    document = strict(write_report(constant, ["json"]).json)

    total = document["allocation"]
    assert total["energy_j"] == pytest.approx(120_000)
    assert total["energy_kwh"] == pytest.approx(120_000 / 3.6e6)
    assert total["mean_power_w"] == pytest.approx(1000)
    assert [gpu["energy_j"] for gpu in document["gpus"]] == pytest.approx([12_000, 24_000, 36_000, 48_000])
    assert [node["energy_j"] for node in document["nodes"]] == pytest.approx([36_000, 84_000])


def test_phases_and_unattributed_make_up_the_total(constant: Path) -> None:
    """The exclusive rows of the phase table, unattributed among them, add up to the total in time and energy."""
    document = strict(write_report(constant, ["json"]).json)

    parts = [row for row in document["phases"] if row["exclusive"]]
    assert parts[-1]["phase"] == "unattributed"
    assert sum(row["energy_j"] for row in parts) == pytest.approx(120_000, rel=1e-3)
    assert sum(row["elapsed_s"] for row in parts) == pytest.approx(120, rel=1e-3)
    assert all(check["ok"] for check in document["checks"])


def test_csv_files_add_up_like_the_document(tmp_path: Path) -> None:
    """A script that sums the CSV files gets the totals of report.json."""
    paths = write_report(write_run(tmp_path), ["json", "csv"])

    document = strict(paths.json)
    gpus, phases, updates = table(paths.gpus_csv), table(paths.phases_csv), table(paths.updates_csv)
    assert sum(float(row["energy_j"]) for row in gpus) == pytest.approx(document["allocation"]["energy_j"])
    parts = sum(float(row["energy_j"]) for row in phases if row["exclusive"] == "true")
    rest = next(row for row in document["phases"] if row["phase"] == "unattributed")
    assert parts + rest["energy_j"] == pytest.approx(document["allocation"]["energy_j"], rel=1e-3)
    assert len(updates) == 60
    assert set(updates[0]) >= {
        "update",
        "elapsed_s",
        "energy_j",
        "generated_tokens",
        "valid_tokens",
        "longest_response_tokens",
    }
    one = gpus[0]
    own = sum(float(value) for key, value in one.items() if key.startswith("phase:"))
    assert own + float(one["unattributed_energy_j"]) == pytest.approx(float(one["energy_j"]))
