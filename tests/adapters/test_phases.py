"""Labels of named timers → phases."""

from __future__ import annotations

from typing import Any

import pytest

from eerl_launch import mark
from eerl_launch.adapters.phases import Labels

TABLE = {"gen": "generation", "train": "training", "train/forward": "training"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Begins and ends that were marked."""
    seen: list[Any] = []
    monkeypatch.setattr(mark, "begin", lambda phase, update=None: seen.append(("begin", phase, update)))
    monkeypatch.setattr(
        mark, "end", lambda phase, update=None, **counts: seen.append(("end", phase, update, counts))
    )
    return seen


def test_labels_become_phases(sent: list[Any]) -> None:
    """What is in the table is marked, with counts; the rest is passed over."""
    labels = Labels(TABLE)

    labels.begin("gen", 3)
    labels.begin("idle", 3)
    labels.end("idle", 3)
    labels.end("gen", 3, generated_tokens=5)

    assert sent == [("begin", "generation", 3), ("end", "generation", 3, {"generated_tokens": 5})]


def test_nested_labels_of_one_phase(sent: list[Any]) -> None:
    """The outermost begins and ends it; an end without a begin is none."""
    labels = Labels(TABLE)

    labels.end("train", 1)
    labels.begin("train", 1)
    labels.begin("train/forward", 1)
    labels.end("train/forward", 1)
    labels.end("train", 1)

    assert [entry[0] for entry in sent] == ["begin", "end"]


def test_a_reset_forgets_what_is_open(sent: list[Any]) -> None:
    """After an exception the next begin is one again."""
    labels = Labels(TABLE)

    labels.begin("train", 1)
    labels.reset()
    labels.begin("train", 2)

    assert [entry[2] for entry in sent] == [1, 2]


def test_what_prepares_a_phase_is_part_of_it(sent: list[Any]) -> None:
    """A phase begins with its preparation and ends with itself, or where another phase begins, or when settled."""
    labels = Labels({**TABLE, "wake": "training"}, prepares=frozenset({"wake"}))

    for label in ("wake", "train", "wake", "gen", "wake"):
        labels.begin(label, 1)
        labels.end(label)
    labels.settle()

    assert [(entry[0], entry[1]) for entry in sent] == [
        ("begin", "training"),
        ("end", "training"),
        ("begin", "training"),
        ("end", "training"),
        ("begin", "generation"),
        ("end", "generation"),
        ("begin", "training"),
        ("end", "training"),
    ]


def test_a_phase_ends_under_the_number_it_began_with(sent: list[Any]) -> None:
    """The trainer's number may have moved on before the end."""
    labels = Labels(TABLE)

    labels.begin("gen", 4)
    labels.end("gen", 5)

    assert [entry[2] for entry in sent] == [4, 4]
