"""Ledgers are read alike with orjson and without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eerl_launch.errors import LedgerError
from eerl_launch.ledger import read_events

ODD = r'{"ev":"metric","t_s":1.5,"value":NaN,"big":123456789012345678901234,"name":"\ud800é","x":[1e-7,-0.0,null]}'


@pytest.fixture(params=["with orjson", "without"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of what reads a line."""
    pytest.importorskip("orjson", reason="orjson is in the extra `test`")
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "orjson", None)


@pytest.mark.usefixtures("reader")
def test_odd_lines_are_what_the_standard_library_says(tmp_path: Path) -> None:
    """NaN, huge numbers and half a surrogate are no reason to stop reading; a cut last line is passed over."""
    (tmp_path / "ledger.jsonl").write_text('{"ev":"start","t_s":0}\n' + ODD + '\n{"ev":"tick","t_s":2')

    start, odd = read_events(tmp_path)

    assert start == {"ev": "start", "t_s": 0}
    assert odd["value"] != odd["value"]
    assert (float(odd["big"]), odd["name"], odd["x"]) == (
        1.2345678901234568e23,
        "\ud800é",
        [1e-7, -0.0, None],
    )


@pytest.mark.usefixtures("reader")
def test_a_broken_line_is_named_alike(tmp_path: Path) -> None:
    """File, line and the standard library's reason, whatever read it first."""
    (tmp_path / "ledger.jsonl").write_text('{"ev":"start","t_s":0}\n{"ev":"tick",}\n')

    with pytest.raises(LedgerError, match=r"ledger\.jsonl:2: not JSON \(Expecting property name"):
        list(read_events(tmp_path))
