"""Lines that the trainer writes: whatever they are, a marker or a MarkerError (contract 3.3, field case E11)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eerl_controller.records import RecordError, UpdateRecord
from eerl_launch.markers import MAX_LINE_BYTES, LineSplitter, Marker, MarkerError, marker_time_s, parse

NOW_UNIX_S = 1_700_000_000.0


def parsed(message: Any, arrival_s: float = 100.0) -> Marker:
    line = message if isinstance(message, bytes) else json.dumps(message).encode()
    return parse(line, "1", NOW_UNIX_S, arrival_s)


@pytest.mark.parametrize(
    "line",
    [
        {"v": 1, "ev": "run", "framework": "trl", "mode": "colocated_sync", "total_updates": 500},
        {"v": 1, "ev": "begin", "phase": "generation", "update": 12, "t": NOW_UNIX_S},
        {
            "v": 1,
            "ev": "end",
            "phase": "generation",
            "update": 12,
            "t": NOW_UNIX_S,
            "generated_tokens": 812345,
        },
        {"v": 1, "ev": "update", "update": 12, "valid_tokens": 640001, "reward": -0.41, "policy_age": 1},
        {"v": 1, "ev": "pool", "role": "generation", "gpus": ["GPU-1"]},
        {"v": 1, "ev": "pause"},
        {"v": 1, "ev": "resume"},
        {"v": 1, "ev": "metric", "name": "validation_accuracy", "value": 0.62, "update": 100},
        {"ev": "begin", "phase": "training"},
    ],
)
def test_lines_of_the_contract(line: dict[str, Any]) -> None:
    """Every example of the protocol is a marker with its event, phase, number and counts."""
    marker = parsed(line)

    assert marker.event == line["ev"]
    assert marker.phase == line.get("phase")
    assert marker.update == line.get("update")
    assert marker.t_s == 100.0
    for name in ("generated_tokens", "valid_tokens", "reward", "policy_age", "total_updates", "value"):
        assert marker.numbers.get(name) == line.get(name)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=5000))
def test_any_bytes(line: bytes) -> None:
    """Bytes that are no marker raise MarkerError and nothing else."""
    with pytest.raises(MarkerError):
        parsed(line)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "v": JSON_VALUES | st.just(1),
            "ev": JSON_VALUES | st.sampled_from(["begin", "end", "update", "run", "pool", "metric"]),
            "phase": JSON_VALUES | st.sampled_from(["generation", "a/b", "//"]),
            "update": JSON_VALUES | st.integers(0, 10),
            "t": JSON_VALUES | st.floats(1.69e9, 1.71e9),
            "generated_tokens": JSON_VALUES,
            "reward": JSON_VALUES,
            "gpus": JSON_VALUES,
        },
    )
)
@example({"ev": "update", "update": 1e300})
@example({"ev": "update", "update": 3, "reward": 1.7e308})
def test_any_json(message: dict[str, Any]) -> None:
    """Any JSON object is a marker whose values every later reader can take, or a MarkerError."""
    try:
        marker = parsed(json.dumps(message).encode())
    except MarkerError:
        return

    assert 0.0 <= marker.t_s <= 100.0
    assert marker.update is None or abs(marker.update) <= 2**53
    assert all(math.isfinite(value) and abs(value) <= 1e308 for value in marker.numbers.values())
    json.dumps(marker.fields, allow_nan=False, ensure_ascii=False).encode("utf-8")
    if marker.phase is not None:
        assert marker.phase.isprintable()
        assert all(marker.phase.split("/"))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"ev":"begin"}',
        b'{"ev":"end","phase":""}',
        b'{"ev":"begin","phase":"//"}',
        b'{"ev":"begin","phase":"' + b"x" * 201 + b'"}',
        b'{"ev":"update"}',
        b'{"ev":"begin","phase":"a","update":"12"}',
        b'{"ev":"begin","phase":"a","update":1.5}',
        b'{"ev":"begin","phase":"a","update":true}',
        b'{"v":2,"ev":"pause"}',
        b'{"ev":7}',
        b'{"ev":"pause","x":"' + b"y" * MAX_LINE_BYTES + b'"}',
        b"[" * 4000,
    ],
)
def test_no_marker(line: bytes) -> None:
    """What lacks its event, phase or number, or is of another version, says so."""
    with pytest.raises(MarkerError):
        parsed(line)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1", '"many"', "true", "9" * 4000, "1e999", "2e15", "[1]"]
)
def test_impossible_count_is_unknown(value: str) -> None:
    """An end with a count that cannot be true still ends its phase; the count is unknown."""
    marker = parsed(b'{"ev":"end","phase":"generation","generated_tokens":' + value.encode() + b"}")

    assert marker.event == "end"
    assert "generated_tokens" not in marker.numbers


@pytest.mark.parametrize("reward", [-1e300, 2e15])
def test_a_reward_beyond_belief_costs_the_reward_only(reward: float) -> None:
    """A reward that ran away, which no record can hold, is unknown; its update counts."""
    with pytest.raises(RecordError):
        UpdateRecord(update=1, reward=reward)

    assert parsed({"ev": "update", "update": 1, "reward": reward, "valid_tokens": 5}).numbers == {
        "valid_tokens": 5.0
    }


def test_reward_may_be_negative_or_not_a_number() -> None:
    """Rewards below zero are legal; NaN of an empty batch is unknown, and the counts beside it hold."""
    assert parsed({"ev": "update", "update": 1, "reward": -3.5}).numbers == {"reward": -3.5}
    assert parsed(b'{"ev":"update","update":1,"reward":NaN,"valid_tokens":5}').numbers == {
        "valid_tokens": 5.0
    }


def test_number_of_an_update_beyond_belief() -> None:
    """A phase with a number no computer counts to is a phase without number; counts for it are of nobody."""
    line = b'{"ev":"%s","phase":"generation","update":' + b"9" * 300 + b"}"

    assert parsed(line.replace(b"%s", b"begin")).update is None
    with pytest.raises(MarkerError, match="without its number"):
        parsed(line.replace(b"%s", b"update"))


def test_whole_number_written_as_float() -> None:
    """A language without integers may number its updates 12.0."""
    assert parsed({"ev": "update", "update": 12.0}).update == 12


@pytest.mark.parametrize(
    ("name", "plain"),
    [("/a/b/", "a/b"), (" generation ", "generation"), ("a//b", "a/b"), ("x\x1b[31m\n", "x?[31m")],
)
def test_phase_names_are_plain(name: str, plain: str) -> None:
    """Phase names come without empty parts and without anything a terminal would act on."""
    assert parsed({"ev": "begin", "phase": name}).phase == plain


def test_half_a_character() -> None:
    """A lone surrogate, legal in JSON and illegal in UTF-8, does not reach the ledger."""
    marker = parsed(b'{"ev":"metric","name":"\\ud800","value":1}')

    assert marker.fields["name"] == "?"


def test_unknown_event_is_legal() -> None:
    """An event of a later protocol is a marker of unknown kind."""
    assert parsed({"ev": "coffee"}).event == "unknown"


@pytest.mark.parametrize(
    ("sent_ago_s", "t_s"),
    [(0.25, 99.75), (0.0, 100.0), (60.0, 40.0), (-30.0, 100.0), (3600.5, 100.0), (500.0, 0.0)],
)
def test_time_of_a_marker(sent_ago_s: float, t_s: float) -> None:
    """E11: a stamp counts by its age; from the future, or from before any plausible delay, arrival counts."""
    assert parsed({"ev": "pause", "t": NOW_UNIX_S - sent_ago_s}).t_s == pytest.approx(t_s)


def test_stepped_wall_clock() -> None:
    """E11: a wall clock that is stepped back 30 s and then on by an hour leaves durations as they were."""
    wall_offset_s, times = 0.0, []
    for second in range(60):
        if second == 10:
            wall_offset_s -= 30.0
        if second == 30:
            wall_offset_s += 3600.0
        wall_s = NOW_UNIX_S + second + wall_offset_s
        times.append(marker_time_s(wall_s, wall_s + 0.001, second + 0.001, 1.0))

    assert times == pytest.approx(list(range(60)), abs=0.01)


def test_marker_under_way_while_the_clock_is_stepped() -> None:
    """E11: the one marker that is between sender and us at that moment is taken at its arrival."""
    assert marker_time_s(NOW_UNIX_S, NOW_UNIX_S - 30.0, 10.0, 1.0) == 10.0
    assert marker_time_s(NOW_UNIX_S, NOW_UNIX_S + 3600.001, 30.0, 1.0) == 30.0


def test_simulated_time_runs_faster() -> None:
    """With virtual time a marker's age is that many virtual seconds."""
    assert marker_time_s(NOW_UNIX_S - 0.5, NOW_UNIX_S, 1000.0, 60.0) == pytest.approx(970.0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60).filter(lambda line: b"\n" not in line) | st.just(b"g" * 5000), max_size=20
    ),
    st.lists(st.integers(1, 7000), min_size=1, max_size=50),
)
def test_splitter_gives_whole_lines(lines: list[bytes], sizes: list[int]) -> None:
    """However the bytes arrive, every line within the limit comes out once, in order; giants are counted."""
    data, splitter, received = b"\n".join(lines) + b"\n", LineSplitter(), []

    while data:
        size = sizes[len(received) % len(sizes)]
        received += splitter.feed(data[:size])
        data = data[size:]

    assert received == [line for line in lines if line.strip() and len(line) <= MAX_LINE_BYTES]
    assert splitter.oversized == sum(len(line) > MAX_LINE_BYTES for line in lines)
    assert splitter.end() == []


def test_giant_line_is_not_kept() -> None:
    """A line of many megabytes is dropped as it comes; the next one is whole."""
    splitter = LineSplitter()

    for _ in range(500):
        assert splitter.feed(b"x" * 65536) == []
        assert len(splitter._pending) <= MAX_LINE_BYTES

    assert splitter.feed(b"tail\nnext\n") == [b"next"]
    assert splitter.oversized == 1


def test_last_line_without_its_end() -> None:
    """What a sender leaves without a line end comes out when it hangs up."""
    splitter = LineSplitter()
    splitter.feed(b'{"ev":"pause"}\n{"ev":"resume"}')

    assert splitter.end() == [b'{"ev":"resume"}']
    assert splitter.end() == []
