"""The page on how the controller decides: its picture and tables are those of the transition table."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from eerl_controller import TRANSITIONS, Reason, State

CONTROLLER = Path(__file__).resolve().parents[2] / "controller"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """The script that draws, as a module."""
    spec = importlib.util.spec_from_file_location("draw_states", CONTROLLER / "draw_states.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_picture_and_page_are_current(drawing: ModuleType) -> None:
    """If this fails: python controller/draw_states.py."""
    page = drawing.PAGE.read_text(encoding="utf-8")

    assert drawing.PICTURE.read_text(encoding="utf-8") == drawing.svg()
    assert drawing.page(page) == page


def test_every_change_is_drawn_once(drawing: ModuleType) -> None:
    """The numbers in the picture are those of the table, each once; every state has a box."""
    root = ElementTree.fromstring(drawing.svg())
    texts = {
        kind: [t.text or "" for t in root.iter(f"{SVG}text") if t.get("class") == kind]
        for kind in ("name", "number")
    }

    numbers = [int(number) for text in texts["number"] for number in text.split(", ")]

    assert sorted(texts["name"]) == sorted(state.name for state in State)
    assert sorted(numbers) == list(range(1, sum(len(ends) for ends in TRANSITIONS.values()) + 1))


def test_the_frame_stands_for_what_all_in_it_may_do(drawing: ModuleType) -> None:
    """When one of them loses a way out, it is no longer drawn from the frame."""
    assert drawing.common_ends() == [State.SUSPENDED, State.FAILED]
    for end in drawing.common_ends():
        assert all(end in TRANSITIONS[state] for state in drawing.FRAMED)


def test_a_change_without_words_is_refused(drawing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row of the table that the page does not explain stops the drawing, naming it."""
    fewer = dict(drawing.WHEN)
    del fewer[State.SEARCH, State.LOCKED]
    monkeypatch.setattr(drawing, "WHEN", fewer)

    with pytest.raises(SystemExit, match=r"SEARCH.*LOCKED"):
        drawing.tables()


def test_check_says_what_is_stale(
    drawing: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--check`` writes nothing and names the file; without it the file is mended."""
    picture = tmp_path / "states.svg"
    picture.write_text("old")
    monkeypatch.setattr(drawing, "PICTURE", picture)

    monkeypatch.setattr("sys.argv", ["draw_states.py", "--check"])
    assert drawing.main() == 1
    assert "states.svg is not current" in capsys.readouterr().out and picture.read_text() == "old"
    monkeypatch.setattr("sys.argv", ["draw_states.py"])
    assert drawing.main() == 0
    assert picture.read_text() == drawing.svg()


def test_the_pages_links_lead_somewhere() -> None:
    """Every relative link of the page is a file."""
    page = (CONTROLLER / "DECIDING.md").read_text(encoding="utf-8")

    links = re.findall(r"\]\(([^)#:]+)\)", page)

    assert len(links) >= 3
    assert [link for link in links if not (CONTROLLER / link).is_file()] == []
    assert Reason.__name__ in page
