"""Markers from a training program: which phase runs, and what an update consumed (contract 3.3).

::

    from eerl_launch import mark

    with mark.phase("generation", update=n) as phase:
        ...
        phase.set(generated_tokens=812345, longest_response_tokens=4096)
    mark.update(n, generated_tokens=812345, valid_tokens=640001, longest_response_tokens=4096)

Without ``EERL_SOCKET`` nothing happens. With it, a call never blocks and never raises: when the listener stalls or is
is gone, markers wait in a bounded queue, then are dropped and counted. Standard library only, Python 3.10 on.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Iterable
from math import isfinite
from types import TracebackType
from typing import Any

from .mark_sender import Sender  # relative: eerl-run copies both beside the adapters

MAX_LINE_BYTES = 4096
_MAX_TEXT = 200
_MAX_FIELDS = 40
_MAX_NOTE = 800
_TEXTS = frozenset({"phase", "role", "name", "framework", "mode", "text", "kind"})
_LAST_FLUSH_S = 0.1
_QUANTILES = (10, 25, 50, 75, 90, 95, 99)


_sender = Sender()
_phases_marked = False
_muted = False
_otherwise: str | None = None


def mute(on: bool) -> None:
    """Send nothing meanwhile: a forked child leaves calls that are its parent's."""
    global _muted
    _muted = on


def otherwise(path: str | None) -> None:
    """Where markers go when ``EERL_SOCKET`` is gone: a trainer may clear its environment after Python's start."""
    global _otherwise
    _otherwise = path


def marks_phases() -> bool:
    """Whether this process has marked phases or updates through this module; an adapter then leaves it to it."""
    return _phases_marked


def _after_fork_in_child() -> None:
    """A child starts with a connection, a lock and a queue of its own."""
    global _sender
    parent = _sender
    _sender = Sender()
    parent.abandon()


def flush(timeout_s: float = 0.0) -> bool:
    """Whether nothing waits any longer; gives a listener that is only busy up to ``timeout_s`` seconds."""
    deadline_s = time.monotonic() + timeout_s
    path = listener()
    while path is not None and _sender.queue:
        _sender.flush(path)
        if not _sender.queue or time.monotonic() >= deadline_s:
            break
        time.sleep(0.005)
    return path is None or not _sender.queue


def _at_exit() -> None:
    """Give the last markers a short chance, unless they belong to the parent of a fork."""
    if _sender.queue and _sender.pid == os.getpid():
        flush(_LAST_FLUSH_S)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _clean(name: str, value: Any) -> Any:
    """A value JSON can carry, or None: numbers of NumPy and of tensors too, long texts cut."""
    if not isinstance(value, (int, float, str)) and hasattr(value, "item"):
        try:
            value = value.item()
        except Exception:  # a tensor with many elements, or one whose device is gone
            return None
    if name in _TEXTS and value is not None:
        value = str(value)
    if name == "update":
        value = int(value) if isinstance(value, (int, float)) and value == value // 1 else None
    if isinstance(value, str):
        return value[: _MAX_NOTE if name == "text" else _MAX_TEXT]
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    return value if isinstance(value, float) and isfinite(value) else None


def _message(event: str, fields: dict[str, Any]) -> dict[str, Any]:
    """An event as the protocol writes it; fields without a usable value are left out."""
    message: dict[str, Any] = {"v": 1, "ev": event, "t": round(time.time(), 6)}
    for name, value in list(fields.items())[:_MAX_FIELDS]:
        cleaned = _clean(name, value)
        if cleaned is not None and name not in ("v", "ev"):
            message[name[:_MAX_TEXT]] = cleaned
    return message


def listener() -> str | None:
    """The marker socket's path, None when nobody asked for markers."""
    if _sender.pid != os.getpid():  # forked by C code, past Python's own hooks
        _after_fork_in_child()
    return os.environ.get("EERL_SOCKET") or _otherwise


def _send(event: str, fields: dict[str, Any], required: str | None = None) -> None:
    """Send one event if anybody listens; whatever goes wrong is counted and stays here."""
    global _phases_marked
    if _muted:
        return
    if event in ("begin", "update"):
        _phases_marked = True
    try:
        path = listener()
        if path is None:
            return
        message = _message(event, fields)
        line = _encode(message)
        if len(line) > MAX_LINE_BYTES or (required is not None and required not in message):
            _sender.lose()
        else:
            _sender.send(path, line)
    except Exception:  # the trainer comes first, whatever it passed us
        _sender.lose()


class Phase:
    """A phase that begins on entering and ends on leaving, also when the body raises.

    A child forked meanwhile leaves it too, and says nothing: the phase is its parent's.
    """

    __slots__ = ("_counts", "_pid", "name", "update")

    def __init__(self, name: str, update: int | None = None) -> None:
        self.name = name
        self.update = update
        self._counts: dict[str, Any] = {}
        self._pid = 0

    def set(self, **counts: Any) -> None:
        """Counts to send with the end, such as ``generated_tokens`` and ``longest_response_tokens``."""
        self._counts.update(counts)

    def __enter__(self) -> Phase:
        self._pid = os.getpid()
        begin(self.name, self.update)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid == os.getpid():
            _send("end", {"phase": self.name, "update": self.update, **self._counts}, "phase")


def phase(name: str, update: int | None = None) -> Phase:
    """A context manager around one phase of an update; ``a/b`` names subphase b of a."""
    return Phase(name, update)


def begin(phase: str, update: int | None = None) -> None:
    """A phase begins now."""
    _send("begin", {"phase": phase, "update": update}, "phase")


def end(phase: str, update: int | None = None, **counts: Any) -> None:
    """A phase ends now; ``counts`` as in :meth:`Phase.set`."""
    _send("end", {**counts, "phase": phase, "update": update}, "phase")


def update(update: int, **counts: Any) -> None:
    """What an update generated and consumed, as soon as it is known (the next update may have begun).

    ``generated_tokens``; ``valid_tokens`` (response tokens that contributed to the loss);
    ``longest_response_tokens``; ``responses``; ``reward``; ``policy_age``. All over the whole job.
    """
    _send("update", {**counts, "update": update}, "update")


def run(
    framework: str | None = None, mode: str | None = None, total_updates: int | None = None, **more: Any
) -> None:
    """What kind of run this is; ``mode`` as in the policy file."""
    _send("run", {**more, "framework": framework, "mode": mode, "total_updates": total_updates})


def pool(role: str, gpus: Iterable[str]) -> None:
    """GPUs (UUIDs) that have a role, ``generation`` or ``training``; long lists go out in several lines."""
    try:
        path = listener()
        if path is not None:
            names = [str(gpu)[:_MAX_TEXT] for gpu in ([gpus] if isinstance(gpus, str) else gpus)]
            _send_pool(path, str(role), names)
    except Exception:  # the trainer comes first, whatever it passed us
        _sender.lose()


def _send_pool(path: str, role: str, names: list[str]) -> None:
    """Send the names in one line, or in halves until each fits."""
    line = _encode({**_message("pool", {"role": role}), "gpus": names})
    if len(line) <= MAX_LINE_BYTES:
        _sender.send(path, line)
    elif len(names) > 1:
        _send_pool(path, role, names[: len(names) // 2])
        _send_pool(path, role, names[len(names) // 2 :])
    else:
        _sender.lose()


def pause(update: int | None = None) -> None:
    """Generation pauses for a weight refit (in-flight updates)."""
    _send("pause", {"update": update})


def resume(update: int | None = None) -> None:
    """Generation goes on after a weight refit."""
    _send("resume", {"update": update})


def metric(name: str, value: float, update: int | None = None) -> None:
    """A quantity to show beside the energy, such as ``validation_accuracy``."""
    _send("metric", {"name": name, "value": value, "update": update}, "value")


def response_lengths(lengths: Iterable[int], update: int | None = None) -> None:
    """The lengths in tokens of all responses of an update, over the whole job: their mean and quantiles are sent.

    For ``eerl profile``; the metric ``response_length_tokens`` may be sent by other means just as well.
    """
    try:
        if listener() is None:
            return
        known = sorted(int(length) for length in lengths)
        if known:
            last = len(known) - 1
            quantiles = {f"p{percent}": known[round(last * percent / 100)] for percent in _QUANTILES}
            fields = {"name": "response_length_tokens", "value": sum(known) / len(known), "update": update}
            _send("metric", {**fields, **quantiles, "max": known[-1], "responses": len(known)}, "value")
    except Exception:  # the trainer comes first, whatever it passed us
        _sender.lose()


def note(text: str, kind: str = "adapter") -> None:
    """A sentence for the user of the job: eerl-run says it once, however many processes send it."""
    _send("note", {"text": text, "kind": kind}, "text")


def main() -> None:
    """The command ``eerl-mark``."""
    from .mark_cli import main as command

    raise SystemExit(command())
