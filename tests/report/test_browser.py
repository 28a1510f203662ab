"""The page in a real browser: no errors, no requests, zoom, values under pointer and keyboard, paper and pictures.

Pictures of what was seen are kept in .build/screens.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.ledgers import RunSpec, write_run

from eerl_launch.report import ReportError, write_report
from eerl_launch.report.browser import COMMANDS, Browser, BrowserError, Message

SCREENS = Path(__file__).parents[2] / ".build" / "screens"
LABELS = '[...document.querySelectorAll("svg[data-chart=energy] .axes text")].map((one) => one.textContent)'
TIP = 'document.querySelector(".tip").hidden ? "" : document.querySelector(".tip").innerText'
ROWS = 'document.querySelectorAll("details[data-behind=energy] tbody tr").length'

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMMANDS)), reason="neither Chromium nor Chrome is installed"
)


class Reader:
    """A person with a browser: opens pages, points, types, and notes what the browser complains about."""

    def __init__(self) -> None:
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.browser = Browser(self._hear)

    def _hear(self, method: str, found: Message) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Log.entryAdded" or method == "Runtime.consoleAPICalled":
            self.trouble.append(json.dumps(found))
        elif method == "Runtime.exceptionThrown":
            self.trouble.append(json.dumps(found["exceptionDetails"]))

    def open(self, page: Path, width_px: int = 1240, *, dark: bool = False) -> None:
        """Open a page anew, at its first plot where it has one."""
        self.browser.open(page, width_px, 900, dark=dark)
        self.browser.evaluate('document.querySelector("#zoom")?.scrollIntoView()')

    def ask(self, expression: str) -> Any:
        """The value of an expression on the page."""
        return self.browser.evaluate(expression)

    def at(self, chart: str, across: float, down: float = 0.5) -> tuple[float, float]:
        """The window's pixel at these shares of a plot's drawing area."""
        self.ask(f'document.querySelector("svg[data-chart={chart}]").scrollIntoView({{block: "center"}})')
        box = self.ask(
            f"(({{x, y, width}}) => [x, y, width / 960])"
            f'(document.querySelector("svg[data-chart={chart}]").getBoundingClientRect())'
        )
        area = self.ask(f'document.querySelector("svg[data-chart={chart}]").dataset.area')
        left, right, top, bottom = map(float, area.split()[:4])
        return box[0] + box[2] * (left + across * (right - left)), box[1] + box[2] * (
            top + down * (bottom - top)
        )

    def mouse(self, kind: str, place: tuple[float, float], **more: Any) -> None:
        """One event of the mouse."""
        self.browser.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Press, move and let go."""
        self.mouse("mousePressed", begin, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", ((begin[0] + end[0]) / 2, end[1]), button="left", buttons=1)
        self.mouse("mouseMoved", end, button="left", buttons=1)
        self.mouse("mouseReleased", end, button="left", clickCount=1)

    def type(self, key: str) -> None:
        """Press a key."""
        codes = {"ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Tab": 9, "+": 187}
        more: dict[str, Any] = {"text": key} if key == "+" else {}
        self.browser.ask(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=codes[key], **more
        )
        self.browser.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes[key])

    def keep(self, name: str, *, whole: bool = False) -> None:
        """Keep a picture."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        (SCREENS / f"{name}.png").write_bytes(self.browser.png(whole=whole))


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """A browser for all tests; at the end nobody has had anything to complain about."""
    found = Reader()
    with found.browser:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 2 nodes of 4 GPUs, the last of which draws less than the others."""

    def slack(event: dict) -> Iterator[dict] | None:
        if event["ev"] != "update":
            return None
        energy_j = dict(event["gpu_energy_j"])
        *others, last = energy_j
        spared_j = 0.3 * energy_j[last]
        energy_j = {uuid: joules + spared_j / len(others) for uuid, joules in energy_j.items()}
        energy_j[last] -= spared_j / len(others) + spared_j
        return iter([{**event, "gpu_energy_j": energy_j}])

    spec = RunSpec(nodes=2, gpus_per_node=4, updates=120, edit=slack)
    path = write_run(tmp_path_factory.mktemp("browser"), spec)
    write_report(path, ["html"])
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    """Its report."""
    return folder / "report.html"


def test_pages_open_without_errors_and_without_requests(reader: Reader, folder: Path) -> None:
    """Wide, narrow, light, dark: nothing on the console, nothing asked for but the file itself, no sideways move."""
    reader.trouble.clear()
    for name, width_px, dark in (
        ("report", 1240, False),
        ("report", 390, True),
        ("summary", 900, True),
        ("summary", 390, False),
    ):
        reader.requests.clear()

        reader.open(folder / f"{name}.html", width_px, dark=dark)

        reader.keep(f"{name}-{width_px}{'-dark' if dark else ''}", whole=True)
        asked = [url for url in reader.requests if not url.startswith("data:")]
        assert asked == [(folder / f"{name}.html").as_uri()]
        assert reader.ask("document.documentElement.scrollWidth") <= width_px
    assert reader.trouble == []


def test_nothing_but_the_page_s_script_runs(reader: Reader, page: Path) -> None:
    """The browser refuses any other script, an image from elsewhere, and a form, as the page tells it to."""
    reader.open(page)

    reader.ask(
        'document.body.append(Object.assign(document.createElement("script"), {textContent: "window.bad = 1"}))'
    )
    reader.ask('document.body.append(Object.assign(new Image(), {src: "http://localhost:9/x.png"}))')

    assert reader.ask("window.bad === undefined")
    assert sum("Content Security Policy" in text for text in reader.trouble) >= 2
    reader.trouble.clear()


def test_a_drag_zooms_all_plots_and_the_tables(reader: Reader, page: Path) -> None:
    """Dragging over half of one plot shows that half in every plot and table; a double click shows all again."""
    reader.open(page)
    before = reader.ask(LABELS)
    reader.ask('document.querySelectorAll("details[data-behind]").forEach((one) => { one.open = true; })')

    reader.drag(reader.at("clocks", 0.5), reader.at("clocks", 0.75))

    reader.keep("zoomed")
    shown = reader.ask('document.getElementById("zoom-words").textContent')
    found = re.fullmatch(r"Shown: updates (\d+) to (\d+) of 1 to 120\.", shown)
    assert found is not None
    assert (int(found[1]), int(found[2])) == (pytest.approx(60, abs=2), pytest.approx(90, abs=2))
    after = reader.ask(LABELS)
    assert "120" in before and "120" not in after
    assert {"65", "70", "75", "80", "85"} <= set(after)
    assert reader.ask(ROWS) == int(found[2]) - int(found[1]) + 1
    moved = reader.ask(
        '[...document.querySelectorAll("[data-chart] .bands")].map((g) => g.getAttribute("transform"))'
    )
    assert len(moved) == 5 and len(set(moved)) == 1
    assert reader.ask("location.hash") == f"#updates={found[1]}-{found[2]}"

    reader.mouse("mousePressed", reader.at("energy", 0.5), button="left", clickCount=2)
    reader.mouse("mouseReleased", reader.at("energy", 0.5), button="left", clickCount=2)

    assert reader.ask(LABELS) == before
    assert reader.ask(ROWS) == 60  # means of two, as without the script
    assert reader.trouble == []


def test_the_wheel_zooms_with_ctrl_only_and_numbers_can_be_typed(reader: Reader, page: Path) -> None:
    """Ctrl and the wheel zoom about the pointer, the wheel alone scrolls; the two fields take a range."""
    reader.open(page)

    reader.mouse("mouseWheel", reader.at("energy", 0.5), deltaX=0, deltaY=-300, modifiers=2)
    zoomed = reader.ask(
        '[document.getElementById("zoom-from").value, document.getElementById("zoom-to").value]'
    )
    reader.ask(
        'document.getElementById("zoom-from").value = 30; document.getElementById("zoom-to").value = 40;'
        'document.getElementById("zoom-to").dispatchEvent(new Event("change"))'
    )

    assert 20 < int(zoomed[0]) < 60 < int(zoomed[1]) < 100
    typed = reader.ask(LABELS)
    assert {"30", "32", "34", "36", "38", "40"} <= set(typed)
    reader.mouse("mouseWheel", reader.at("energy", 0.5), deltaX=0, deltaY=-300)
    assert reader.ask(LABELS) == typed


def test_pointer_and_keyboard_tell_the_values_of_an_update(reader: Reader, page: Path) -> None:
    """What the pointer shows at an update and what the arrow keys walk to are the values of its table row."""
    reader.open(page)
    reader.mouse("mouseMoved", reader.at("energy", 59.5 / 120))
    pointed = reader.ask(TIP)
    reader.keep("pointer")
    reader.ask('document.querySelector("svg[data-chart=energy]").focus()')
    for _ in range(3):
        reader.type("ArrowRight")
    walked, spoken = reader.ask(TIP), reader.ask('document.querySelector(".spoken").textContent')
    reader.type("+")
    zoomed = reader.ask(LABELS)
    reader.type("Escape")

    data = json.loads(reader.ask('document.getElementById("eerl-data").textContent'))
    measured = data["series"]["energy"][0]["values"]
    assert pointed.startswith("update 60, locked") and f"measured: {measured[59]:.4g} J" in pointed
    assert walked.startswith("update 63, locked") and f"measured: {measured[62]:.4g} J" in walked
    assert spoken.startswith("update 63, locked; measured")
    assert "120" not in zoomed and "120" in reader.ask(LABELS)
    assert reader.ask(TIP) == ""


def test_the_map_names_the_gpu_that_differs(reader: Reader, page: Path) -> None:
    """Pointing at the last row tells its node, index, power and how far that is off; the page's text names it too."""
    reader.open(page)

    reader.mouse("mouseMoved", reader.at("gpu_difference", 0.5, 0.97))

    words = reader.ask(TIP).splitlines()
    assert words[0].startswith("node02 GPU 3, GPU-00000001-")
    assert re.fullmatch(r"−(29|30)\.\d % from the median of its pool", words[3])


def test_without_scripts_the_page_is_whole(reader: Reader, page: Path) -> None:
    """With scripts forbidden all plots and tables are there, and no control that would do nothing."""
    reader.browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        reader.open(page)
        reader.keep("no-script", whole=True)
        tree = reader.browser.ask("DOMSnapshot.captureSnapshot", computedStyles=["display"])
    finally:
        reader.browser.ask("Emulation.setScriptExecutionDisabled", value=False)

    strings, nodes = tree["strings"], tree["documents"][0]["nodes"]
    names = [strings[name] for name in nodes["nodeName"]]
    shown = {
        tree["documents"][0]["layout"]["nodeIndex"][i]
        for i in range(len(tree["documents"][0]["layout"]["nodeIndex"]))
    }
    assert sum(name == "image" for name in names) == 4
    assert not [place for place, name in enumerate(names) if name in ("INPUT", "BUTTON") and place in shown]


def test_pdf_and_png_are_made_and_are_recognised_as_ours(folder: Path) -> None:
    """Both pages as PDF and PNG: the summary on one sheet; made again they replace themselves, foreign ones stay."""
    (folder / "report.png").write_bytes(b"my holiday")

    for _ in range(2):
        paths = write_report(folder, ["pdf", "png"])

    assert [path.name for path in paths.written()] == [
        "report.pdf",
        "summary.pdf",
        "report-1.png",
        "summary.png",
    ]
    assert (folder / "report.png").read_bytes() == b"my holiday"
    for path, sheets in ((paths.pdf, range(3, 9)), (paths.summary_pdf, range(1, 2))):
        content = path.read_bytes()
        assert content.startswith(b"%PDF-") and b"%%EOF" in content[-64:]
        assert len(re.findall(rb"/Type /Page\b", content)) in sheets
    assert paths.summary_png.read_bytes()[16:20] == (1800).to_bytes(4, "big")
    shutil.copy(paths.summary_pdf, SCREENS)


def test_the_summary_stays_one_sheet_when_there_is_much_to_say(reader: Reader, tmp_path: Path) -> None:
    """A killed simulated run with lost nodes, failed resets, costs and long names is one page of A4 still."""

    def trouble(event: dict) -> Iterator[dict] | None:
        if event["ev"] == "end":
            lost = [
                {"ev": "event", "t_s": 9.0, "kind": kind, "node": "node01", "uuid": None, "text": kind * 9}
                for kind in ("gpu_lost", "sample_gap", "not_honoured", "markers_lost", "energy_estimated")
            ]
            resets = {f"node{place:02d}": f"reset of node {place} failed " * 9 for place in range(1, 9)}
            killed = {**event, "status": "killed", "signal": 9, "resets": resets}
            return iter([*lost, killed])
        if event["ev"] == "node" and event["node"] == "node05":
            return iter([{**event, "state": "lost", "reason": "its agent ended " * 20}])
        return None

    spec = RunSpec(
        nodes=8,
        gpus_per_node=2,
        updates=60,
        simulated="h100:8x2",
        edit=trouble,
        start={"command": "python " * 40},
    )
    spec.policy["report"].update(price_per_kwh=0.1, carbon_g_per_kwh=380.0)

    reader.open(write_report(write_run(tmp_path, spec), ["html"]).summary_html, 900)

    assert len(re.findall(rb"/Type /Page\b", reader.browser.pdf())) == 1
    reader.keep("summary-worst", whole=True)


def test_without_a_browser_the_message_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser: PDF alone is an error that says what helps; beside other formats it is a note."""
    monkeypatch.setenv("EERL_BROWSER", "no-such-browser")

    with pytest.raises(ReportError, match=r"EERL_BROWSER=no-such-browser.*open report\.html in any browser"):
        write_report(folder, ["pdf"])
    paths = write_report(folder, ["txt", "png"])

    assert [path.name for path in paths.written()] == ["report.txt"]
    assert "none was found" in paths.notes[0]


@pytest.mark.parametrize(
    "answers", ["sleep 1000", "printf 'not JSON\\0' >&4; sleep 1000", "printf '[]\\0' >&4; sleep 1000"]
)
def test_what_is_no_browser_is_started_once_and_not_left_running(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    """A browser that hangs, or a program that is none, costs the pictures and one wait, and is ended."""
    started = tmp_path / "started"
    false = tmp_path / "browser"
    false.write_text(f"#!/bin/sh\necho $$ >> {started}\n{answers}\n")
    false.chmod(0o755)
    monkeypatch.setenv("EERL_BROWSER", str(false))
    monkeypatch.setattr("eerl_launch.report.browser.PATIENCE_S", 2.0)
    monkeypatch.setattr("eerl_launch.report.browser._FAREWELL_S", 0.1)

    paths = write_report(folder, ["txt", "pdf", "png"], out=tmp_path)

    assert paths.txt is not None and paths.pdf is None
    assert len(paths.notes) == 4 and all("not written: " in note for note in paths.notes)
    (number,) = started.read_text().split()
    assert not Path(f"/proc/{number}").exists()


def test_a_browser_that_talks_without_answering_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events without end are no answer."""
    false = tmp_path / "browser"
    false.write_text('#!/bin/sh\nwhile printf \'{"method":"x"}\\0\' >&4; do :; done\n')
    false.chmod(0o755)
    monkeypatch.setenv("EERL_BROWSER", str(false))
    monkeypatch.setattr("eerl_launch.report.browser.PATIENCE_S", 0.5)
    monkeypatch.setattr("eerl_launch.report.browser._FAREWELL_S", 0.1)

    with pytest.raises(BrowserError, match="has not answered"), Browser():
        pass
