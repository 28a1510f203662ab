"""Ledgers in any state: what they hold is shown, what is wrong is said, and nothing is invented or thrown."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from evidence.test_damage import JUNK, places
from profiles.small_ledgers import end, phase, start, update
from report.ledgers import RunSpec, run_events, write_ledger, write_run

from eerl_launch.errors import EerlError, LedgerError
from eerl_launch.ledger import FILE_NAME
from eerl_launch.profiles.document import profile
from eerl_launch.profiles.page import render_page
from eerl_launch.profiles.spreadsheets import tables
from eerl_launch.profiles.text import render_text
from eerl_launch.tools import eerl

SMALL = RunSpec(updates=8, calibration=3, lock_from=6, warm_up=0, validation_every=4)


def show(*folders: Path) -> dict[str, Any]:
    """The profiles through every form; the document, which must be strict JSON."""
    found = profile(folders)
    assert "nan" not in render_text(found.document)
    assert "nan" not in render_page(found)
    tables(found.document)
    return json.loads(json.dumps(found.document, allow_nan=False))


def command(*arguments: str) -> Result:
    """``eerl profile`` with these arguments."""
    return CliRunner().invoke(eerl, ["profile", *arguments])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sound run."""
    return write_run(tmp_path_factory.mktemp("whole"), SMALL)


def test_a_ledger_cut_anywhere_shows_what_it_has(whole: Path, tmp_path: Path) -> None:
    """Cut at any byte: the whole updates up to there, with a word on it; before the first of them one message."""
    data = (whole / FILE_NAME).read_bytes()
    seen = set()
    for cut in range(0, len(data), len(data) // 25):
        (tmp_path / FILE_NAME).write_bytes(data[:cut])
        try:
            (run,) = show(tmp_path)["runs"]
        except LedgerError as error:
            assert "empty" in str(error) or "no whole update" in str(error)
            seen.add("refused")
        else:
            assert any("has no end" in problem for problem in run["problems"])
            seen.add(run["updates"])
    assert {"refused", 1, 7} <= seen


def test_damage_in_the_middle_is_said_and_what_was_before_is_shown(whole: Path, tmp_path: Path) -> None:
    """A line that is no JSON ends the reading there."""
    lines = (whole / FILE_NAME).read_bytes().splitlines(keepends=True)
    lines[len(lines) // 2] = b"\x00\x00 garbage\n"
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines))

    (run,) = show(tmp_path)["runs"]

    assert 1 <= run["updates"] < 8
    assert any("damaged" in problem for problem in run["problems"])


def test_one_bad_ledger_does_not_take_the_others_with_it(whole: Path, tmp_path: Path) -> None:
    """Missing, empty and newer ledgers are named, the sound run is shown, and the exit code tells."""
    empty, newer = tmp_path / "empty", tmp_path / "newer"
    for folder, text in ((empty, ""), (newer, '{"ev":"start","t_s":0,"schema_version":99}\n')):
        folder.mkdir()
        (folder / FILE_NAME).write_text(text)

    result = command(str(whole), str(empty), str(newer), str(tmp_path / "none"))

    assert result.exit_code == 1
    assert "generation" in result.stdout
    for words in ("is empty", "schema_version 99 is newer", "No such file"):
        assert words in result.stderr
    assert "Traceback" not in result.output


def test_only_bad_ledgers_end_in_their_reasons(tmp_path: Path) -> None:
    """Nothing to show: every reason, no table, exit 1."""
    result = command(str(tmp_path / "none"))

    assert (result.exit_code, result.stdout) == (1, "")
    assert "give the run folder that holds ledger.jsonl" in result.stderr


def test_a_run_without_tokens_has_time_and_energy_and_no_energy_per_token(tmp_path: Path) -> None:
    """No counts: per-token values are null everywhere and a note says why."""
    (run,) = show(write_run(tmp_path, RunSpec(updates=5, counts=False)))["runs"]

    assert all(row["energy_j_per_valid_token"] is None for row in run["signature"])
    assert run["signature"][0]["mean_energy_j"] > 0
    assert any("no update has valid training tokens" in problem for problem in run["problems"])


def test_a_run_that_goes_on_is_shown_so_far(whole: Path, tmp_path: Path) -> None:
    """A ledger without its end beside the note of a session elsewhere: the profile so far, and a word on it."""
    lines = (whole / FILE_NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines[:-1]))
    (tmp_path / "control.json").write_text(
        json.dumps({"socket": str(tmp_path / "door"), "node": "elsewhere"})
    )

    (run,) = show(tmp_path)["runs"]

    assert run["updates"] == 8
    assert any("still going" in problem for problem in run["problems"])


def test_a_clock_that_was_set_back_leaves_its_update_out(tmp_path: Path) -> None:
    """An update whose begin, end and duration do not agree is not counted, and said to be left out."""
    step = [
        *start(),
        phase("training", 0, 10, [500] * 4),
        update(0, 0, 10, 20_000, {"valid_tokens": 100}),
        {**update(1, 10, 10, 20_000, {"valid_tokens": 100}), "end_s": 3620.0},
        end(30),
    ]

    (run,) = show(write_ledger(tmp_path, step))["runs"]

    assert (run["updates"], run["updates_in_ledger"]) == (1, 2)
    assert any("times do not add up" in problem for problem in run["problems"])


def test_numbers_that_are_none_are_unknown(tmp_path: Path) -> None:
    """NaN and infinities of a broken writer, as bare JSON words: unknown, and the rest stands."""
    folder = write_run(tmp_path, SMALL)
    lines = (folder / FILE_NAME).read_text().splitlines()
    events = [json.loads(line) for line in lines]
    target = next(event for event in events if event["ev"] == "phase" and event["phase"] == "training")
    target["energy_j"], target["busy_fraction"] = float("nan"), float("inf")
    (folder / FILE_NAME).write_text("\n".join(json.dumps(event) for event in events) + "\n")

    (run,) = show(folder)["runs"]

    (row,) = [row for row in run["signature"] if row["phase"] == "training"]
    assert row["energy_reason"].startswith("not known in 1 of 8 updates")
    assert row["mean_energy_j"] > 0


def test_anything_anywhere_gives_strict_json_or_one_message(tmp_path: Path) -> None:
    """Junk in the place of any value of any line: a profile in every form, or an error of ours."""
    rng = random.Random(5)
    sound = list(run_events(SMALL))
    shown = 0
    for number in range(40):
        events = copy.deepcopy(sound)
        for _ in range(12):
            event = rng.choice(events)
            *path, last = rng.choice(places(event))
            within: Any = event
            for step in path:
                within = within[step]
            if last != "ev":
                within[last] = copy.deepcopy(rng.choice(JUNK))
        try:
            show(write_ledger(tmp_path / str(number), iter(events)))
            shown += 1
        except EerlError as error:
            assert str(error)
    assert shown > 20
