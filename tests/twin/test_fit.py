"""Calibration: it finds what it was made from, holds out what it is judged on, and writes what presets read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from eerl_controller import ExecutionMode
from eerl_twin import calibrate
from eerl_twin import fit as fitting
from eerl_twin.family import OWN, SHARED, Configuration, world_of
from eerl_twin.fit import FOLDS, FixedRow, check, fit, held_out, predicted

CONFIGURATIONS = [
    Configuration("Qwen3-30B-A3B", "H100", ExecutionMode.COLOCATED_SYNC, 32, 32, "M"),
    Configuration("Qwen3-30B-A3B", "H100", ExecutionMode.DISAGGREGATED_SYNC, 8, 32, "M"),
]
CLOCKS = [
    (1980, 1980),
    (1800, 1800),
    (1800, 1500),
    (1650, 1350),
    (1500, 1500),
    (1500, 1200),
    (1200, 1500),
    (1200, 1200),
    (810, 810),
]


def made_up(**known: float) -> list[FixedRow]:
    """Rows as the twin itself predicts them from known parameters."""
    values = {parameter.name: parameter.start for parameter in (*SHARED, *OWN)} | known
    rows = []
    for configuration in CONFIGURATIONS:
        asked = [FixedRow(configuration, *pair, 0.0, 0.0) for pair in CLOCKS]
        for row, (change, saving) in zip(
            asked, predicted(world_of(configuration, values), asked), strict=True
        ):
            rows.append(
                FixedRow(configuration, row.generation_mhz, row.training_mhz, float(change), float(saving))
            )
    return rows


def test_a_fit_explains_rows_that_a_world_of_its_kind_made() -> None:
    """Known parameters far from the start: predictions within half a point, which is less than a row's own error."""
    rows = made_up(generation_bound=0.5, training_exponent=1.8, training_ceiling=0.85, lock_offset=0.015)

    fitted = fit(rows)

    for row in rows:
        _, change, saving = check(fitted, row)
        assert change == pytest.approx(row.throughput_change_pct, abs=0.5)
        assert saving == pytest.approx(row.energy_saving_pct, abs=0.5)
    assert fitted.own[CONFIGURATIONS[0]]["lock_offset"] == pytest.approx(0.015, abs=0.004)


def test_held_out_rows_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is held out once, and the fit that predicts it was given all others and not it."""
    rows = made_up()
    given: list[list[FixedRow]] = []
    start = fitting.Fit({parameter.name: parameter.start for parameter in SHARED}, {})

    def spying(some: list[FixedRow]) -> fitting.Fit:
        given.append(some)
        return start

    monkeypatch.setattr(fitting, "fit", spying)
    folds = [[row for row, _, _ in held_out(rows, fold)] for fold in range(FOLDS)]

    assert sorted(map(repr, (row for fold in folds for row in fold))) == sorted(map(repr, rows))
    for fold, seen in zip(folds, given, strict=True):
        assert not set(fold) & set(seen)
        assert len(fold) + len(seen) == len(rows)


def test_the_command_writes_presets_and_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a table like the paper's: parameters, lowest tested clocks, errors; GB200 disaggregated left out."""
    monkeypatch.setattr(fitting, "ITERATIONS", 1)
    table = tmp_path / "headroom.csv"
    names = ["section", "model", "gpu", "mode", "gen_gpus", "train_gpus", "size", "updates", "gen_mhz"]
    names += ["train_mhz", "throughput_change_pct", "energy_saving_pct", "seeds", "reward_delta"]
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(names)
        for row in made_up()[: len(CLOCKS)]:
            pair = [row.generation_mhz, row.training_mhz]
            numbers = [row.throughput_change_pct, row.energy_saving_pct]
            lines.writerow(
                [
                    "C.1",
                    "Qwen3-30B-A3B",
                    "H100",
                    "colocated_sync",
                    32,
                    32,
                    "M",
                    "5-25",
                    *pair,
                    *numbers,
                    4,
                    "",
                ]
            )
        noisy = ["C.9", "Qwen3-30B-A3B", "GB200", "disaggregated_sync", 8, 16, "M", "5-25"]
        lines.writerow([*noisy, "governor", 1400, 1.5, 16.0, 4, ""])

    assert calibrate.main([str(table), "--out", str(tmp_path)]) == 0

    content = json.loads((tmp_path / "presets.json").read_text())
    assert list(content["families"]) == ["Qwen3-30B-A3B H100"]
    family = content["families"]["Qwen3-30B-A3B H100"]
    assert set(family["shared"]) == {parameter.name for parameter in SHARED}
    entry = family["configurations"][0]
    assert (entry["lowest_generation_mhz"], entry["lowest_training_mhz"]) == (810, 810)
    assert family["held_out_error"]["all"]["rows"] == len(CLOCKS)
    assert (tmp_path / "calibration.md").read_text() == capsys.readouterr().out


def test_a_missing_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says which file it wanted."""
    with pytest.raises(SystemExit):
        calibrate.main([str(tmp_path / "nothing.csv")])

    assert "nothing.csv is not a file" in capsys.readouterr().err
