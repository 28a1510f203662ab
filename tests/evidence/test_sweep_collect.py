"""From runs to tables: the truth inside the intervals, and what happens when a run is not what it should be."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from evidence.sweep_cells import put, put_all
from evidence.twin_ledgers import edit, quiet

from eerl_launch.policy import load_policy
from eerl_launch.report.units import signed
from eerl_launch.sweep import Sweep
from eerl_launch.sweep_collect import WorkloadResult, collect
from eerl_launch.sweep_plan import GOVERNOR, cell_folder
from eerl_launch.sweep_tables import document, render_text, write_tables
from eerl_launch.sweep_values import Setting
from eerl_launch.tools import eerl
from eerl_twin import FixedPlan, preset, simulate

WORLD = quiet(preset("qwen-disagg").world)
TEXT = "command: 'true'\npairs: [governor/1350, 1500/1200, 810/810]\nseeds: [1, 2]\nupdates: 5-25\n"
BEST: Setting = (None, 1350)
Event = dict[str, Any]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A study of three pairs and two seeds."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    return Sweep(file, tmp_path / "out")


def only(sweep: Sweep) -> WorkloadResult:
    """The result of the one workload."""
    (result,) = collect(sweep.study, sweep.out)
    return result


def test_tables_agree_with_the_truth(sweep: Sweep) -> None:
    """Each setting's saving and throughput, geometric means over the seeds, lie in its own intervals."""
    runs = put_all(sweep.out, sweep.tasks, WORLD, 26)

    result = only(sweep)

    assert [row.setting for row in result.rows] == list(sweep.study.pairs)
    assert result.left_out == [] and result.missing == []
    for row in result.rows:
        truths = [runs[seed, row.setting].totals(4, 25) for seed in (1, 2)]
        energy = np.exp(np.mean([np.log(1 - truth.energy_saving) for truth in truths if truth]))
        throughput = np.exp(np.mean([np.log(1 + truth.throughput_change) for truth in truths if truth]))
        assert row.energy.low is not None and row.energy.high is not None
        assert row.throughput.low is not None and row.throughput.high is not None
        assert row.energy.low <= energy <= row.energy.high
        assert row.throughput.low <= throughput <= row.throughput.high
        # The twin gives both runs of a seed the same work and noise, so the estimate is the truth itself.
        assert row.energy.ratio == pytest.approx(energy, rel=1e-9)


def test_files(sweep: Sweep) -> None:
    """Text, strict JSON, CSV like the appendices, a well-formed picture, and a policy that eerl-run takes."""
    put_all(sweep.out, sweep.tasks, WORLD, 26)

    done = CliRunner().invoke(eerl, ["sweep", str(sweep.file), "--out", str(sweep.out), "--collect"])

    assert done.exit_code == 0, done.output
    assert "SIMULATED" in done.output
    plain = json.loads((sweep.out / "sweep.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    (part,) = plain["workloads"]
    best = next(row for row in part["rows"] if row["best"])
    table = list(csv.DictReader(io.StringIO((sweep.out / "sweep.csv").read_text())))
    assert len(table) == len(part["rows"]) == 3
    assert float(table[0]["energy_saving_percent"]) == part["rows"][0]["energy_saving_percent"]
    picture = ElementTree.parse(sweep.out / "sweep.svg").getroot()
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}rect")) == 1 + 3 * 3
    page = (sweep.out / "sweep.html").read_text()
    for row in part["rows"]:
        low, high = (row[f"throughput_change_{end}_percent"] for end in ("low", "high"))
        value = row["throughput_change_percent"]
        assert f"<td>{signed(value, 2)} ({signed(low, 2)} to {signed(high, 2)})</td>" in page
    assert "<svg" in page and "SIMULATED GPUs" in page and "<script" not in page
    policy = load_policy(sweep.out / "policy-default.yaml")
    assert (policy.fixed.generation_mhz, policy.fixed.training_mhz) == BEST
    assert (best["generation_mhz"], best["training_mhz"]) == BEST
    assert best["throughput_change_percent"] >= -2.0


def test_no_setting_qualifies(sweep: Sweep, tmp_path: Path) -> None:
    """Then there is no policy file, one of an earlier collection is gone, and the page says to keep the governor."""
    sweep.file.write_text(TEXT.replace("governor/1350, 1500/1200, ", ""))
    strict = Sweep(sweep.file, tmp_path / "strict")
    put_all(strict.out, strict.tasks, WORLD, 26)
    (strict.out / "policy-default.yaml").write_text("policy: fixed\n")

    results = collect(strict.study, strict.out)
    write_tables(strict.study, results, strict.out)

    assert results[0].best is None
    assert not (strict.out / "policy-default.yaml").exists()
    assert "keep the governor" in render_text(strict.study, results)


def test_a_missing_governor_cell(sweep: Sweep) -> None:
    """Pairs whose governor never ran are named and have no part in any number."""
    put_all(sweep.out, sweep.tasks, WORLD, 26, lambda task, setting: (task.seed, setting) != (2, GOVERNOR))

    result = only(sweep)

    assert all(row.seeds == 1 and row.energy.low is None for row in result.rows)
    assert len(result.missing) == 3
    assert all("without a governor run in its allocation" in text for text in result.missing)


def test_a_missing_pair(sweep: Sweep) -> None:
    """A pair that has not run yet is named; the others are shown."""
    put_all(sweep.out, sweep.tasks, WORLD, 26, lambda task, setting: (task.seed, setting) != (2, (810, 810)))

    result = only(sweep)

    assert [row.seeds for row in result.rows] == [2, 2, 1]
    assert result.missing == ["default, seed 2, repetition 1: 810/810 has not run"]


def test_a_table_that_cannot_be_written(sweep: Sweep, tmp_path: Path) -> None:
    """A link where a table belongs: one line with the file and the reason; what it leads to stays as it was."""
    sweep.out.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (sweep.out / "sweep.csv").symlink_to(elsewhere)

    done = CliRunner().invoke(eerl, ["sweep", str(sweep.file), "--out", str(sweep.out), "--collect"])

    assert done.exit_code == 1
    assert (
        done.stderr
        == f"eerl: {sweep.out / 'sweep.csv'}: it is a symbolic link; what was asked is not there\n"
    )
    assert elsewhere.read_text() == "mine"


def test_nothing_has_run(sweep: Sweep) -> None:
    """An empty study has tables without rows, and exit code 1."""
    sweep.out.mkdir()

    done = CliRunner().invoke(eerl, ["sweep", str(sweep.file), "--out", str(sweep.out), "--collect"])

    assert done.exit_code == 1
    assert "Nothing can be compared yet" in done.output
    assert not (sweep.out / "sweep.svg").exists() and not (sweep.out / "sweep.html").exists()


def test_no_folder(sweep: Sweep) -> None:
    """Collecting before running says what to do first."""
    done = CliRunner().invoke(eerl, ["sweep", str(sweep.file), "--out", str(sweep.out), "--collect"])

    assert done.exit_code == 2
    assert "run the sweep first" in done.output


def unset(event: Event) -> Event:
    """No clock was set: the broker was not there."""
    if event["ev"] == "update":
        for pool in event["record"]["pools"].values():
            pool["requested_mhz"] = None
    return event


def not_honoured(event: Event) -> Event:
    """Somebody else set the clocks."""
    if event["ev"] == "update":
        event["record"]["flags"] = ["not_honoured"]
    return event


def no_tokens(event: Event) -> Event:
    """A trainer without counts."""
    if event["ev"] == "update":
        event["record"]["valid_tokens"] = None
    return event


def no_energy(event: Event) -> Event:
    """NaN joules."""
    if event["ev"] == "update":
        event["record"]["energy_j"] = float("nan")
    return event


def short(event: Event) -> Event | None:
    """A run that stopped at its twentieth update."""
    return None if event["ev"] == "update" and event["index"] >= 20 else event


def other_gpus(event: Event) -> Event:
    """An allocation of other GPUs."""
    for gpu in event.get("gpus", []):
        gpu["name"] = "A100"
    return event


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unset, "generation did not run at 1500 MHz"),
        (not_honoured, "not honoured"),
        (no_tokens, "without valid training tokens"),
        (no_energy, "without measured energy"),
        (short, "it has 20 updates, 25 are measured"),
        (other_gpus, "other GPUs"),
    ],
)
def test_runs_that_do_not_count(sweep: Sweep, change: Callable[[Event], Event | None], words: str) -> None:
    """A run that is not of its setting, or was not measured, is left out with its reason; the rest is shown."""
    put_all(sweep.out, sweep.tasks, WORLD, 26)
    edit(cell_folder(sweep.out, sweep.tasks[1], "job1.0", (1500, 1200)) / "eerl-1", change)

    result = only(sweep)

    assert [row.seeds for row in result.rows] == [2, 1, 2]
    (reason,) = result.left_out
    assert words in reason and "seed 2" in reason and "1500/1200" in reason
    assert reason in render_text(sweep.study, [result])


def damage(path: Path, how: str) -> None:
    """Break a ledger."""
    data = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    elif how == "newer":
        path.write_bytes(data.replace(b'"schema_version":1', b'"schema_version":9', 1))
    else:
        path.write_bytes(b"\x00\xff" + data)


@pytest.mark.parametrize("how", ["empty", "newer", "garbage"])
def test_broken_ledgers(sweep: Sweep, how: str) -> None:
    """A ledger that cannot be read leaves its run out and the others in."""
    put_all(sweep.out, sweep.tasks, WORLD, 26)
    folder = cell_folder(sweep.out, sweep.tasks[0], "job0.0", GOVERNOR) / "eerl-1"
    damage(folder / "ledger.jsonl", how)

    result = only(sweep)

    assert all(row.seeds == 1 for row in result.rows)
    assert any("ledger.jsonl" in text for text in result.left_out)
    assert any("its governor run cannot be used" in text for text in result.left_out)


def test_a_few_unmeasured_updates_are_left_out_of_both_sides(sweep: Sweep) -> None:
    """Two updates without energy in one run take no part in any run of that allocation."""
    runs = put_all(sweep.out, sweep.tasks, WORLD, 26)

    def gap(event: Event) -> Event:
        if event["ev"] == "update" and event["index"] in (10, 11):
            event["record"]["energy_j"] = None
        return event

    for task in sweep.tasks:
        edit(cell_folder(sweep.out, task, f"job{task.number}.0", BEST) / "eerl-1", gap)

    row = next(item for item in only(sweep).rows if item.setting == (1500, 1200))

    places = [place for place in range(4, 25) if place not in (10, 11)]
    logs = []
    for seed in (1, 2):
        run = runs[seed, row.setting]
        logs.append(
            np.log(sum(run.energy_j[at] for at in places) / sum(run.governor_energy_j[at] for at in places))
        )
    assert row.energy.ratio == pytest.approx(np.exp(np.mean(logs)), rel=1e-9)


def test_a_run_again_replaces_the_one_that_failed(sweep: Sweep) -> None:
    """After a failed run, a later allocation's pair and governor make the row."""
    put_all(sweep.out, sweep.tasks, WORLD, 26)
    task = sweep.tasks[0]
    broken = cell_folder(sweep.out, task, "job0.0", BEST)
    note = json.loads((broken / "cell.json").read_text())
    (broken / "cell.json").write_text(json.dumps(note | {"exit_code": 1}))
    assert len(only(sweep).missing) == 1

    for setting in (GOVERNOR, BEST):
        put(sweep.out, task, "job7.0", setting, simulate(WORLD, FixedPlan(*setting), 26, task.seed))

    result = only(sweep)
    assert result.missing == [] and [row.seeds for row in result.rows] == [2, 2, 2]
    assert [row.pairs for row in result.rows] == [2, 2, 2]


def test_the_document_is_complete(sweep: Sweep) -> None:
    """What is missing is in the JSON too, not only on the page."""
    put_all(sweep.out, sweep.tasks, WORLD, 26, lambda task, setting: setting != (810, 810))

    plain = document(sweep.study, collect(sweep.study, sweep.out))

    assert len(plain["workloads"][0]["missing"]) == 2
    assert plain["max_throughput_loss_fraction"] == 0.02


def test_asynchronous_rows_show_the_reward(tmp_path: Path) -> None:
    """Where clocks may change what training learns from, the table says how the reward moved (appendix D)."""
    file = tmp_path / "study.yaml"
    file.write_text(TEXT)
    sweep = Sweep(file, tmp_path / "out")
    put_all(sweep.out, sweep.tasks, quiet(preset("qwen-drained").world), 26)

    (result,) = collect(sweep.study, sweep.out)

    assert "reward change" in render_text(sweep.study, [result])
    assert all(row.reward_delta is not None for row in result.rows)
