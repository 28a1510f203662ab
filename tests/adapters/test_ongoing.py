"""Generation that goes on in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from eerl_launch import mark
from eerl_launch.adapters import ongoing
from eerl_launch.adapters.ongoing import Ongoing
from eerl_launch.adapters.tokens import Counted


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Begins and ends of generation: labels, and tokens of ends."""
    seen: list[Any] = []
    monkeypatch.setattr(mark, "begin", lambda phase, update=None: seen.append(("+", update)))
    monkeypatch.setattr(
        mark,
        "end",
        lambda phase, update=None, **counts: seen.append(("-", update, counts.get("generated_tokens"))),
    )
    monkeypatch.setattr(ongoing, "INTERVAL_S", 0.0)
    return seen


def test_generation_is_open_while_anything_runs(sent: list[Any]) -> None:
    """Each finished rollout ends it with its tokens, and it begins again while another runs."""
    generation = Ongoing()

    with generation.one() as first:
        with generation.one() as second:
            second(Counted.of([4, 5]))
        first(Counted.of([6]))

    assert sent == [("+", None), ("-", None, 9), ("+", None), ("-", None, 6)]


def test_many_ends_become_few(sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends too close together are told as one, with every token, at the latest when generation stops."""
    monkeypatch.setattr(ongoing, "INTERVAL_S", 3600.0)
    generation = Ongoing()

    with generation.one() as outer:
        for length in (1, 2, 3):
            with generation.one() as inner:
                inner(Counted.of([length]))
        outer(Counted.of([10]))

    assert sent == [("+", None), ("-", None, 1), ("+", None), ("-", None, 15)]


def test_a_failed_rollout_makes_its_stretch_unknown(sent: list[Any]) -> None:
    """What failed has generated nobody knows how much; what comes later is known again."""
    generation = Ongoing()

    with pytest.raises(MemoryError), generation.one():
        raise MemoryError
    with generation.one() as count:
        count(Counted.of([2]))

    assert sent == [("+", None), ("-", None, None), ("+", None), ("-", None, 2)]


def test_one_of_several_processes_has_a_label_of_its_own(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that generate side by side must add up, and be no update's number."""
    generation = Ongoing(several=True)

    with generation.one():
        pass
    monkeypatch.setattr("os.getpid", lambda: 12)
    with generation.one():
        pass

    labels = {entry[1] for entry in sent}
    assert len(labels) == 2
    assert all(2**40 <= label < 2**53 for label in labels)
