"""The page: one file, nothing from the network, nothing from the trainer gets into it unescaped.

What a browser makes of it is in test_browser.py.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.ledgers import RunSpec, write_run

from eerl_launch.report import write_report

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}</style><img src=x onerror=alert(1)>\u202eturned"


class Reader(HTMLParser):
    """Collects tags with their attributes and the text outside style, and checks that tags nest."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text with single blanks."""
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Reader:
    """The page as a browser takes it apart."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an ordinary run."""
    html = write_report(write_run(tmp_path_factory.mktemp("page")), ["html"]).html
    assert html is not None
    return html


def test_page_asks_nothing_of_the_network(page: Path) -> None:
    """No address, no reference to another file, pictures inside: it opens on a machine without internet."""
    text = page.read_text(encoding="utf-8")

    for tag, attributes in read(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert not {"src", "xlink:href", "action", "data"} & set(attributes)
        assert (attributes.get("href") or "data:image/png;base64,").startswith("data:image/png;base64,")
    assert not re.search(r"(?<!\")https?://|url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address


def test_only_the_page_s_own_script_may_run(page: Path) -> None:
    """The policy lets in the one script by its hash; its data are inert JSON."""
    reader = read(page)

    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    data, script = reader.scripts
    assert policy is not None and policy.startswith("default-src 'none';")
    allowed = re.search(r"script-src 'sha256-([^']+)';", policy)
    assert allowed is not None
    assert allowed[1] == b64encode(sha256(script.encode()).digest()).decode()
    assert set(json.loads(data)["series"]) == {"clocks", "energy", "throughput", "gpus"}


def test_every_plot_has_its_table(page: Path, tmp_path: Path) -> None:
    """Behind each figure is a table of its values: of each update, or of means where there are too many rows."""
    long = write_report(write_run(tmp_path, RunSpec(updates=250)), ["html"]).html

    for path, rows, words in ((page, 60, "updates.csv has more"), (long, 84, "the mean of up to 3 updates")):
        text = path.read_text(encoding="utf-8")
        figures = text.split("<h2>Over the run</h2>")[1].split("</section>")[0].split("<h3>")[1:]
        assert len(figures) == 5
        assert all("Table of this plot" in figure and figure.count("<tr>") >= 2 for figure in figures)
        assert figures[1].count("<tr>") == rows + 1
        assert words in figures[1]


def test_page_shows_the_figures_and_the_sections(page: Path) -> None:
    """Clocks with states, energy per token, throughput and power by phase are drawn; every section is there."""
    reader = read(page)

    labels = [a["aria-label"] for tag, a in reader.tags if tag == "svg" and a["class"] == "chart"]
    assert labels == [
        "clocks over updates",
        "Energy per valid training token",
        "Throughput",
        "power by phase, governor",
        "power by phase, after the lock",
        "mean power of each GPU",
        "power of each GPU against the median of its pool in the same updates",
    ]
    for heading in (
        "Result",
        "Can I trust this number?",
        "Phases",
        "Pools",
        "GPUs and nodes that differ",
        "Nodes",
        "GPUs",
        "Updates",
        "Clocks at the end",
        "Sums",
    ):
        assert heading in reader.text
    for state in ("calibration", "search", "locked"):
        assert state in reader.text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Markup in any name or message of the ledger is shown as text in the page, and never runs."""

    def poison(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "start":
            hostile = dict.fromkeys(
                ("job_name", "user", "command", "run_id", "simulated", "policy_file"), HOSTILE
            )
            return iter([{**event, **hostile}])
        if event["ev"] == "phase" and event["phase"] == "reward":
            return iter([{**event, "phase": HOSTILE}])
        if event["ev"] == "update":
            return iter([{**event, "state": HOSTILE, "unusable_reason": HOSTILE}])
        if event["ev"] == "end":
            trouble = {
                "ev": "event",
                "t_s": 5.0,
                "kind": HOSTILE,
                "node": HOSTILE,
                "uuid": HOSTILE,
                "text": HOSTILE,
            }
            return iter([trouble, {**event, "resets": {HOSTILE: HOSTILE}}])
        return None

    paths = write_report(write_run(tmp_path, RunSpec(updates=20, edit=poison)))

    for path, scripts in ((paths.html, 2), (paths.summary_html, 0)):
        reader = read(path)
        assert "\u202e" not in reader.text and "?turned" in reader.text
        assert [tag for tag, _ in reader.tags if tag in ("script", "img")] == ["script"] * scripts
        assert len(reader.scripts) == scripts
        assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
        assert "<script>alert(1)</script>" in reader.text
        assert "{{7*7}}" in reader.text
        assert "49</style>" not in reader.text


def test_terminal_text_carries_no_control_characters(tmp_path: Path) -> None:
    """Escape sequences in names cannot reach the terminal through report.txt or the summary."""
    spec = RunSpec(updates=3, start={"job_name": "a\x1b[2Jb\x07", "simulated": "h100\x1b]0;x\x07"})
    paths = write_report(write_run(tmp_path, spec), ["txt"])

    for text in (paths.txt.read_text(), paths.summary):
        assert all(letter == "\n" or letter.isprintable() for letter in text)


def test_cells_that_a_spreadsheet_would_run_are_defused(tmp_path: Path) -> None:
    """A phase named like a formula is written as text into the CSV files."""

    def rename(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "phase" and event["phase"] == "reward":
            return iter([{**event, "phase": "=cmd|' /C calc'!A0"}])
        return None

    paths = write_report(write_run(tmp_path, RunSpec(updates=3, edit=rename)), ["csv"])

    assert not re.search(r'(^|,)"?[=+@]', paths.phases_csv.read_text(), re.MULTILINE)


def test_simulated_runs_say_so_at_the_head_of_everything(tmp_path: Path) -> None:
    """Page, text, summary and JSON of a simulated run say simulated before any number."""
    paths = write_report(write_run(tmp_path, RunSpec(updates=3, simulated="h100:2x2")))

    page = read(paths.html).text
    assert page.index("Simulated GPUs (h100:2x2)") < page.index("kWh")
    assert "SIMULATED" in paths.txt.read_text().splitlines()[1]
    assert paths.summary.startswith("SIMULATED")
    assert '"simulated": "h100:2x2"' in "".join(paths.json.read_text().splitlines()[:5])


def test_text_fits_a_terminal(tmp_path: Path) -> None:
    """No line of report.txt is wider than 120 columns, prose not wider than 80."""
    paths = write_report(write_run(tmp_path, RunSpec(nodes=4, gpus_per_node=8, updates=20)), ["txt"])

    lines = paths.txt.read_text().splitlines()
    assert max(map(len, lines)) <= 120
    prose = lines[lines.index("Can I trust this number?") :]
    assert max(map(len, prose)) <= 80


@pytest.mark.parametrize(
    ("mode", "whose"), [("async_drained", "a phase's own pool"), ("colocated_sync", "the whole allocation")]
)
def test_whose_power_a_phase_has_is_said(tmp_path: Path, mode: str, whose: str) -> None:
    """Where pools work at the same time a phase's watts are of its own pool; page and text say so."""

    def in_mode(event: dict) -> Iterator[dict] | None:
        return iter([{**event, "mode": mode} if "mode" in event else event])

    paths = write_report(write_run(tmp_path, RunSpec(updates=12, edit=in_mode)))

    for text in (read(paths.html).text, " ".join(paths.txt.read_text().split())):
        assert f"W is the mean over {whose} while the phase ran" in text
