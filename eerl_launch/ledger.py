"""The run's only memory: ``ledger.jsonl``, append-only, one JSON object a line, flushed at every line.

Every line has ``ev`` and ``t_s`` (seconds since the run began, monotonic; virtual seconds when simulated).
Energy by GPU is always a mapping from UUID to joules. Unknown is ``null``, with a reason beside it where the
reason is not plain. The events, in the order in which a run writes them:

``start``
    ``schema_version, run_id, job_id, array_task, restart, user, cluster, job_name, partition, account,
    nodes`` (expected), ``time_unix_s, time_iso, simulated`` (null or e.g. ``"h100:2x8"``), ``time_scale``,
    ``policy`` (as resolved, contract 3.8), ``policy_file, command`` (first word only), ``versions``,
    ``marker_socket`` (its path on the first node), ``adapter`` (``none``, ``auto`` or a name).
``node``
    ``node, state`` (``joined | lost | not_measured``), ``reason, hostname``,
    ``source`` (``broker | nvml | sim``),
    ``backend`` (``locked-clocks | application-clocks | none``), ``backend_reason, driver, clock_offset_s,
    clock_offset_error_s, gpus`` (list of ``uuid, index, name, min_mhz, max_mhz, energy_scope, mig``),
    ``notes`` (what the agent has to say about its GPUs: one that cannot be opened, a list that ends early).
``granted``
    ``gpus_by_node``: positions of the job's GPUs on each node, as Slurm says.
``controller``
    ``settings, mode, grid`` (``supported_mhz, governor_mhz``), ``seed``, ``prior`` (a warm start's, of
    the run ``prior_run``): what a replay needs.
``run`` / ``pool`` / ``metric``
    as the trainer sent them (contract 3.3); a ``pool`` of the policy has ``source`` "policy".
``plan``
    ``plan_id, generation_mhz, training_mhz, idle_mhz, state, reason, note``; null MHz is the governor.
``clock``
    a switch: ``plan_id, pool`` (``generation | training | all``), ``phase`` (what made it), ``mhz`` (null:
    governor), ``latency_s, gpus_set, failures`` (list of ``node, uuid, code, text``).
``phase``
    ``update, phase`` (``a/b`` is subphase b of a), ``pool`` (separate pools: whose phase it is alone, else
    null), ``begin_s, end_s, elapsed_s, energy_j, energy_error_j`` (how far its edges may be off), ``energy_reason,
    gpu_energy_j, requested_mhz, achieved_mhz, busy_fraction, capped_fraction, exclusive`` (true: part of the
    disjoint partition of its update),
    ``complete`` (false: its end was never marked). Generation has ``gpu_idle_tail_s``: seconds at its end
    in which each GPU had nothing to do any more, by its utilisation.
    A phase that ran several times in an update has several lines; more than 50 are summed up in one, with
    their number in ``intervals`` and ``elapsed_s`` less than ``end_s - begin_s``. ``energy_reason`` beside a
    known energy says why it is of low confidence. Times in an ``exclusive`` partition do not overlap, in the
    asynchronous modes those of one pool do not; a GPU's joules are in one of them at a time. A nested subphase
    has ``exclusive`` false. Clock and load are of the pool's own GPUs. ``gpu_energy_j`` is null where an update
    has too many GPUs and phases for it (never of generation), ``gpus`` says of how many it would be:
``gpu_phases``
    the sums, since the run began, of the phases whose lines have no ``gpu_energy_j``: ``phases, exclusive`` (lists of
    equal length), ``gpu_phase_energy_j`` (by UUID a list in their order); every 100 updates and at the end.
``update``
    ``index`` (counts from 0), ``begin_s, end_s, record`` (the UpdateRecord, as the controller saw it),
    ``state`` and ``plan_id`` under which it ran, ``governor`` (prediction for the same work: ``elapsed_s,
    energy_j, inside_coverage``, or null), ``gpu_energy_j, unattributed`` (``elapsed_s, energy_j``),
    ``pool_waits`` (separate pools, by role: ``wait_s, energy_j`` while it neither worked nor took part in a refit),
    ``usable`` and ``unusable_reason`` (for reports).
``tick``
    at least every 10 s: ``gpu_energy_j`` since the run began (cumulative; with more than 256 GPUs less often, else
    null), ``nodes_silent``.
``event``
    ``kind, node, uuid, text``; kinds: ``gpu_lost, counter_restart, sample_gap, energy_estimated, node_lost,
    agent_exit, not_honoured, hardware_slowdown, power_limit_changed, markers_lost, markers_malformed,
    operator_hold, operator_resume, outside_writer, control_off, warning``. ``power_limit_changed`` has
    ``limit_before_w, limit_w``: the enforced limit.
``end``
    ``time_unix_s, exit_code, signal, status`` (``complete | killed | launcher_lost``), ``gpu_energy_j``
    (cumulative), ``gpu_coverage`` (by UUID, 0..1: the share of the run that was measured), ``gpu_power_w`` (by
    UUID: mean draw of the GPU alone by its power samples, also where the counter is a module's), ``gpu_load`` (by
    UUID, over the whole run: ``achieved_mhz`` while busy, ``busy_fraction``, ``capped_fraction`` under a power cap,
    ``slowed_fraction`` by heat or hardware protection), ``resets``
    (by node: ``ok, failures, unknown``), ``markers`` (``received, malformed, lost``), ``updates``.
    A ledger without ``end`` is of a run that was killed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from eerl_launch.errors import LedgerError

SCHEMA_VERSION = 1
FILE_NAME = "ledger.jsonl"

Event = dict[str, Any]


def _strict(value: Any) -> Any:
    """The value with every number JSON cannot carry (NaN, infinities) as null, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(item) for item in value]
    return value


def encode(event: Mapping[str, Any]) -> str:
    """One line of strict JSON, without the line end."""
    return json.dumps(_strict(event), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class LedgerWriter:
    """Appends events; each line is in the kernel before :meth:`append` returns, so a SIGKILL loses nothing.

    A failing disk is not the job's affair: after the first failed write the error is kept in ``failure`` and
    later lines are counted in ``lost_lines``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.failure: OSError | None = None
        self.lost_lines = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC
        self._fd: int | None = os.open(self.path, flags, 0o644)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event (an object with at least ``ev`` and ``t_s``)."""
        if self._fd is None:
            raise ValueError("the ledger is closed")
        data = (encode(event) + "\n").encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.failure = self.failure or error
            self.lost_lines += 1

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _json_reader() -> Callable[[bytes], Any]:
    """What reads a line: orjson where it is installed (extra ``fast``), three times as quick as the standard library.

    What orjson refuses (NaN, say, which is in no ledger of ours) the standard library may still read, or else says
    what is wrong with it.
    """
    try:
        from orjson import loads as quick
    except ImportError:
        return json.loads

    def loads(line: bytes) -> Any:
        try:
            return quick(line)
        except ValueError:
            return json.loads(line)

    return loads


def read_events(folder: Path) -> Iterator[Event]:
    """The events of a run folder, oldest first; a last line cut short by a kill is passed over.

    Raises :class:`LedgerError` naming file and line for anything else that is not a ledger.
    """
    path = folder if folder.is_file() else folder / FILE_NAME
    try:
        handle = path.open("rb")
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}; give the run folder that holds {FILE_NAME}") from error
    loads = _json_reader()
    with handle:
        for number, line in enumerate(handle, start=1):
            try:
                event = loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return
                raise LedgerError(f"{path}:{number}: not JSON ({error})") from error
            if not isinstance(event, dict) or "ev" not in event:
                raise LedgerError(f"{path}:{number}: not a ledger event: {line[:60]!r}")
            if number > 1 and event["ev"] == "start":
                raise LedgerError(f"{path}:{number}: another run begins here; a ledger is of one run")
            version = event.get("schema_version", SCHEMA_VERSION) if number == 1 else SCHEMA_VERSION
            if not isinstance(version, int):
                raise LedgerError(f"{path}: schema_version is no number: {version!r}")
            if version > SCHEMA_VERSION:
                raise LedgerError(
                    f"{path}: schema_version {version} is newer than this eerl reads ({SCHEMA_VERSION}); "
                    f"use the eerl that wrote it"
                )
            yield event
