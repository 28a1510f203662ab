"""Which GPUs and nodes differ from the others of the same pool: in power, clock, idle, capped and slowed share.

Compared is with the median of the pool. Something stands out when it is further off than the others scatter (four
times the scaled median absolute deviation) and by more than matters; the farthest is named in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

#: Fewer than this many cannot tell which of them is the odd one.
LEAST_COMPARED = 3
#: Scaled to a normal distribution's standard deviation, and how many of them are more than scatter.
_SCALE, _DEVIATIONS = 1.4826, 4.0


@dataclass(frozen=True, slots=True)
class Question:
    """One end of one quantity. ``least`` is the difference that matters, a share of the median when ``relative``."""

    quantity: str
    highest: bool
    least: float
    relative: bool
    words: str


QUESTIONS = (
    Question("mean_power_w", False, 0.05, True, "least power"),
    Question("mean_power_w", True, 0.05, True, "most power"),
    Question("achieved_mhz", False, 0.02, True, "lowest clock while busy"),
    Question("idle_fraction", True, 0.05, False, "most idle"),
    Question("capped_fraction", True, 0.1, False, "most under a power cap"),
    Question("slowed_fraction", True, 0.01, False, "most slowed by heat or hardware protection"),
)

Row = Mapping[str, Any]


def standouts(gpus: Sequence[Row], nodes: Sequence[Row]) -> list[dict[str, Any]]:
    """For each question the farthest GPU and node, and how many of them stand out; rows as in the document."""
    pools: dict[tuple[str, ...], list[Row]] = {}
    for gpu in gpus:
        pools.setdefault(tuple(gpu["pools"]), []).append(gpu)
    by_node: dict[tuple[str, ...], list[Row]] = {}
    for node in nodes:
        kinds = {tuple(gpu["pools"]) for gpu in gpus if gpu["node"] == node["node"]}
        if len(kinds) == 1:  # a node with GPUs of two pools has no equals
            share = {**node, "mean_power_w": None}
            if node["mean_power_w"] is not None and node["gpus"]:
                share["mean_power_w"] = node["mean_power_w"] / node["gpus"]
            by_node.setdefault(kinds.pop(), []).append(share)
    return [
        {
            "question": question.words,
            "quantity": question.quantity,
            "gpu": _farthest(question, pools.values()),
            "node": _farthest(question, by_node.values()),
        }
        for question in QUESTIONS
    ]


def _farthest(question: Question, pools: Iterable[Sequence[Row]]) -> dict[str, Any] | None:
    """The member that is farthest off, by what would stand out in its own pool; None when nothing is known."""
    found: list[tuple[float, float, Row]] = []
    for members in pools:
        known = [
            (float(row[question.quantity]), row) for row in members if row[question.quantity] is not None
        ]
        if len(known) < LEAST_COMPARED:
            continue
        middle = median(value for value, _ in known)
        scatter = median(abs(value - middle) for value, _ in known)
        limit = max(
            question.least * (abs(middle) if question.relative else 1.0), _DEVIATIONS * _SCALE * scatter
        )
        sign = 1.0 if question.highest else -1.0
        found += [(sign * (value - middle) / limit if limit else 0.0, middle, row) for value, row in known]
    if not found:
        return None
    distance, middle, row = max(found, key=lambda entry: entry[0])
    return {
        "node": row["node"],
        "index": row.get("index"),
        "uuid": row.get("uuid"),
        "value": row[question.quantity],
        "median": middle,
        "stands_out": distance > 1.0,
        "standing_out": sum(entry[0] > 1.0 for entry in found),
        "compared": len(found),
    }
