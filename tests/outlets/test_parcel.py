"""What is sent of a run: numbers with names, unknown ones left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from outlets.runs import parcel_of, report_of
from report.ledgers import RunSpec

from eerl_launch.outlets.parcel import MOST_ROWS, about, one_line, pack, totals


def test_totals_are_the_reports_own(tmp_path: Path) -> None:
    """Energy, saving with its interval, and phases come under names with units; phases add up to the whole."""
    document = report_of(tmp_path).document

    found = totals(document)

    assert found["energy_j"] == document["allocation"]["energy_j"]
    assert found["saving_percent"] == document["result"]["whole"]["saving_percent"]
    assert found["saving_low_percent"] < found["saving_percent"] < found["saving_high_percent"]
    parts = [row["phase"] for row in document["phases"] if row["exclusive"]]
    assert sum(found[f"phase/{name}/energy_j"] for name in parts) == pytest.approx(found["energy_j"])
    units = r".*_(j|kwh|s|w|percent|fraction|token|tokens|seen|measured|per_s|price|g)|updates"
    assert [name for name in found if not re.fullmatch(units, name)] == []


def test_names_of_phases_lead_nowhere(tmp_path: Path) -> None:
    """Trackers that keep names as paths refuse a run for one name with a dot for a part; others stay as they are."""

    def odd(event: dict) -> Iterator[dict] | None:
        renamed = {"reward": "..", "refit": "a/../v1.5/.", "logprob": "re..f/x.y"}
        return iter(
            [{**event, "phase": renamed.get(event["phase"], event["phase"])}] if "phase" in event else [event]
        )

    found = totals(report_of(tmp_path, RunSpec(edit=odd)).document)

    names = {name.removesuffix("/energy_j") for name in found if name.endswith("/energy_j")}
    assert {"phase/_", "phase/a/_/v1.5/_", "phase/re..f/x.y"} <= names


def test_what_is_not_known_is_not_sent(tmp_path: Path) -> None:
    """A run without tokens and lowered clocks has no saving among its numbers, and the reason among its words."""
    spec = RunSpec(counts=False, lock_from=10**6, calibration=10**6)

    parcel = parcel_of(tmp_path, spec)

    found = totals(parcel["document"])
    assert not [name for name in found if "saving" in name or "token" in name]
    assert "no clock was lowered" in about(parcel["document"])["no_estimate"]
    assert all("valid_tokens" not in row for row in parcel["updates"])
    json.dumps(parcel, allow_nan=False)


def test_a_long_run_is_sent_in_blocks(tmp_path: Path) -> None:
    """Of 2,500 updates each row is the mean of three, so that sums stay right; the last is under its number."""
    report = report_of(tmp_path, RunSpec(nodes=1, gpus_per_node=1, updates=2500, subphases=False))

    parcel = pack(report, tmp_path)

    assert (len(parcel["updates"]), parcel["updates_per_row"]) == (834, 3)
    assert len(parcel["updates"]) <= MOST_ROWS
    assert parcel["updates"][0]["update"] == 3 and parcel["updates"][-1]["update"] == 2500
    first = report.run.updates[:3]
    assert parcel["updates"][0]["energy_j"] == pytest.approx(sum(row.energy_j or 0 for row in first) / 3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RunSpec(), ["kWh", "saved", "% (", "throughput"]),
        (RunSpec(simulated="h100:1x2", end=False), ["SIMULATED", "incomplete"]),
        (RunSpec(updates=0), ["kWh"]),
    ],
)
def test_one_line_says_the_most_important(tmp_path: Path, spec: RunSpec, words: list[str]) -> None:
    """Plain ASCII on one line: the energy, what was saved where that is known, and what must be said beside it."""
    line = one_line(report_of(tmp_path, spec).document)

    assert all(word in line for word in words), line
    assert line.startswith("eerl: ") and line.isascii() and line.isprintable() and len(line) < 200
