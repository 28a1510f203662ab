"""A ledger as arrays: a place per update, for the update's own numbers and for each phase that ran in it.

Unknown is NaN; a phase that did not run in an update is NaN there too.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from eerl_launch.errors import LedgerError
from eerl_launch.evidence.runs import ODD_TIMES, run_name, still_going, times_add_up
from eerl_launch.ledger import FILE_NAME
from eerl_launch.profiles.details import Details, GenerationRun
from eerl_launch.profiles.spread import UNKNOWN, Values, as_array
from eerl_launch.report import units
from eerl_launch.report.rows import PhaseRow, Run, UpdateRow
from eerl_launch.report.tables import read_run
from eerl_launch.report.values import number, table

#: Under which clocks the updates of a profile ran.
CLOCKS = ("all", "governor", "lowered")
#: First updates that take so many times the median are compilation and caches.
SLOW = 1.5


class ProfileError(LedgerError):
    """A ledger that holds nothing to profile; the text says what is missing."""


@dataclass(slots=True)
class Phase:
    """A phase over the updates: seconds, joules, and its busy, capped and clock shares weighted by its seconds.

    ``exclusive``: part of the disjoint partition of an update. ``gpus``: how many GPUs it has. ``estimated``: in
    how many of its runs the energy is one of low confidence, and ``estimated_reason`` why.
    """

    name: str
    exclusive: bool
    elapsed_s: Values
    energy_j: Values
    busy_s: Values
    busy_known_s: Values
    capped_s: Values
    capped_known_s: Values
    mhz_s: Values
    mhz_known_s: Values
    gpus: int = 0
    runs: int = 0
    incomplete: int = 0
    estimated: int = 0
    estimated_reason: str | None = None

    @property
    def ran(self) -> NDArray[np.bool_]:
        """The updates in which it ran."""
        return np.isfinite(self.elapsed_s)


def empty_phase(name: str, exclusive: bool, updates: int) -> Phase:
    """A phase that never ran."""
    unknown, none = np.full(updates, UNKNOWN), np.zeros(updates)
    return Phase(
        name,
        exclusive,
        elapsed_s=unknown,
        energy_j=unknown.copy(),
        busy_s=none,
        busy_known_s=none.copy(),
        capped_s=none.copy(),
        capped_known_s=none.copy(),
        mhz_s=none.copy(),
        mhz_known_s=none.copy(),
    )


@dataclass(slots=True)
class Gathered:
    """A run's updates that count, as arrays, and what is wrong with its ledger (``problems``, a line each)."""

    name: str
    folder: Path
    run: Run
    updates: list[UpdateRow]
    phases: list[Phase]
    generations: list[GenerationRun]
    details: Details
    clocks: str = "all"
    problems: list[str] = field(default_factory=list)

    def values(self, name: str) -> Values:
        """A number of the updates by its field name, NaN where unknown or negative."""
        found = as_array([getattr(row, name) for row in self.updates])
        found[found < 0] = UNKNOWN
        return found

    @property
    def energy_j(self) -> Values:
        """Joules of whole updates, NaN where not all of it was measured."""
        found = self.values("energy_j")
        found[[("partial_energy" in row.flags) for row in self.updates]] = UNKNOWN
        return found

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return len(self.run.gpus)


def gather(folder: Path, clocks: str = "all", skip: int = 0) -> Gathered:
    """The ledger in ``folder``, of the updates under these ``clocks`` (of :data:`CLOCKS`) after the first ``skip``.

    Raises :class:`LedgerError` for what is no ledger and :class:`ProfileError` when no whole update is in it.
    """
    details = Details()
    run = read_run(folder, details.take)
    where = folder.parent if folder.is_file() else folder
    if run.lines == 0:
        raise LedgerError(f"{where / FILE_NAME}: the ledger is empty: the run ended before it began")
    problems = _state_of_ledger(run, where)
    updates, left_out = _counting(run, clocks, skip)
    problems += [f"{count} updates left out: {reason}" for reason, count in left_out.most_common()]
    if not updates:
        why = f" ({left_out.most_common(1)[0][0]})" if left_out else ""
        raise ProfileError(f"{where}: no whole update to make a profile of{why}")
    problems += _slow_start(updates)
    places = {row.index: place for place, row in enumerate(updates)}
    found = _phases(run, details, places)
    if not found:
        found = _phases_of_records(updates)
        problems.append("the ledger has no phase lines: phases are those of the records, without subphases")
    generations = details.placed(run.phases, places)
    return Gathered(run_name(where), where, run, updates, found, generations, details, clocks, problems)


def _state_of_ledger(run: Run, where: Path) -> list[str]:
    if run.damage is not None:
        return [f"the ledger is damaged and is used up to there: {run.damage}"]
    if run.end is None and still_going(where):
        return ["the run is still going: this is its profile so far"]
    if run.end is None:
        return ["the ledger has no end: the run was killed, and counts up to its last whole update"]
    return []


def _slow_start(updates: list[UpdateRow]) -> list[str]:
    """A word about first updates that are no measure of the others: compilation, caches."""
    usual_s = median(row.elapsed_s or 0.0 for row in updates)
    slow = next((place for place, row in enumerate(updates) if (row.elapsed_s or 0.0) <= SLOW * usual_s), 0)
    if not slow:
        return []
    return [
        f"it starts with {units.count(slow, 'update')} far slower than usual, which count: --skip {slow} omits them"
    ]


def _counting(run: Run, clocks: str, skip: int) -> tuple[list[UpdateRow], Counter[str]]:
    """The updates that count, and why others do not."""
    kept: dict[int, UpdateRow] = {}
    left_out: Counter[str] = Counter()
    last_end_s = -math.inf
    for row in run.updates:
        odd = not times_add_up(row, last_end_s)
        last_end_s = max(last_end_s, row.end_s or last_end_s)
        if skip > 0:
            skip -= 1
            left_out["the first ones, as asked"] += 1
        elif row.elapsed_s is None or row.elapsed_s <= 0:
            left_out["without a measured time"] += 1
        elif odd:
            left_out[ODD_TIMES] += 1
        elif clocks != "all" and row.governor is not (clocks == "governor"):
            left_out[f"not {'under the governor' if clocks == 'governor' else 'under lowered clocks'}"] += 1
        else:
            if row.index in kept:
                left_out["told twice; the later line counts"] += 1
            kept[row.index] = row
    return list(kept.values()), left_out


def _phases(run: Run, details: Details, places: dict[int, int]) -> list[Phase]:
    """All phases, top-level ones in the order in which they first ran, each followed by its subphases."""
    found: dict[tuple[str, bool], Phase] = {}
    for row in run.phases:
        place = None if row.index is None else places.get(row.index)
        if place is None or row.elapsed_s is None or row.elapsed_s < 0:
            continue
        key = (row.phase, row.exclusive)
        if key not in found:
            found[key] = empty_phase(row.phase, row.exclusive, len(places))
        _add(found[key], row, place)
    for (name, _), phase in found.items():
        phase.gpus = details.gpus_of.get(name, 0) or len(run.gpus)
    order: dict[str, int] = {}
    for name, _ in found:
        order.setdefault(name.split("/", 1)[0], len(order))
    return sorted(found.values(), key=lambda phase: (order[phase.name.split("/", 1)[0]], "/" in phase.name))


def _add(phase: Phase, row: PhaseRow, place: int) -> None:
    seconds = row.elapsed_s or 0.0
    joules = UNKNOWN if row.energy_j is None or row.energy_j < 0 else row.energy_j
    if phase.ran[place]:
        phase.elapsed_s[place] += seconds
        phase.energy_j[place] += joules
    else:
        phase.elapsed_s[place], phase.energy_j[place] = seconds, joules
    phase.runs += 1
    phase.incomplete += not row.complete
    if row.energy_reason:
        phase.estimated += 1
        phase.estimated_reason = phase.estimated_reason or row.energy_reason
    for value, into, known_s in (
        (row.busy_fraction, phase.busy_s, phase.busy_known_s),
        (row.capped_fraction, phase.capped_s, phase.capped_known_s),
        (row.achieved_mhz, phase.mhz_s, phase.mhz_known_s),
    ):
        if value is not None:
            into[place] += value * seconds
            known_s[place] += seconds


def _phases_of_records(updates: list[UpdateRow]) -> list[Phase]:
    """The phases that the updates' records have, where a ledger has no lines of its own for them."""
    found: dict[str, Phase] = {}
    for place, row in enumerate(updates):
        for name, entry in table(row.record.get("phases")).items():
            elapsed_s, energy_j = (number(table(entry).get(key)) for key in ("elapsed_s", "energy_j"))
            if elapsed_s is not None and elapsed_s >= 0:
                line = PhaseRow(str(name), elapsed_s=elapsed_s, energy_j=energy_j)
                if "partial_energy" in row.flags:
                    line.energy_j = None
                found.setdefault(str(name), empty_phase(str(name), True, len(updates)))
                _add(found[str(name)], line, place)
    return list(found.values())
