"""``eerl compare`` on ledgers whose truth is known: its tables, and every reason why there is none."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import socket
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from evidence.twin_ledgers import edit, quiet, write_run

from eerl_controller import Controller, Settings
from eerl_launch.compare import compare
from eerl_launch.compare_text import render_csv, render_text
from eerl_launch.errors import EerlError, LedgerError
from eerl_launch.evidence.comparable import LEAST_REAL_S
from eerl_launch.evidence.runs import load_run
from eerl_launch.tools import eerl
from eerl_twin import FixedPlan, Run, preset, simulate

UPDATES = 110
Event = dict[str, Any]


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """A controller's run, the governor with the same seed, and another governor."""
    world = quiet(preset("qwen-disagg").world)
    source = Controller(Settings(policy="paper"), world.mode, world.grid)
    return {
        "controller": simulate(world, source, UPDATES, 1),
        "governor": simulate(world, FixedPlan(), UPDATES, 1),
        "other": simulate(world, FixedPlan(), UPDATES, 2),
    }


@pytest.fixture
def folders(runs: dict[str, Run], tmp_path: Path) -> dict[str, Path]:
    """Their run folders."""
    policies = {"controller": "paper", "governor": "governor", "other": "governor"}
    return {name: write_run(tmp_path / name, run, policies[name]) for name, run in runs.items()}


def row(document: dict[str, Any], table: str, interval: str) -> dict[str, Any]:
    """The row of an interval."""
    return next(item for item in document[table] if item["interval"] == interval)


def test_paired_totals_are_the_truth_on_equal_work(runs: dict[str, Run], folders: dict[str, Path]) -> None:
    """The same seed is the same work in the twin: tables 4 and 5 then are the truth itself."""
    document = compare([folders["controller"], folders["governor"]])

    run = runs["controller"]
    assert run.lock_update is not None
    lock = run.lock_update - 1  # the ledger says the state that an update led to
    assert document["runs"][0]["locked_at_update"] == lock + 1
    for interval, first, last in (
        ("whole run", 1, None),
        ("before lock", 1, lock),
        ("after lock", lock, None),
    ):
        found, truth = row(document, "paired", interval), run.totals(first, last)
        assert truth is not None
        assert found["energy_saving_percent"] == pytest.approx(100 * truth.energy_saving, abs=1e-6)
        assert found["throughput_change_percent"] == pytest.approx(100 * truth.throughput_change, abs=1e-6)
        assert found["energy_saving_low_percent"] is None
    assert "two or more" in document["normalized_reason"]


def test_equal_work_agrees_with_the_truth(runs: dict[str, Run], folders: dict[str, Path]) -> None:
    """With two governor runs, neither of its own work, the truth lies in the interval."""
    document = compare([folders["controller"], folders["other"], folders["governor"]])

    found, truth = row(document, "normalized", "whole run"), runs["controller"].totals(1)
    assert truth is not None
    assert (
        found["energy_saving_low_percent"] <= 100 * truth.energy_saving <= found["energy_saving_high_percent"]
    )
    assert (
        found["throughput_change_low_percent"]
        <= 100 * truth.throughput_change
        <= found["throughput_change_high_percent"]
    )
    assert found["governor_time_spread_percent"] < 1.0
    assert document["predictor"]["blocks"] == 2 * ((UPDATES - 15) // 3)
    assert row(document, "paired", "whole run")["governor"] == "other"


def test_several_pairs_are_averaged(runs: dict[str, Run], folders: dict[str, Path], tmp_path: Path) -> None:
    """Two controller runs, each with the governor named after it, give a mean with an interval."""
    again = write_run(tmp_path / "again", runs["controller"], "paper")

    document = compare([folders["controller"], folders["governor"], again, folders["other"]])

    partners = {item["run"]: item["governor"] for item in document["paired"]}
    assert partners == {"controller": "governor", "again": "other"}
    assert document["paired_mean"]["pairs"] == 2
    assert document["paired_mean"]["energy_saving_low_percent"] is not None


def test_text_json_and_csv_say_the_same(folders: dict[str, Path]) -> None:
    """The command prints each form; JSON is strict and CSV has a row for each row of the tables."""
    names = [str(folders[name]) for name in ("controller", "governor", "other")]

    text, plain, rows = (
        CliRunner().invoke(eerl, ["compare", *names, "--format", form]) for form in ("text", "json", "csv")
    )

    assert [done.exit_code for done in (text, plain, rows)] == [0, 0, 0], text.output
    document = json.loads(plain.output, parse_constant=lambda name: pytest.fail(name))
    table = list(csv.DictReader(io.StringIO(rows.output)))
    assert len(table) == len(document["paired"]) + len(document["normalized"]) == 6
    saving = row(document, "paired", "whole run")["energy_saving_percent"]
    assert float(table[0]["energy_saving_percent"]) == saving
    assert f"{saving:+.2f}" in text.output
    assert "SIMULATED" in text.output


def test_the_predictors_picture(folders: dict[str, Path], tmp_path: Path) -> None:
    """Figure 3 is a well-formed SVG with both references for both quantities; it cannot be had of nothing."""
    picture = tmp_path / "figure.svg"
    names = [str(folders["governor"]), str(folders["other"])]

    done = CliRunner().invoke(eerl, ["compare", *names, "--picture", str(picture)])

    assert done.exit_code == 0, done.output
    root = ElementTree.parse(picture).getroot()
    texts = ["".join(item.itertext()) for item in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(text.startswith("constant:") for text in texts) == 2
    assert sum(text.startswith("token work:") for text in texts) == 2
    page = tmp_path / "figure.html"
    assert CliRunner().invoke(eerl, ["compare", *names, "--picture", str(page)]).exit_code == 0
    predictor = compare([folders["governor"], folders["other"]])["predictor"]
    for quantity in ("throughput", "energy"):
        for key in ("constant", "token_work"):
            assert f"<td>{predictor[f'{quantity}_{key}_percent']:.2f}</td>" in page.read_text()
    elsewhere = CliRunner().invoke(eerl, ["compare", *names, "--picture", str(tmp_path / "no" / "x.svg")])
    assert elsewhere.exit_code == 2 and "cannot be written" in elsewhere.output


def test_governor_runs_alone(folders: dict[str, Path]) -> None:
    """Without a controller run there is the forward test, and the page says that nothing is compared."""
    document = compare([folders["governor"], folders["other"]])

    assert document["paired"] == [] and document["predictor"] is not None
    assert "no controller run" in render_text(document)
    assert render_csv(document).count("\n") == 1


def gpu_name(event: Event) -> Event:
    """Other GPUs."""
    for gpu in event.get("gpus", []):
        gpu["name"] = "B200"
    return event


def real(event: Event) -> Event:
    """Not simulated."""
    return event | {"simulated": None} if event["ev"] == "start" else event


def batch(event: Event) -> Event:
    """Another batch, as the trainer says."""
    return event | {"responses": 2048} if event["ev"] == "update" else event


def silent_batch(event: Event) -> Event:
    """Another batch that only its tokens tell."""
    if event["ev"] == "update":
        event["responses"] = None
        event["record"]["valid_tokens"] *= 4
    return event


def mode(event: Event) -> Event:
    """Another execution mode."""
    return event | {"mode": "colocated_sync"} if event["ev"] in ("controller", "run") else event


def short(event: Event) -> Event | None:
    """Ten updates only."""
    return None if event["ev"] == "update" and event["index"] >= 10 else event


def no_tokens(event: Event) -> Event:
    """A trainer that sends no counts."""
    if event["ev"] == "update":
        event["record"]["valid_tokens"] = None
    return event


def no_energy(event: Event) -> Event:
    """A GPU that was never measured: NaN in the records."""
    if event["ev"] == "update":
        event["record"]["energy_j"] = float("nan")
    return event


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (gpu_name, "other GPUs"),
        (real, "simulated against real"),
        (batch, "other batch"),
        (silent_batch, "does not tell its responses"),
        (mode, "other execution mode"),
        (short, "too few usable updates: 10"),
        (no_tokens, "without valid training tokens"),
        (no_energy, "without measured energy"),
    ],
)
def test_runs_that_cannot_be_compared(
    folders: dict[str, Path], change: Callable[[Event], Event | None], words: str
) -> None:
    """No number is printed; the reason is, and the exit code says that something is wrong."""
    edit(folders["governor"], change)

    done = CliRunner().invoke(eerl, ["compare", str(folders["controller"]), str(folders["governor"])])

    assert done.exit_code == 1
    assert words in done.output and "%" not in done.output


def test_runs_of_one_name(runs: dict[str, Run], tmp_path: Path) -> None:
    """Folders named alike, of two submit directories, are told apart by their paths."""
    folders = [
        write_run(tmp_path / name / "eerl-7", runs[name], policy)
        for name, policy in (("controller", "paper"), ("governor", "governor"))
    ]

    document = compare(folders)

    assert [item["run"] for item in document["runs"]] == [str(folder) for folder in folders]


def test_a_folder_whose_name_breaks_lines(
    runs: dict[str, Run], folders: dict[str, Path], tmp_path: Path
) -> None:
    """A run's name is on one line of its table, and a ledger is called by its folder."""
    odd = write_run(tmp_path / "my\nrun", runs["controller"], "paper")

    document = compare([odd / "ledger.jsonl", folders["governor"]])

    assert document["runs"][0]["run"] == "my run"


def test_a_simulation_faster_than_its_machine_is_exact(folders: dict[str, Path]) -> None:
    """A run whose updates took a fraction of a second is named, with the time scale that keeps 1 %; no other is."""

    def fast(event: Event) -> Event:
        return event | {"time_scale": 1000.0} if event["ev"] == "start" else event

    usual_s = float(load_run(folders["governor"]).frame["elapsed_s"].median())
    assert compare([folders["controller"], folders["governor"]])["notes"] == []
    edit(folders["governor"], fast)

    notes = compare([folders["controller"], folders["governor"]])["notes"]

    (note,) = [note for note in notes if "--time-scale" in note]
    assert note.startswith("governor: simulated 1000 times as fast as real")
    cure = int(note.partition("--time-scale ")[2].split()[0])
    assert usual_s / (cure + 1) < LEAST_REAL_S <= usual_s / cure


def test_no_governor_run(folders: dict[str, Path]) -> None:
    """A controller run alone has nothing to be compared with."""
    with pytest.raises(EerlError, match="no governor run"):
        compare([folders["controller"]])


def test_the_same_run_twice(folders: dict[str, Path]) -> None:
    """A run is not its own reference, however its folder is spelt."""
    with pytest.raises(EerlError, match="given twice"):
        compare([folders["governor"], folders["governor"] / "." / "../governor"])


def test_a_copy_of_a_run(folders: dict[str, Path], tmp_path: Path) -> None:
    """Nor are a run and its copy two runs, whose agreement would tell how little noise there is."""
    copy = shutil.copytree(folders["governor"], tmp_path / "copy")

    with pytest.raises(EerlError, match="the same run, given twice"):
        compare([folders["controller"], folders["governor"], copy])


def test_a_run_that_is_still_going(folders: dict[str, Path], tmp_path: Path) -> None:
    """A ledger without an end whose session answers is of a run in progress."""
    folder = edit(folders["governor"], lambda event: None if event["ev"] == "end" else event)
    address = str(tmp_path / "door")
    (folder / "control.json").write_text(json.dumps({"socket": address, "node": "elsewhere"}))

    with pytest.raises(EerlError, match="still going"):
        compare([folders["controller"], folder])


def test_a_run_whose_node_died(folders: dict[str, Path], tmp_path: Path) -> None:
    """A session of another node that has written nothing for minutes is gone, whatever its note says."""
    folder = edit(folders["governor"], lambda event: None if event["ev"] == "end" else event)
    address = str(tmp_path / "door")
    (folder / "control.json").write_text(json.dumps({"socket": address, "node": "elsewhere"}))
    long_ago = time.time() - 600.0
    os.utime(folder / "ledger.jsonl", (long_ago, long_ago))

    document = compare([folders["controller"], folder])

    assert document["common_updates"] == UPDATES


def test_a_run_that_was_killed(folders: dict[str, Path]) -> None:
    """A ledger without an end counts up to its last whole update, and the page says so."""
    path = edit(folders["governor"], lambda event: None if event["ev"] == "end" else event) / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-200])
    here = socket.gethostname()
    path.with_name("control.json").write_text(json.dumps({"socket": "/nonexistent/door", "node": here}))

    document = compare([folders["controller"], folders["governor"]])

    assert document["common_updates"] == UPDATES - 1
    assert any("was killed" in note for note in document["notes"])


def test_a_damaged_ledger(folders: dict[str, Path]) -> None:
    """Damage in the middle: what lies before it counts, the line is named."""
    path = folders["governor"] / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[60] = '{"ev": "upd\x00\n'
    path.write_text("".join(lines))

    document = compare([folders["controller"], folders["governor"]])

    assert document["common_updates"] < 60
    assert any("ledger.jsonl:61" in note for note in document["notes"])


def test_an_empty_ledger(folders: dict[str, Path]) -> None:
    """Nothing was ever written."""
    (folders["governor"] / "ledger.jsonl").write_text("")

    with pytest.raises(LedgerError, match="empty"):
        compare([folders["controller"], folders["governor"]])


@pytest.mark.parametrize(
    ("version", "words"), [(99, "newer than this eerl"), ({}, "no number"), ("2", "no number")]
)
def test_a_newer_ledger(folders: dict[str, Path], version: Any, words: str) -> None:
    """A schema that this eerl does not know is refused by name."""
    edit(
        folders["governor"],
        lambda event: event | {"schema_version": version} if event["ev"] == "start" else event,
    )

    with pytest.raises(LedgerError, match=words):
        compare([folders["controller"], folders["governor"]])


def test_an_unknown_mode(folders: dict[str, Path]) -> None:
    """A mode of a later eerl is compared like the plainest, as the report does."""

    def later(event: Event) -> Event:
        return event | {"mode": "pipelined"} if event["ev"] in ("controller", "run") else event

    document = compare([edit(folder, later) for folder in folders.values()])

    assert document["predictor"] is not None and document["normalized"]


def test_other_versions_are_said(folders: dict[str, Path]) -> None:
    """Runs of two eerl versions are compared, and the page says that they are."""
    edit(
        folders["governor"],
        lambda event: event | {"versions": {"eerl": "0.0.9"}} if event["ev"] == "start" else event,
    )

    document = compare([folders["controller"], folders["governor"]])

    assert any("eerl versions: 0.1.0, 0.0.9" in note for note in document["notes"])


def test_a_step_of_the_clock(folders: dict[str, Path]) -> None:
    """An update across which time was set is left out of both runs; the rest is compared."""

    def step(event: Event) -> Event:
        if event["ev"] == "update" and event["index"] == 50:
            event["record"]["elapsed_s"] += 3600.0
        return event

    whole = row(compare([folders["controller"], folders["governor"]]), "paired", "whole run")
    edit(folders["governor"], step)

    document = compare([folders["controller"], folders["governor"]])

    assert any("times do not add up" in note for note in document["notes"])
    found = row(document, "paired", "whole run")
    assert found["energy_saving_percent"] == pytest.approx(whole["energy_saving_percent"], abs=0.3)
    assert found["throughput_change_percent"] == pytest.approx(whole["throughput_change_percent"], abs=0.3)


def test_a_stretch_that_was_hardly_measured(folders: dict[str, Path]) -> None:
    """Where most updates of a stretch lack energy there is a reason instead of a number; other rows stay."""

    def gap(event: Event) -> Event:
        if event["ev"] == "update" and event["index"] < 30:
            event["record"]["energy_j"] = None
        return event

    document = compare([folders["controller"], edit(folders["governor"], gap)])

    before = row(document, "paired", "before lock")
    assert "energy_saving_percent" not in before and "only" in before["reason"]
    assert "energy_saving_percent" in row(document, "paired", "after lock")
    assert before["reason"] in render_text(document)


def test_a_controller_that_never_locked(folders: dict[str, Path]) -> None:
    """Without a lock there is the whole run, and no before and after."""

    def early(event: Event) -> Event | None:
        return None if event["ev"] == "update" and event["index"] >= 40 else event

    document = compare([edit(folders["controller"], early), folders["governor"]])

    assert [item["interval"] for item in document["paired"]] == ["whole run"]
    assert document["runs"][0]["locked_at_update"] is None


def test_a_controller_that_lowered_nothing(tmp_path: Path) -> None:
    """A run that kept to the governor is a governor run, whatever its policy, and the page says why."""
    world = quiet(preset("qwen-inflight").world)
    source = Controller(Settings(policy="paper"), world.mode, world.grid)
    folders = [
        write_run(tmp_path / "c", simulate(world, source, 40, 1), "paper"),
        write_run(tmp_path / "g", simulate(world, FixedPlan(), 40, 2), "governor"),
    ]

    document = compare(folders)

    assert document["paired"] == []
    assert any("no clock was ever lowered" in note for note in document["notes"])
