"""The operator's side of a running job: one request to its session, and errors that say where to go instead."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eerl_launch.errors import EerlError, LedgerError
from eerl_launch.ledger import FILE_NAME, read_events

NOTE_NAME = "control.json"
_ANSWER_S = 5.0
_MAX_REPLY_BYTES = 1 << 20


class ControlError(EerlError):
    """The job's session cannot be asked; the text says why, and what to do."""


def _first_event(folder: Path) -> Mapping[str, Any]:
    try:
        return next(iter(read_events(folder)), {})
    except LedgerError as error:
        raise ControlError(str(error)) from error


def _ending(folder: Path) -> str | None:
    """How the run ended, or None while its ledger has no end."""
    last: Mapping[str, Any] = {}
    for event in read_events(folder):
        last = event
    if last.get("ev") != "end":
        return None
    return f"the run has ended ({last.get('status', 'complete')}, exit code {last.get('exit_code')})"


def _place(folder: Path) -> Mapping[str, Any]:
    """Where the session listens, as it wrote it down; ControlError when it does not listen (any more)."""
    try:
        place = json.loads((folder / NOTE_NAME).read_text())
    except FileNotFoundError:
        start = _first_event(folder)
        ending = _ending(folder) if start else "the run has not begun"
        if ending is None:
            ending = "its session is not running: it has just begun, or it was killed"
        raise ControlError(f"{folder}: {ending}; see `eerl report {folder}`") from None
    except (OSError, ValueError) as error:
        raise ControlError(f"{folder / NOTE_NAME}: cannot be read ({error})") from error
    if not isinstance(place, dict) or not isinstance(place.get("socket"), str):
        raise ControlError(f"{folder / NOTE_NAME}: does not name a socket")
    return place


def _unreachable(folder: Path, place: Mapping[str, Any], operation: str, error: OSError) -> ControlError:
    """Why nobody answers: another node, an end, a kill."""
    ending = _ending(folder)
    if ending is not None:
        return ControlError(f"{folder}: {ending}; see `eerl report {folder}`")
    node, here = place.get("node"), os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if node and node.split(".")[0] != here.split(".")[0]:
        job = _first_event(folder).get("job_id")
        way = f"srun --overlap --jobid={job} -w {node} -n1" if job else f"ssh {node}"
        return ControlError(
            f"the run's session is on node {node}, this is {here}; ask there: "
            f"{way} eerl {operation} {folder.resolve()}"
        )
    return ControlError(
        f"{folder}: nobody answers at {place['socket']} ({error.strerror or error}): the session was killed; "
        f"see `eerl report {folder}`"
    )


def ask(folder: Path, operation: str, timeout_s: float = _ANSWER_S) -> dict[str, Any]:
    """The session's answer to ``status``, ``hold`` or ``resume``; :class:`ControlError` when there is none."""
    if not folder.is_dir() or not (folder / FILE_NAME).exists():
        raise ControlError(f"{folder}: not a run folder (it has no {FILE_NAME}); give a folder eerl-run made")
    place = _place(folder)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(place["socket"])
            connection.sendall(json.dumps({"op": operation}).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n") and len(data) < _MAX_REPLY_BYTES:
                piece = connection.recv(65536)
                if not piece:
                    break
                data += piece
    except TimeoutError as error:
        raise ControlError(
            f"{folder}: the session did not answer within {timeout_s:g} s; it may be stopped, try again"
        ) from error
    except OSError as error:
        raise _unreachable(folder, place, operation, error) from error
    try:
        reply = json.loads(data)
    except ValueError as error:
        raise ControlError(f"{folder}: the session closed without an answer") from error
    if not isinstance(reply, dict) or "error" in reply:
        raise ControlError(f"{folder}: the session answered: {reply}")
    return reply


def _clock(mhz: object) -> str:
    return "governor" if mhz is None else f"{mhz} MHz"


def _clocks(by_pool: object) -> str:
    """The clocks asked for last: one for a colocated job, else one a pool."""
    if not isinstance(by_pool, Mapping):
        return _clock(by_pool)
    if len(by_pool) == 1:
        return _clock(next(iter(by_pool.values())))
    return ", ".join(f"{pool} {_clock(mhz)}" for pool, mhz in by_pool.items())


def describe(reply: Mapping[str, Any]) -> str:
    """A status reply in a few lines."""
    lines = []
    if reply.get("simulated"):
        lines.append(f"SIMULATED GPUs ({reply['simulated']})")
    total = reply.get("total_updates")
    lines.append(f"run        {reply.get('run_id')}")
    lines.append(f"update     {reply.get('updates')}" + (f" of {total}" if total else ""))
    state = "held by an operator (governor)" if reply.get("hold") else str(reply.get("state", "?")).lower()
    lines.append(f"state      {state}")
    if reply.get("control_off"):
        lines.append(f"control    off: {reply['control_off']}")
    plan = reply.get("plan")
    if plan:
        clocks = f"generation {_clock(plan['generation_mhz'])}, training {_clock(plan['training_mhz'])}"
        lines.append(f"plan       {plan['plan_id']}: {clocks} ({str(plan['reason']).lower()})")
        if plan.get("note"):
            lines.append(f"           {plan['note']}")
    lines.append(f"clock now  {_clocks(reply.get('applied_mhz'))}")
    if reply.get("energy_saving_pct") is not None:
        lines.append(
            f"so far     energy per token {-reply['energy_saving_pct']:+.1f} %, "
            f"throughput {reply['throughput_change_pct']:+.1f} % against the governor prediction"
        )
    nodes = reply.get("nodes") or {}
    silent = [f"{name} {state}" for name, state in nodes.items() if state != "joined"]
    lines.append(
        f"nodes      {len(nodes)}, {reply.get('gpus')} GPUs" + (f" ({', '.join(silent)})" if silent else "")
    )
    return "\n".join(lines)
