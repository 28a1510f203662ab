"""Profiles of runs and the runs side by side as one JSON-able mapping, which text, page and CSV all show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eerl_launch.errors import LedgerError, OptionError
from eerl_launch.evidence.runs import one_line, run_name, same_folder, same_run
from eerl_launch.profiles.axes import Told, describe, parse_labels
from eerl_launch.profiles.comparison import compare_profiles
from eerl_launch.profiles.gather import Gathered, gather
from eerl_launch.profiles.imbalance import imbalance
from eerl_launch.profiles.responses import responses
from eerl_launch.profiles.rewards import reward_cost
from eerl_launch.profiles.signatures import NO_TOKENS, signature
from eerl_launch.report.totals import ASYNCHRONOUS
from eerl_launch.report.values import table, text

SCHEMA = "eerl.profile"
SCHEMA_VERSION = 1

#: Numbers as measured, nothing rounded.
Document = dict[str, Any]


@dataclass(slots=True)
class Profiles:
    """The document, and the runs it was made of for pictures over their updates."""

    document: Document
    runs: list[Gathered] = field(default_factory=list)


def profile(
    folders: Sequence[Path], labels: Sequence[str] = (), clocks: str = "all", skip: int = 0
) -> Profiles:
    """The profiles of the runs in ``folders``, of their updates under these ``clocks`` after the first ``skip``.

    A ledger that cannot be used is named under ``unreadable`` with the reason; with no usable one that reason is
    raised as :class:`LedgerError`. Of copies of one run the longest counts, the first where they are alike, and the
    others are named under ``copies``. A label that cannot be one raises :class:`OptionError`.
    """
    for place, folder in enumerate(folders):
        if any(same_folder(folder, other) for other in folders[:place]):
            raise OptionError(f"{folder}: given twice")
    found, unreadable, first = {}, [], None
    for place, folder in enumerate(folders):
        try:
            found[place] = gather(folder, clocks, skip)
        except LedgerError as error:
            unreadable.append({"folder": str(folder), "reason": str(error)})
            first = first or error
    if first is not None and not found:
        raise LedgerError("\n".join(row["reason"] for row in unreadable)) from first
    copies = _copies(found)
    places = [place for place in found if place not in copies]
    runs = [found[place] for place in places]
    names = [run_name(folder) for folder in folders]
    names = [
        name if names.count(name) == 1 else one_line(str(folder))
        for name, folder in zip(names, folders, strict=True)
    ]
    by_place = parse_labels(labels, names)
    described = []
    for place, run in zip(places, runs, strict=True):
        run.name = names[place]
        described.append(describe(run, by_place[place]))
    document: Document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "simulated": next((run.run.simulated for run in runs if run.run.simulated), None),
        "clocks": clocks,
        "runs": [_profile(run, axes) for run, axes in zip(runs, described, strict=True)],
        "unreadable": unreadable,
        "copies": [
            {"folder": str(folders[place]), "reason": f"{folders[place]}: the same run as {folders[kept]}"}
            for place, kept in copies.items()
        ],
        "comparison": None,
    }
    if len(runs) > 1:
        document["comparison"] = compare_profiles(document["runs"], runs, described)
    return Profiles(document, runs)


def _copies(found: Mapping[int, Gathered]) -> dict[int, int]:
    """The runs that are copies, each with the one that counts in its stead, by their places."""
    copies: dict[int, int] = {}
    for place, data in found.items():
        same = [other for other in found if other == place or same_run(found[other].run, data.run)]
        kept = max(same, key=lambda other: found[other].run.lines)
        if kept != place:
            copies[place] = kept
    return copies


def _profile(run: Gathered, axes: Mapping[str, Told]) -> dict[str, Any]:
    rows = signature(run)
    problems = list(run.problems)
    if not any(row["updates_with_tokens"] for row in rows):
        problems.append(NO_TOKENS)
    if run.run.mode in ASYNCHRONOUS:
        problems.append(
            "generation and training run at the same time: shares of time add up to more than the whole"
        )
    return {
        "run": run.name,
        "folder": str(run.folder),
        "time_iso": text(run.run.start.get("time_iso")),
        "simulated": run.run.simulated,
        "eerl_version": text(table(run.run.start.get("versions")).get("eerl")),
        "axes": {axis: {"value": told.value, "origin": told.origin} for axis, told in axes.items()},
        "gpus": run.gpus,
        "updates": len(run.updates),
        "updates_in_ledger": len(run.run.updates),
        "lowered_updates": sum(row.governor is not True for row in run.updates),
        "problems": problems,
        "signature": rows,
        "responses": responses(run),
        "imbalance": imbalance(run),
        "reward": reward_cost(run, rows, axes["reward"].value),
    }
