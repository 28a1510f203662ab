"""The end of a run: agents say good-bye within bounds, the ledger gets its last line, the report is made."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from eerl_launch import agents_start
from eerl_launch.energy import Allocation, PhaseStatistics
from eerl_launch.nodes import Nodes
from eerl_launch.orders import Orders
from eerl_launch.policy import ReportOptions
from eerl_launch.telling import Voice, say
from eerl_launch.whole_file import why_not_into

if TYPE_CHECKING:
    from eerl_launch.report.document import Report

#: Agents have this long to say good-bye; one that has not even joined is not waited for.
_FAREWELL_S = 6.0
#: srun ends by itself once its agents have; after this it is in the way of the job's end.
_REAP_S = 5.0
#: Agents that had not joined hold nothing that must come home.
_REAP_UNJOINED_S = 0.1


def say_good_bye(nodes: Nodes, selector: selectors.BaseSelector) -> None:
    """Let the agents reset and read for the last time; bounded, and nothing of ours is left running."""
    nodes.broadcast({"op": "end"})
    joined = nodes.joined
    deadline = time.monotonic() + (_FAREWELL_S if joined else 0.0)
    while time.monotonic() < deadline and not all(node.farewell for node in joined):
        for key, _ in selector.select(0.02):
            if key.fd != 0:  # the launcher has nothing more to say
                key.data()
        for link in nodes.links:
            link.send()
    for link in nodes.links:
        link.close_input()
    for link in nodes.links:
        agents_start.reap(link, patience_s=_REAP_S if joined else _REAP_UNJOINED_S)


def end_event(
    end: Mapping[str, Any] | None, ended_s: float, nodes: Nodes, energy: Allocation, orders: Orders
) -> dict[str, Any]:
    """The fields of the ledger's ``end`` that the nodes know."""
    meters = {uuid: m for node in energy.nodes.values() for uuid, m in node.meters.items()}
    end = end or {"status": "launcher_lost", "code": None, "signal": None}
    return {
        "time_unix_s": time.time(),
        "run_s": ended_s,
        "exit_code": end["code"],
        "signal": end["signal"],
        "status": end["status"],
        "gpu_energy_j": energy.cumulative_j(),
        "gpu_coverage": {
            uuid: min(1.0, meter.measured_s / ended_s) if ended_s > 0 else None
            for uuid, meter in meters.items()
        },
        "gpu_estimated_j": {uuid: meter.estimated_j for uuid, meter in meters.items() if meter.estimated_j},
        "gpu_power_w": energy.mean_power_w(),
        "gpu_load": {uuid: _load(load) for uuid, load in energy.loads().items()},
        "resets": {node.name: _reset(nodes, orders, node.name) for node in nodes.by_name.values()},
    }


def _load(load: PhaseStatistics) -> dict[str, float | None]:
    return {
        "achieved_mhz": load.achieved_mhz,
        "busy_fraction": load.busy_fraction,
        "capped_fraction": load.capped_fraction,
        "slowed_fraction": load.slowed_fraction,
    }


def _reset(nodes: Nodes, orders: Orders, name: str) -> dict[str, Any]:
    """Whether a node's clocks came home, as far as its agent could tell."""
    node = nodes.by_name[name]
    if node.farewell is None:
        could_lock = node.info.get("backend", "none") != "none"  # also one that has been lost since
        unknown = node.state in ("joined", "lost") and could_lock
        return {"ok": None if unknown else True, "failures": [], "unknown": unknown}
    failures = orders.reset_failures.get(name, [])
    left = bool(node.farewell.get("left_locked"))
    return {"ok": not left and not failures, "failures": failures, "unknown": False}


def warn_of_report(wanted: ReportOptions, voice: Voice) -> None:
    """Say at the beginning what would fail at the end; for a thread of its own, since a file system may hang."""
    folder = wanted.openmetrics_folder
    if folder is None or "openmetrics" not in wanted.to:
        return
    try:
        reason = why_not_into(Path(folder))
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        with suppress(ValueError):  # the ledger is closed when the answer comes after the end
            voice.say_once(
                "openmetrics",
                f"report.openmetrics_folder {folder}: {reason}; the run's metrics go there at the end of the job, "
                "when a file can be written there by then",
            )


def report(folder: Path, wanted: ReportOptions, silence: str | None) -> int:
    """Make the report, send it on where asked for, tell where it is; 0 when it was made.

    ``silence`` says why no markers came, if so.
    """
    try:
        from eerl_launch.report import write_report

        paths = write_report(folder, wanted.formats)
    except Exception as error:
        say(f"the report failed ({error!r}); the ledger is complete: eerl report {folder}")
        return 1
    if silence is not None:
        say(f'no markers came, so only the whole job is measured{silence}; see README, "Markers"')
    for line in [*paths.summary.splitlines(), f"report: {folder}"]:
        say(line)
    if wanted.to and paths.report is not None:
        _send_on(folder, wanted, paths.report)
    return 0


def _send_on(folder: Path, wanted: ReportOptions, made: Report) -> None:
    """To the outlets, within bounds; what fails there is told, and is no failure of the run."""
    try:
        from eerl_launch.outlets.delivery import JOB_PATIENCE_S, deliver
        from eerl_launch.outlets.parcel import pack

        for sent in deliver(wanted.to, pack(made, folder, wanted.openmetrics_folder), JOB_PATIENCE_S):
            again = (
                "" if sent.delivered else f"; once mended: eerl report {quote(str(folder))} --to {sent.name}"
            )
            if again and sent.name == "openmetrics" and wanted.openmetrics_folder:
                again += f" --openmetrics-folder {quote(wanted.openmetrics_folder)}"
            say(f"{sent.name}: {sent.text}{again}")
    except Exception as error:
        say(f"the report was not sent on ({error!r}): eerl report {folder} --to {' --to '.join(wanted.to)}")


def show_life() -> None:
    """A byte a second to the launcher while the end takes its time; for a thread of its own."""
    while True:
        try:
            os.write(1, b".")
        except OSError:
            return
        time.sleep(1.0)
