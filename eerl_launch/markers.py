"""Lines that the trainer writes → :class:`Marker`. Contract 3.3; no I/O.

A sender may be any program, so nothing it writes is trusted: a line that is not a marker is counted and
passed over, an unknown event or key is legal and kept out of the way. A number that cannot be one (NaN of an
empty batch, say) is unknown, and the marker that carried it still counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

MAX_LINE_BYTES = 4096
PROTOCOL_VERSION = 1
#: Phases the session knows what to do with; any other name is accounted for and runs at the current clock.
PHASES = ("generation", "reward", "logprob", "training", "refit", "validation", "checkpoint", "critic")
COUNTS = ("generated_tokens", "valid_tokens", "longest_response_tokens", "responses")
_NUMBERS = (*COUNTS, "policy_age", "reward", "total_updates", "value", "count", "longest_consumed_tokens")
_EVENTS = ("run", "begin", "end", "update", "pool", "pause", "resume", "metric", "lost", "note")
#: A marker's own clock is believed when it is at most this much older than its arrival; a marker cannot come
#: from the future, and one that old came through a stepped clock.
_MAX_AGE_S = 3600.0
_MAX_NAME = 200
#: Beyond this a double does not count in ones any more; no run makes so many tokens.
_MAX_COUNT = 2**53
#: Larger floats are nothing that was measured, and sums of them would leave what a double can hold.
_MAX_FLOAT = 1e300
#: A larger count or reward would cost its update, as no record takes it (``eerl_controller.records.LARGEST``).
_MOST = 1e15


class MarkerError(ValueError):
    """A line that is no marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One event of the trainer; ``t_s`` is run time in seconds, ``sender`` tells processes apart."""

    event: str
    t_s: float
    sender: str
    phase: str | None = None
    update: int | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


def marker_time_s(
    sent_real_s: float | None, arrival_real_s: float, arrival_s: float, time_scale: float
) -> float:
    """Run time of a marker, from its own CLOCK_REALTIME stamp and the instant of its arrival.

    Only the age of the stamp is used, so a stepped wall clock moves only a marker that was under way at that
    moment; a stamp that is impossible gives the arrival time. Never negative: a run begins at zero.
    """
    age_s = 0.0 if sent_real_s is None else arrival_real_s - sent_real_s
    if not 0.0 <= age_s <= _MAX_AGE_S:
        age_s = 0.0
    return max(0.0, arrival_s - age_s * time_scale)


def _clean(value: Any) -> Any:
    """The value as any later reader can take it: no half characters, no number beyond a double, no NaN."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not abs(value) <= _MAX_FLOAT:  # NaN and the infinities included
        return None
    if isinstance(value, int) and abs(value) > _MAX_COUNT:
        return None
    return value


def _number(name: str, value: Any) -> float | None:
    """A number that can be true, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if name != "value" and (abs(value) > _MOST or (value < 0 and name != "reward")):
        return None
    return float(value)


def _phase(name: Any) -> str:
    """A phase's name in its plain form: no empty parts, nothing a terminal would act on."""
    if not isinstance(name, str):
        raise MarkerError("no phase name")
    parts = ["".join(c if c.isprintable() else "?" for c in part.strip()) for part in name.split("/")]
    plain = "/".join(part for part in parts if part)
    if not 0 < len(plain) <= _MAX_NAME:
        raise MarkerError(f"a phase name has 1 to {_MAX_NAME} characters, not {len(plain)}")
    return plain


def parse(
    line: bytes, sender: str, arrival_real_s: float, arrival_s: float, time_scale: float = 1.0
) -> Marker:
    """The marker in ``line``; raises :class:`MarkerError` saying what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        raise MarkerError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        message = _clean(json.loads(line.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise MarkerError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MarkerError("not a JSON object")
    if message.get("v", PROTOCOL_VERSION) != PROTOCOL_VERSION:
        raise MarkerError(f"protocol version {message['v']!r}, this eerl speaks {PROTOCOL_VERSION}")
    event = message.get("ev")
    if not isinstance(event, str) or not event:
        raise MarkerError('no "ev"')
    phase = _phase(message.get("phase")) if event in ("begin", "end") else None
    update = message.get("update")
    if isinstance(update, float) and update.is_integer() and abs(update) <= _MAX_COUNT:
        update = int(update)
    if update is not None and (isinstance(update, bool) or not isinstance(update, int)):
        raise MarkerError(f"update is not an integer: {update!r}")
    if event == "update" and update is None:
        raise MarkerError("update without its number")
    numbers = {name: _number(name, message.get(name)) for name in _NUMBERS}
    return Marker(
        event=event if event in _EVENTS else "unknown",
        t_s=marker_time_s(_number("t", message.get("t")), arrival_real_s, arrival_s, time_scale),
        sender=sender,
        phase=phase,
        update=update,
        numbers={name: value for name, value in numbers.items() if value is not None},
        fields=message,
    )


class LineSplitter:
    """Cuts one sender's byte stream into lines; a line over the limit is dropped whole and counted."""

    def __init__(self) -> None:
        self.oversized = 0
        self._pending = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that became whole with ``data``, without line ends and empty ones."""
        *lines, rest = (self._pending + data).split(b"\n")
        if self._skipping and lines:
            lines.pop(0)
            self._skipping = False
        if len(rest) > MAX_LINE_BYTES:
            self.oversized += not self._skipping
            self._skipping = True
            rest = b""
        self._pending = rest if not self._skipping else b""
        whole = []
        for line in lines:
            if len(line) > MAX_LINE_BYTES:
                self.oversized += 1
            elif line.strip():
                whole.append(line)
        return whole

    def end(self) -> list[bytes]:
        """What the sender wrote last without a line end: a shell's printf may well leave it out."""
        rest, self._pending = self._pending, b""
        return [rest] if rest.strip() else []
