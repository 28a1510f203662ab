"""What adapters have to say: sent as a marker, said by eerl-run once, never by the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch.marker_listener import Listener

from eerl_launch import adapter_watch, mark
from eerl_launch.adapter_watch import Adapters
from eerl_launch.markers import Marker, parse


class Voice:
    """Keeps what it is told to say."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def say_once(self, key: str, text: str) -> None:
        """As the session's voice does."""
        self.said.setdefault(key, text)


def adapters(folder: Path, voice: Any) -> Adapters:
    return Adapters({"adapter_folder": "adapters", "private_folder": str(folder)}, voice)


def note(text: Any) -> Marker:
    return parse(json.dumps({"v": 1, "ev": "note", "text": text}).encode(), "0/1", 0.0, 0.0)


def test_a_note_is_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes out like any other, its text cut at a length that a line holds; it marks no phase."""
    monkeypatch.setattr(mark, "_sender", mark.Sender())
    monkeypatch.setattr(mark, "_phases_marked", False)
    listener = Listener(tmp_path / "s")
    monkeypatch.setenv("EERL_SOCKET", str(listener.path))

    mark.note("trl 9.0: something moved")
    mark.note("x" * 5000)
    first, long = listener.events(2)
    listener.close()

    assert (first["ev"], first["kind"], first["text"]) == ("note", "adapter", "trl 9.0: something moved")
    assert 200 < len(long["text"]) < 1000
    assert not mark.marks_phases()
    mark.metric("loss", 1.0)
    assert not mark.marks_phases()
    mark.begin("generation")
    assert mark.marks_phases()


def test_many_processes_say_it_once(tmp_path: Path) -> None:
    """However many ranks send the same sentence, the user reads it once, without what a terminal would act on."""
    voice = Voice()
    one = adapters(tmp_path, voice)

    for _ in range(8):
        one.note(note("moved\x1b[2J\n"))

    assert list(voice.said.values()) == ["moved?[2J?"]


@pytest.mark.parametrize("text", [None, 3, "", "  ", ["x"], {"a": 1}])
def test_a_note_without_text(tmp_path: Path, text: Any) -> None:
    """Is none."""
    voice = Voice()

    adapters(tmp_path, voice).note(note(text))

    assert voice.said == {}


def test_a_flood_is_cut(tmp_path: Path) -> None:
    """A sender gone wild does not fill the ledger."""
    voice = Voice()
    one = adapters(tmp_path, voice)

    for number in range(1000):
        one.note(note(f"note {number}"))

    assert len(voice.said) == adapter_watch._MAX_NOTES


def from_trainer(sender: str, event: str = "begin") -> Marker:
    message: dict[str, Any] = {"v": 1, "ev": event, "phase": "generation", "update": 1}
    if event == "run":
        message["framework_version"] = "9.0"
    return parse(json.dumps(message).encode(), sender, 0.0, 0.0)


def test_trainers_on_two_nodes_at_once(tmp_path: Path) -> None:
    """As soon as the first is heard after the second has begun, the second is left out, and it is said."""
    voice = Voice()
    one = adapters(tmp_path, voice)

    heard = [
        one.accepts(from_trainer(sender, event))
        for sender, event in [
            ("0/1", "run"),
            ("0/1", "begin"),
            ("n2/1", "run"),
            ("n2/1", "begin"),
            ("0/1", "end"),
            ("n2/1", "end"),
            ("0/1", "begin"),
            ("n2/1", "begin"),
            ("n3/7", "begin"),
        ]
    ]

    assert heard == [True, True, True, True, True, False, True, False, True]
    assert list(voice.said) == ["trainers"]


def test_trainers_one_after_the_other_on_two_nodes(tmp_path: Path) -> None:
    """A second stage, or a restart on another node, counts like the first."""
    voice = Voice()
    one = adapters(tmp_path, voice)

    heard = [
        one.accepts(from_trainer(sender, event))
        for sender, event in [
            ("0/1", "run"),
            ("0/1", "begin"),
            ("n2/1", "run"),
            ("n2/1", "begin"),
            ("n2/1", "run"),
        ]
    ]

    assert all(heard) and voice.said == {}
