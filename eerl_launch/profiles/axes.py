"""What a run is, axis by axis (model, algorithm, reward, task, scaling and what else may differ), and by whose word.

A label of the command line wins over what the trainer said in its ``run`` marker; neither speaks of what the ledger
shows. Nothing is guessed: an axis that nobody tells is unknown, and runs may differ in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eerl_launch.errors import OptionError
from eerl_launch.profiles.gather import Gathered
from eerl_launch.profiles.rewards import paradigm_of
from eerl_launch.report import units
from eerl_launch.report.values import text

#: Axes in the order of the tables; labels may add others.
AXES = (
    "model",
    "algorithm",
    "reward",
    "task",
    "scaling",
    "mode",
    "framework",
    "clocks",
    "responses",
    "hardware",
)
#: Fields of a ``run`` marker that tell an axis, best first.
_MARKER_FIELDS = {
    "model": ("model",),
    "algorithm": ("algorithm", "rl_policy"),
    "reward": ("reward", "reward_paradigm"),
    "task": ("task", "dataset"),
    "framework": ("framework",),
}


@dataclass(frozen=True, slots=True)
class Told:
    """A value and who said so (``label``, ``trainer``, ``ledger``, ``subphases``); both None when unknown."""

    value: str | None = None
    origin: str | None = None


def parse_labels(labels: Sequence[str], names: Sequence[str]) -> list[dict[str, str]]:
    """Labels ``axis=value`` (all runs) and ``RUN:axis=value`` for each of the runs with these names, in order.

    A run is also meant by its place, from 1. Raises :class:`OptionError` for what is neither.
    """
    found: list[dict[str, str]] = [{} for _ in names]
    for label in labels:
        head, equals, value = label.partition("=")
        run, colon, axis = head.rpartition(":")
        if not equals or not axis.strip() or not value.strip():
            raise OptionError(
                f"--label {label}: give axis=value, or RUN:axis=value, e.g. {names[0]}:reward=model"
            )
        places = [
            place
            for place, name in enumerate(names)
            if not colon or run in (name, str(place + 1), f"#{place + 1}")
        ]
        if not places:
            raise OptionError(f"--label {label}: no run is called {run!r}; runs are {', '.join(names)}")
        if axis.strip() in _LEDGER:
            raise OptionError(
                f"--label {label}: {axis.strip()} is measured, not told; labels are for other axes"
            )
        for place in places:
            found[place][axis.strip()] = value.strip()
    return found


def describe(run: Gathered, labels: Mapping[str, str]) -> dict[str, Told]:
    """The run along every axis, and along those that only labels name."""
    found = {axis: _told(run, axis) for axis in AXES}
    return found | {axis: Told(value, "label") for axis, value in labels.items()}


def _told(run: Gathered, axis: str) -> Told:
    for name in _MARKER_FIELDS.get(axis, ()):
        value = text(run.run.trainer.get(name))
        if value is not None:
            return Told(value, "trainer")
    if axis == "reward":
        paradigm = paradigm_of(run)
        return Told(paradigm, "subphases") if paradigm else Told()
    looked = _LEDGER.get(axis)
    value = looked(run) if looked else None
    return Told(value, "ledger") if value else Told()


def _scaling(run: Gathered) -> str | None:
    """GPU type and count, and over how many nodes."""
    names = Counter((gpu.name or "unknown GPU").removeprefix("NVIDIA ") for gpu in run.run.gpus.values())
    nodes = {gpu.node for gpu in run.run.gpus.values()}
    gpus = ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))
    return f"{gpus}, {units.count(len(nodes), 'node')}" if gpus else None


def _clocks(run: Gathered) -> str:
    """Under which clocks the updates of the profile ran."""
    if all(row.governor is True for row in run.updates):
        return "governor"
    return f"policy {run.run.policy.get('policy') or 'unknown'}"


def _responses(run: Gathered) -> str | None:
    counts = run.values("responses")
    known = counts[np.isfinite(counts)]
    return f"{float(np.median(known)):.0f} per update" if len(known) else None


_LEDGER: dict[str, Callable[[Gathered], str | None]] = {
    "scaling": _scaling,
    "mode": lambda run: run.run.mode,
    "clocks": _clocks,
    "responses": _responses,
    "hardware": lambda run: "simulated" if run.run.simulated else "real",
}


def differences(described: Sequence[Mapping[str, Told]]) -> list[dict[str, Any]]:
    """Each axis with the runs' values: ``differs`` is True, False, or None when a run's value is unknown."""
    axes = dict.fromkeys([*AXES, *(axis for run in described for axis in run)])
    rows = []
    for axis in axes:
        values = [run.get(axis, Told()) for run in described]
        known = {told.value for told in values if told.value is not None}
        unknown = any(told.value is None for told in values)
        rows.append(
            {
                "axis": axis,
                "values": [told.value for told in values],
                "origins": [told.origin for told in values],
                "differs": True if len(known) > 1 else None if unknown else False,
            }
        )
    return rows


def words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What may be laid to what: sentences on the axes in which runs differ, or may differ."""
    differing = [row["axis"] for row in rows if row["differs"]]
    unknown = [row["axis"] for row in rows if row["differs"] is None]
    if len(differing) > 1:
        found = [
            f"the runs differ in {len(differing)} axes ({', '.join(differing)}): a difference between them cannot be "
            "laid to one of these"
        ]
    elif differing:
        found = [f"the runs differ in {differing[0]} and in no other axis that is known"]
    else:
        found = ["the runs differ in no axis that is known: what differs is chance, or what nobody told"]
    if unknown:
        found.append(f"not known of every run: {', '.join(unknown)}; tell it with --label RUN:AXIS=VALUE")
    return found
