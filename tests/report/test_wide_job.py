"""Reports of jobs so wide that the ledger has the phases' energy by GPU in sums only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.ledgers import RunSpec, run_events, write_ledger
from report.reading import strict

from eerl_launch.gpu_detail import GpuDetail
from eerl_launch.ledger import Event
from eerl_launch.report import write_report

SPEC = RunSpec(nodes=45, gpus_per_node=8, updates=8, calibration=4, lock_from=6)


def thinned(events: Iterator[Event], *, ends: bool = True) -> Iterator[Event]:
    """The events as the session writes those of a wide job; without an end as it was killed."""
    detail, lines = GpuDetail(), list[Event]()
    for event in events:
        if event["ev"] == "phase":
            lines.append(event)
            continue
        yield from detail.thin(lines)
        lines = []
        if event["ev"] == "end":
            if not ends:
                return
            yield from detail.rest()
        yield event


def report(folder: Path, events: Iterator[Event]) -> dict[str, Any]:
    """The report's document."""
    found = strict(write_report(write_ledger(folder, events), ["json"]).json)
    assert isinstance(found, dict)
    return found


def test_sums_tell_of_each_gpu_what_lines_do(tmp_path: Path) -> None:
    """The same run with joules in every line and in sums: all GPUs, nodes and pools come out alike."""
    by_line = report(tmp_path / "lines", run_events(SPEC))
    by_sum = report(tmp_path / "sums", thinned(run_events(SPEC)))

    text = (tmp_path / "sums" / "ledger.jsonl").read_text()
    assert '"gpu_energy_j":null' in text and text.count('"ev":"gpu_phases"') == 1
    for left, right in zip(by_line["gpus"], by_sum["gpus"], strict=True):
        assert left["phase_energy_j"] == pytest.approx(right["phase_energy_j"], abs=0.01)
        assert left["subphase_energy_j"] == pytest.approx(right["subphase_energy_j"], abs=0.01)
        assert left["energy_j"] == pytest.approx(right["energy_j"])
    for left, right in zip(by_line["nodes"], by_sum["nodes"], strict=True):
        assert left["phase_energy_j"] == pytest.approx(right["phase_energy_j"], abs=0.1)
    assert by_line["phases"] == by_sum["phases"]
    assert all(check["ok"] for check in by_sum["checks"])


def test_a_killed_wide_job_says_what_is_not_known_by_gpu(tmp_path: Path) -> None:
    """Killed before its first sums: totals and generation are known by GPU, rewards not, and the report says so."""
    found = report(tmp_path, thinned(run_events(SPEC), ends=False))

    known = {name for gpu in found["gpus"] for name in gpu["phase_energy_j"]}
    assert all(gpu["energy_j"] > 0 for gpu in found["gpus"])
    assert "generation" in known and "reward" not in known
    assert any("no energy by GPU" in entry["text"] for entry in found["trust"])
