"""Labels of named timers → phases, and the counts of an update."""

from __future__ import annotations

from typing import Any

import pytest

from eerl_launch import mark
from eerl_launch.adapters.phases import Counts, Labels

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


def test_rounds_of_generation_add_up() -> None:
    """Tokens and responses are summed, of the longest the largest counts."""
    counts = Counts()

    counts.responses([3, 9])
    counts.responses([4])
    counts.add(valid_tokens=12)

    assert counts.fields() == {
        "generated_tokens": 16,
        "responses": 3,
        "valid_tokens": 12,
        "longest_response_tokens": 9,
    }


def test_what_is_unknown_stays_unknown() -> None:
    """One round without its count makes the sum unknown, whatever comes after; the others stand."""
    counts = Counts()

    counts.add(generated_tokens=3, valid_tokens=3)
    counts.add(generated_tokens=None)
    counts.add(generated_tokens=4)
    counts.longest(7)
    counts.longest(None)

    assert counts.fields() == {"valid_tokens": 3}
