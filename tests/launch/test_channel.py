"""What goes into the channel comes out of it, or nothing does: never something else."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.channel import MAX_LINE_BYTES, MAX_MESSAGE_BYTES, Decoder, Encoder

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
MESSAGES = st.dictionaries(st.text(max_size=20), VALUES, max_size=6)
#: Messages that need parts, among others.
LONG_MESSAGES = st.builds(
    lambda message, filling, count: {**message, "filling": filling * count},
    MESSAGES,
    st.text(alphabet='ab"\\\né€\u2028', min_size=1, max_size=8),
    st.integers(0, 900),
)


def chunked(data: bytes, source: random.Random) -> list[bytes]:
    """The bytes cut at random places."""
    cuts = sorted(source.randrange(len(data) + 1) for _ in range(source.randrange(12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def plain(message: dict[str, Any]) -> Any:
    """The message as JSON keeps it."""
    return json.loads(json.dumps(message))


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES | LONG_MESSAGES, max_size=6), st.randoms(use_true_random=False))
def test_round_trip(messages: list[dict[str, Any]], source: random.Random) -> None:
    """Any JSON objects arrive as they were sent, in order, however the bytes are cut."""
    encoder, decoder = Encoder("node01"), Decoder()
    data = b"".join(encoder.encode(message) for message in messages)

    received = [message for chunk in chunked(data, source) for message in decoder.feed(chunk)]

    assert received == [plain(message) for message in messages]
    assert decoder.bad_lines == 0
    assert all(len(line) < MAX_LINE_BYTES for line in data.split(b"\n"))


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300), LONG_MESSAGES)
def test_any_sender_name_fits(sender: str, message: dict[str, Any]) -> None:
    """Lines stay short and whole whatever the node is called."""
    data = Encoder(sender).encode(message)

    assert all(len(line) < MAX_LINE_BYTES for line in data.split(b"\n"))
    assert Decoder().feed(data) == [plain(message)]


@settings(max_examples=80, deadline=None)
@given(st.lists(LONG_MESSAGES, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_interleaved_senders(messages: list[dict[str, Any]], source: random.Random) -> None:
    """Lines of several senders may be mixed in any way that keeps each sender's order."""
    queues = [
        Encoder(f"node{i}").encode(message).splitlines(keepends=True) for i, message in enumerate(messages)
    ]
    decoder, received = Decoder(), []

    while any(queues):
        received += decoder.feed(source.choice([queue for queue in queues if queue]).pop(0))

    key = json.dumps
    assert sorted(map(key, received)) == sorted(key(plain(message)) for message in messages)


@settings(max_examples=150, deadline=None)
@given(st.lists(LONG_MESSAGES | MESSAGES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_damaged_stream(messages: list[dict[str, Any]], source: random.Random) -> None:
    """Lines lost, cut, merged or changed cost their own messages: nothing raises, and nothing false comes out."""
    encoder = Encoder("node01")
    lines = b"".join(encoder.encode(message) for message in messages).splitlines(keepends=True)
    damaged = b""
    for line in lines:
        fault = source.randrange(6)
        if fault == 1:
            continue
        if fault == 2:
            line = line[: source.randrange(len(line))]
        if fault == 3:
            at = source.randrange(len(line))
            line = line[:at] + bytes([line[at] ^ (1 << source.randrange(8))]) + line[at + 1 :]
        if fault == 4:
            line = b"srun: error: lost\n" + line
        damaged += line

    decoder = Decoder()
    received = [message for chunk in chunked(damaged, source) for message in decoder.feed(chunk)]

    sent = [plain(message) for message in messages]
    assert all(message in sent for message in received)
    assert decoder.feed(b"\n" + encoder.encode({"after": 1}))[-1:] == [{"after": 1}]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_noise_is_passed_over(noise: bytes) -> None:
    """Any bytes at all raise nothing and give nothing; the next line is whole again."""
    decoder = Decoder()

    assert decoder.feed(noise) == []
    assert decoder.feed(b"\n" + Encoder().encode({"a": 1})) == [{"a": 1}]


@pytest.mark.parametrize(
    "body",
    [
        b"=[1,2]",
        b"=" + b"[" * 700,
        b"={",
        b"+a 0 0 0 x",
        b"+a 0 5 2 x",
        b"+a 0 -1 2 x",
        b"+a 00000000 0 1 {}",
        b"+a zz 0 1 {}",
        b"+",
        b"",
        b"=\xff\xfe",
    ],
)
def test_well_summed_nonsense(body: bytes) -> None:
    """A right checksum does not make a message of nonsense."""
    decoder = Decoder()

    assert decoder.feed(b"%08x %s\n" % (zlib.crc32(body), body)) == []
    assert decoder.bad_lines == 1


def test_restarted_sender_does_not_complete_old_parts() -> None:
    """A sender that starts again numbers its messages from one again; halves of two messages are never joined."""
    first = Encoder("node01").encode({"a": "x" * 1500}).splitlines(keepends=True)
    second = Encoder("node01").encode({"a": "y" * 1500}).splitlines(keepends=True)
    decoder = Decoder()

    received = decoder.feed(first[0] + second[1])

    assert received == []
    assert decoder.feed(b"".join(second)) == [{"a": "y" * 1500}]


def test_keys_of_ours_in_a_message() -> None:
    """A message may contain any key, those that look like the channel's own included."""
    message = {"part": ["a", 0, 2], "d": "x"}

    assert Decoder().feed(Encoder().encode(message)) == [message]


def test_memory_is_bounded() -> None:
    """Neither an endless line nor parts that never become whole fill the memory."""
    decoder, encoder = Decoder(), Encoder("node01")

    for _ in range(300):
        decoder.feed(b"x" * 65_000)
    for _ in range(400):
        decoder.feed(encoder.encode({"a": "b" * 60_000}).split(b"\n", 1)[1])

    assert len(decoder._pending) <= 1 << 17
    assert sum(len(c) for parts in decoder._open.values() for c in parts.values()) <= (4 << 20)
    assert decoder._open_bytes == sum(len(c) for parts in decoder._open.values() for c in parts.values())
    assert decoder.bad_lines > 0
    assert decoder.feed(b"\n" + encoder.encode({"a": 1})) == [{"a": 1}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x" * MAX_MESSAGE_BYTES])
def test_what_cannot_be_sent_is_refused(value: Any) -> None:
    """NaN and messages without measure are the sender's mistake and raise there."""
    with pytest.raises(ValueError, match=r"JSON|longer"):
        Encoder().encode({"a": value})
