"""The updates as they are compared with the governor: measured, read back as records, and which are references."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from eerl_launch.report.rows import Run, UpdateRow
from eerl_launch.report.values import number

if TYPE_CHECKING:
    from eerl_controller import UpdateRecord

#: Phases that are not an update's own work; the model takes them as they were measured, on both sides.
VISITING = ("validation", "checkpoint")


@dataclass(slots=True)
class Work:
    """One update: measured, and as the governor would have had it.

    ``excess_s`` and ``excess_j`` are a straggler's, for which nothing is claimed. ``place`` is the update's place
    among those that hindsight sees, ``entry`` what stands for it there.
    """

    row: UpdateRow
    record: UpdateRecord
    elapsed_s: float
    energy_j: float
    governor_elapsed_s: float = math.nan
    governor_energy_j: float = math.nan
    reference: bool = False
    excess_s: float = 0.0
    excess_j: float = 0.0
    straggled: bool = False
    place: int = -1
    entry: int | None = None


def comparable(run: Run) -> tuple[list[Work], Counter[str]]:
    """The updates that can be compared, and how many cannot, by reason."""
    works: list[Work] = []
    left_out: Counter[str] = Counter()
    for row in run.updates:
        work = _work(row)
        if isinstance(work, str):
            left_out[work] += 1
        else:
            works.append(work)
    return works, left_out


def _work(row: UpdateRow) -> Work | str:
    """The update as it is compared, or why it cannot be."""
    visits = {name: entry for name, entry in _tables(row.record.get("phases")).items() if name in VISITING}
    if row.elapsed_s is None or row.elapsed_s <= 0 or row.energy_j is None or row.energy_j <= 0:
        return "without measured time or energy"
    if "partial_energy" in row.flags:
        return "with partly measured energy"
    if row.governor is not True:
        if not has_counts(row):
            return "without token counts"
        if any(name in row.flags and name not in visits for name in VISITING):
            return "with validation or checkpoint inside another phase"
        if any(number(entry.get("energy_j")) is None for entry in visits.values()):
            return "with validation or checkpoint of unknown energy"
    record = read_record(row.record)
    if record is None:
        return "with a record that cannot be read"
    return Work(row, record, row.elapsed_s, row.energy_j)


def has_counts(row: UpdateRow) -> bool:
    """Whether the update has the token counts that equal work is judged by, none of them zero."""
    return bool(row.valid_tokens and row.generated_tokens)


def read_record(values: Mapping[str, Any]) -> UpdateRecord | None:
    """The controller's record from its line in the ledger; None when it is not one."""
    from eerl_controller import FLAGS, PhaseRecord, PoolRecord, RecordError, UpdateRecord

    known = {item.name for item in fields(UpdateRecord)} - {"phases", "pools", "flags"}
    flags = values.get("flags")
    try:
        return UpdateRecord(
            **{key: value for key, value in values.items() if key in known},
            phases={
                name: PhaseRecord(elapsed_s=entry.get("elapsed_s"), energy_j=entry.get("energy_j"))
                for name, entry in _tables(values.get("phases")).items()
            },
            pools={
                name: PoolRecord(**{item.name: entry.get(item.name) for item in fields(PoolRecord)})
                for name, entry in _tables(values.get("pools")).items()
            },
            flags=frozenset(flag for flag in flags if flag in FLAGS)
            if isinstance(flags, list)
            else frozenset(),
        )
    except (RecordError, TypeError):
        return None


def _tables(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): entry for name, entry in value.items() if isinstance(entry, Mapping)}
