"""Writing the files: atomic, only over our own, light where there is nothing to report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report.ledgers import RunSpec, write_run
from report.reading import strict

from eerl_launch.errors import OptionError
from eerl_launch.report import ReportError, write_report

SMALL = RunSpec(updates=3)
NAMES = {
    "report.html",
    "summary.html",
    "report.json",
    "report.txt",
    "updates.csv",
    "phases.csv",
    "gpus.csv",
}


def names(folder: Path) -> set[str]:
    """The files in a run folder beside its ledger."""
    return {path.name for path in folder.iterdir()} - {"ledger.jsonl"}


def test_all_files_are_there_and_nothing_else(tmp_path: Path) -> None:
    """The run folder has the six files of the contract and the summary, with no temporary file left."""
    paths = write_report(write_run(tmp_path, SMALL))

    assert names(tmp_path) == NAMES
    assert {path.name for path in paths.written()} == NAMES
    assert paths.notes == []
    assert paths.complete


def test_json_is_versioned_and_ends_its_keys_in_units(tmp_path: Path) -> None:
    """report.json has a schema version, and every measured quantity names its unit."""
    document = strict(write_report(write_run(tmp_path, SMALL), ["json"]).json)

    assert (document["schema"], document["schema_version"]) == ("eerl.report", 1)
    quantities = (
        "energy",
        "elapsed",
        "power",
        "time",
        "latency",
        "saving",
        "throughput",
        "coverage",
        "saved",
    )
    units = (
        "_j",
        "_s",
        "_kwh",
        "_w",
        "_percent",
        "_fraction",
        "_mhz",
        "_token",
        "_iso",
        "_used",
        "_price",
        "_g",
    )
    words = {
        "energy_method",
        "energy_reason",
        "energy_scope",
        "energy_scopes",
        "phase_energy_j",
        "time_scale",
    }

    def check(value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key.startswith(quantities) and not isinstance(inner, (dict, list)):
                    assert key.endswith(units) or key in words, key
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)

    check(document)


def test_formats_follow_the_call_then_the_policy(tmp_path: Path) -> None:
    """Formats given win over those of the policy; an unknown one is an error naming the known."""
    spec = RunSpec(updates=3)
    spec.policy["report"]["formats"] = ["json"]
    folder = write_run(tmp_path, spec)

    assert names(folder) == set()
    write_report(folder)
    assert names(folder) == {"report.json"}
    write_report(folder, ["txt"])
    assert names(folder) == {"report.json", "report.txt"}
    with pytest.raises(OptionError, match="html, json, csv, txt, pdf, png"):
        write_report(folder, ["docx"])


def test_made_again_it_replaces_its_own_files(tmp_path: Path) -> None:
    """eerl report on a folder that has a report writes the same names again."""
    folder = write_run(tmp_path, SMALL)
    write_report(folder)
    (folder / "report.txt").write_text((folder / "report.txt").read_text() + "old\n")

    paths = write_report(folder)

    assert names(folder) == NAMES
    assert "old" not in paths.txt.read_text()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """A report.txt, a directory or a link that is not ours stays as it is; ours goes beside it and says so."""
    folder = write_run(tmp_path, SMALL)
    (folder / "report.txt").write_text("my notes\n")
    (folder / "updates.csv").mkdir()
    target = tmp_path / "elsewhere"
    target.write_text("precious\n")
    (folder / "report.json").symlink_to(target)

    paths = write_report(folder)

    assert (folder / "report.txt").read_text() == "my notes\n"
    assert target.read_text() == "precious\n"
    assert (folder / "report.json").is_symlink()
    assert (paths.txt.name, paths.updates_csv.name, paths.json.name) == (
        "report-1.txt",
        "updates-1.csv",
        "report-1.json",
    )
    assert len(paths.notes) == 3
    assert write_report(folder).txt.name == "report-1.txt"


def test_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    """No file at all is a ReportError that names file and cause; another folder can be given."""
    folder = write_run(tmp_path / "run", SMALL)
    blocker = tmp_path / "blocker"
    blocker.write_text("")

    with pytest.raises(ReportError, match=r"report\.json: Not a directory"):
        write_report(folder, out=blocker)

    other = tmp_path / "other"
    other.mkdir()
    assert write_report(folder, ["txt"], out=other).txt == other / "report.txt"
    assert names(folder) == set()


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """The file that was there is replaced by a rename: an open reader keeps the old one whole."""
    folder = write_run(tmp_path, SMALL)
    path = write_report(folder, ["json"]).json
    with path.open() as reader:
        before = os.fstat(reader.fileno()).st_ino

        write_report(folder, ["json"])

        assert path.stat().st_ino != before
        json.load(reader)


def test_light_runs_load_nothing_heavy(tmp_path: Path) -> None:
    """`eerl-run -- true` ends in a report too: without updates neither numpy nor the controller is imported."""
    folder = write_run(tmp_path, RunSpec(updates=0))
    code = (
        "import sys; from pathlib import Path; from eerl_launch.report import write_report; "
        f"write_report(Path({str(folder)!r})); "
        "print(sorted({'numpy', 'pandas', 'matplotlib', 'scipy', 'eerl_controller', 'rich'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
    assert names(folder) == NAMES


def test_a_folder_for_the_report_is_made(tmp_path: Path) -> None:
    """A place of its own for a report need not be there before; one that cannot be made is one message."""
    folder = write_run(tmp_path / "run", RunSpec(updates=12))

    paths = write_report(folder, ["txt"], out=tmp_path / "reports" / "7")

    assert paths.txt == tmp_path / "reports" / "7" / "report.txt" and paths.txt.exists()
    with pytest.raises(ReportError, match="Not a directory"):
        write_report(folder, ["txt"], out=folder / "ledger.jsonl" / "within")
