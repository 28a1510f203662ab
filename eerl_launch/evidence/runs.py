"""A run's ledger as a frame with a row per update, and what is wrong with it.

Positions count from 1 in the order of the ledger: the trainer's own labels may repeat, or begin at 0.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eerl_launch.errors import EerlError, LedgerError
from eerl_launch.ledger import FILE_NAME
from eerl_launch.report.rows import Run, UpdateRow
from eerl_launch.report.tables import read_run
from eerl_launch.report.values import number
from eerl_launch.report.works import read_record

#: An update whose begin, end and duration disagree by more than this has lived through a step of a clock.
TIME_SLACK = 0.01
TIME_SLACK_S = 0.05
#: A ledger that has not grown for so long is of a session that is gone.
SILENT_S = 120.0
ODD_TIMES = "whose times do not add up (a clock was set meanwhile?)"
#: A record's phases by what their work is counted in (appendix E); what is in neither is the rest.
PARTS = {"generation": ("generation",), "training": ("training", "logprob", "critic")}
#: What visits an update and is no part of its work: compared, it stands as measured on both sides.
VISITS = ("validation", "checkpoint")


class EvidenceError(EerlError):
    """Runs from which this table cannot be made; the text says why."""


@dataclass(slots=True)
class RunData:
    """A run: ``frame`` has a row per position, unknown as NaN; ``problems`` are worth a line each.

    ``name`` is what it is called in tables.
    """

    folder: Path
    run: Run
    frame: pd.DataFrame
    name: str
    problems: list[str] = field(default_factory=list)

    @property
    def policy(self) -> str:
        """The policy it ran under, as its ledger says."""
        return str(self.run.policy.get("policy") or "unknown")

    @property
    def is_governor(self) -> bool:
        """Whether no clock was ever lowered."""
        return bool(len(self.frame)) and bool((self.frame["governor"] == 1.0).all())

    @property
    def lock_position(self) -> int | None:
        """The position of the first update after the lock, None when the controller never locked."""
        locked = self.frame.index[self.frame["state"] == "locked"]
        return int(locked[0]) if len(locked) else None


def load_run(folder: Path) -> RunData:
    """The run in ``folder``.

    Raises :class:`LedgerError` for what is no ledger and :class:`EvidenceError` for one without any update or
    whose run goes on.
    """
    run = read_run(folder)
    where = folder.parent if folder.is_file() else folder
    if run.lines == 0:
        raise LedgerError(f"{where / FILE_NAME}: the ledger is empty: the run ended before it began")
    problems = []
    if run.damage is not None:
        problems.append(f"the ledger is damaged and is used up to there: {run.damage}")
    elif run.end is None:
        if still_going(where):
            raise EvidenceError(f"{where}: the run is still going; compare it when it has ended")
        problems.append("the ledger has no end: the run was killed, and counts up to its last whole update")
    if not run.updates:
        raise EvidenceError(f"{where}: the ledger holds no update, so there is nothing to compare")
    left_out: Counter[str] = Counter()
    last_end_s = -math.inf
    rows = []
    for row in run.updates:
        reason = _unusable(row, last_end_s)
        if row.end_s is not None:
            last_end_s = max(last_end_s, row.end_s)
        if reason is not None:
            left_out[reason] += 1
        rows.append(_row(row, reason))
    problems += [f"{count} updates left out: {reason}" for reason, count in left_out.most_common()]
    frame = pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="position"))
    return RunData(where, run, frame, run_name(where), problems)


def run_name(folder: Path) -> str:
    """What a run is called in tables: the name of its folder, or of the folder that its ledger is in."""
    where = folder.resolve()
    return one_line((where.parent if where.is_file() else where).name) or str(folder)


def one_line(name: str) -> str:
    """A name that would break the lines of a table, without the breaks."""
    return " ".join(name.split())


def still_going(folder: Path) -> bool:
    """Whether the session of a ledger without an end is at work.

    Its note of where it listens goes with it. Killed with -9 it leaves the note: then its socket refuses, and
    where this machine cannot see the socket, the ledger no longer grows (a running session writes every 10 s).
    """
    from eerl_launch.control import NOTE_NAME, ControlError, ask

    if not (folder / NOTE_NAME).exists():
        return False
    try:
        ask(folder, "status")
    except ControlError as error:
        if "is on node" not in str(error):
            return False
        return time.time() - (folder / FILE_NAME).stat().st_mtime < SILENT_S
    return True


def _unusable(row: UpdateRow, last_end_s: float) -> str | None:
    """Why an update cannot be compared, None when it can."""
    if row.elapsed_s is None or row.elapsed_s <= 0:
        return "without a measured time"
    if not times_add_up(row, last_end_s):
        return ODD_TIMES
    if row.energy_j is None or row.energy_j <= 0 or "partial_energy" in row.flags:
        return "without measured energy of all GPUs"
    if not row.valid_tokens or row.valid_tokens < 0:
        return "without valid training tokens"
    return None


def times_add_up(row: UpdateRow, last_end_s: float) -> bool:
    """Whether an update's begin, end and duration agree, and it begins no earlier than the one before ended."""
    if row.begin_s is None or row.end_s is None or row.elapsed_s is None:
        return True
    slack_s = TIME_SLACK_S + TIME_SLACK * row.elapsed_s
    return abs(row.end_s - row.begin_s - row.elapsed_s) <= slack_s and row.begin_s >= last_end_s - slack_s


def _row(row: UpdateRow, reason: str | None) -> dict[str, Any]:
    counts = {
        name: math.nan if value is None else value
        for name, value in (
            ("elapsed_s", row.elapsed_s),
            ("energy_j", row.energy_j),
            ("valid_tokens", row.valid_tokens),
            ("generated_tokens", row.generated_tokens),
            ("longest_tokens", row.longest_response_tokens),
            ("longest_consumed_tokens", number(row.record.get("longest_consumed_tokens"))),
            ("responses", row.responses),
            ("reward", row.reward),
            ("generation_mhz", row.generation_mhz),
            ("training_mhz", row.training_mhz),
            ("governor", None if row.governor is None else float(row.governor)),
        )
    }
    return {
        "label": row.update,
        **counts,
        **_parts(row),
        "not_honoured": "not_honoured" in row.flags,
        "state": row.state,
        "usable": reason is None,
        "reason": reason,
    }


def _parts(row: UpdateRow) -> dict[str, float]:
    """Seconds and joules of generation, training, visits, the rest, and the update's own (all but visits).

    NaN where the record does not tell them apart; of visits that it does not tell, nothing is known and 0 taken.
    """
    phases = row.record.get("phases")
    found: dict[str, float] = {}
    for unit, whole in (("elapsed_s", row.elapsed_s), ("energy_j", row.energy_j)):
        sums = dict.fromkeys((*PARTS, "visits"), 0.0)
        for name, entry in phases.items() if isinstance(phases, dict) else ():
            head = str(name).split("/", 1)[0]
            part = next((part for part, names in PARTS.items() if head in names), None)
            value = number(entry.get(unit)) if isinstance(entry, dict) else None
            if head in VISITS:
                sums["visits"] += value or 0.0
            elif part is not None:
                sums[part] += math.nan if value is None else value
        own = (math.nan if whole is None else whole) - sums["visits"]
        found |= {f"{part}_{unit}": sums[part] or math.nan for part in PARTS}
        found[f"visits_{unit}"] = sums["visits"]
        found[f"own_{unit}"] = own
        found[f"rest_{unit}"] = own - sum(sums[part] for part in PARTS)
    return found


def same_folder(one: Path, other: Path) -> bool:
    """Whether two names mean the same run."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def same_run(one: Run, other: Run) -> bool:
    """Whether two ledgers are of one run: copies of it agree to a degree that no two runs do."""
    left, right = (run.start.get("run_id") for run in (one, other))
    return left is not None and left == right


__all__ = [
    "EvidenceError",
    "RunData",
    "load_run",
    "one_line",
    "read_record",
    "run_name",
    "same_folder",
    "same_run",
]
