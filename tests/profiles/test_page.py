"""The command's files: one page without a network, CSV with a unit in every header, names that stay text."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from profiles.small_ledgers import GPUS, end, lengths, phase, start, update
from report.ledgers import write_ledger

from eerl_launch.tools import eerl

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}</style><img src=x onerror=alert(1)>\u202eturned"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tags(HTMLParser):
    """All tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def run(folder: Path, name: str = "reward", run_id: str | None = None, **about: str) -> Path:
    """Three updates with everything that the page can show."""
    events = start(**about)
    events[0]["run_id"] = run_id
    for index in range(3):
        at_s = 20.0 * index
        tail = dict(zip(GPUS, (0.0, 1.0, 2.0, 3.0), strict=True))
        events += [
            phase("generation", at_s, 10, [400] * 4, gpu_idle_tail_s=tail),
            phase("generation/prefill", at_s, 2, [450] * 4),
            phase(name, at_s + 10, 1, [100] * 4),
            phase("training", at_s + 11, 9, [600] * 4),
            lengths(index, 200.0, 40, p50=180, p90=300, max=400),
            update(
                index,
                at_s,
                20,
                38_000,
                {"generated_tokens": 8000, "valid_tokens": 7000, "longest_generated_tokens": 400},
                responses=40,
            ),
        ]
    return write_ledger(folder, [*events, end(60)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with page.html, the CSV files and out.json of two runs."""
    base = tmp_path_factory.mktemp("made")
    runs = [str(run(base / "a", model="small")), str(run(base / "b", model="large"))]
    files = ["--csv", str(base / "csv"), "--html", str(base / "page.html")]
    result = CliRunner().invoke(eerl, ["profile", *runs, "--json", *files])
    assert result.exit_code == 0, result.output
    (base / "out.json").write_text(result.stdout)
    return base


def test_the_page_is_one_file_that_needs_no_network(made: Path) -> None:
    """No script, no address, no reference to another file; every picture has a name for those who cannot see it."""
    text = (made / "page.html").read_text()

    tags = Tags(text).found
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    assert not any({"src", "href"} & set(attributes) for _, attributes in tags)
    assert not re.search(r"https?://|url\(|@import", text)
    names = [attributes["aria-label"] for tag, attributes in tags if tag == "svg" and "role" in attributes]
    assert names == [
        "phase signature of a",
        "phase signature of b",
        "J per valid training token, by phase",
        "GPU seconds per million valid tokens, by phase",
        "response lengths of a",
        "idle at the end of generation, a",
        "response lengths of b",
        "idle at the end of generation, b",
    ]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Markup in phases, models and nodes is shown as text and never runs; in a terminal nothing is obeyed."""
    folder = run(tmp_path / "a", name=HOSTILE + "\x1b[2J", model=HOSTILE)
    page = tmp_path / "page.html"

    result = CliRunner().invoke(eerl, ["profile", str(folder), "--html", str(page), "--csv", str(tmp_path)])

    assert result.exit_code == 0
    assert not {"script", "img"} & {tag for tag, _ in Tags(page.read_text()).found}
    assert "\u202e" not in page.read_text() and "?turned" in page.read_text()
    assert all(letter == "\n" or letter.isprintable() for letter in result.stdout)


def test_json_is_strict_and_every_number_has_its_unit(made: Path) -> None:
    """No NaN; a row of the signature names the unit of whatever has one."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    document = json.loads((made / "out.json").read_text(), parse_constant=refuse)

    assert (document["schema"], document["schema_version"]) == ("eerl.profile", 1)
    units = ("_s", "_j", "_w", "_mhz", "_fraction", "_per_gpu", "_token", "_tokens", "_updates")
    plain = {"gpus", "updates", "runs", "runs_without_end", "estimated_runs", "updates_with_tokens"}
    for row in document["runs"][0]["signature"]:
        for key, value in row.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                assert key in plain or key.endswith(units), key


def test_csv_files_hold_the_numbers_of_the_json(made: Path) -> None:
    """A row per run and phase, run, GPU and node, as many cells as the header."""
    tables = {}
    for path in (made / "csv").iterdir():
        rows = list(csv.reader(path.open(newline="")))
        assert {len(row) for row in rows} == {len(rows[0])}
        tables[path.name] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    assert {name: len(rows) for name, rows in tables.items()} == {
        "profile_phases.csv": 2 * 6,
        "profile_runs.csv": 2,
        "profile_gpus.csv": 2 * 4,
        "profile_nodes.csv": 2 * 2,
    }
    assert [row["axis_model"] for row in tables["profile_runs.csv"]] == ["small", "large"]
    assert float(tables["profile_runs.csv"][0]["generation_waiting_fraction"]) == 0.15
    (row,) = [r for r in tables["profile_phases.csv"] if (r["run"], r["phase"]) == ("a", "training")]
    assert float(row["mean_energy_j"]) == 9 * 4 * 600


def test_a_place_that_cannot_be_written_is_one_message(made: Path, tmp_path: Path) -> None:
    """The text is printed, then the option and the cause, exit 2."""
    result = CliRunner().invoke(
        eerl, ["profile", str(made / "a"), "--html", str(tmp_path / "no" / "page.html")]
    )

    assert result.exit_code == 2
    assert "page.html: cannot be written (No such file or directory)" in result.stderr


def test_copies_of_a_run_count_once(tmp_path: Path) -> None:
    """Of a run and copies of its ledger the whole one counts, with its label; text and page name the others."""
    whole = run(tmp_path / "b", run_id="one")
    cut, same = tmp_path / "a" / "ledger.jsonl", tmp_path / "c" / "ledger.jsonl"
    for path in (cut, same):
        path.parent.mkdir()
        path.write_text((whole / "ledger.jsonl").read_text())
    cut.write_text("\n".join(cut.read_text().splitlines()[:-3]) + "\n")
    other, page = run(tmp_path / "d", run_id="other"), tmp_path / "page.html"
    folders = [str(folder) for folder in (cut.parent, whole, same.parent, other)]

    result = CliRunner().invoke(
        eerl, ["profile", *folders, "--json", "--html", str(page), "--label", "b:task=sums"]
    )

    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [one["run"] for one in document["runs"]] == ["b", "d"]
    assert document["runs"][0]["axes"]["task"]["value"] == "sums"
    told = [f"counted once: {folder}: the same run as {whole}" for folder in (cut.parent, same.parent)]
    assert result.stderr.splitlines() == [f"eerl: {line}" for line in told]
    assert all(line[1:] in page.read_text() for line in told)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to open the page in")
def test_a_browser_shows_the_page_without_a_complaint(made: Path, tmp_path: Path) -> None:
    """Headless Chromium lays it out, prints nothing on its console, and the screenshot is kept as an artefact."""
    assert CHROMIUM is not None
    picture = tmp_path / "profile.png"
    argv = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    argv += [f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1300,2400", f"--screenshot={picture}"]

    done = subprocess.run(
        [*argv, (made / "page.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )

    assert picture.stat().st_size > 20_000, done.stderr
    assert "CONSOLE" not in done.stderr
