"""What only the ledger's single lines tell: generation GPU by GPU, GPUs of each phase, and lengths of responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eerl_launch.ledger import Event
from eerl_launch.profiles.spread import UNKNOWN, Values
from eerl_launch.report.rows import PhaseRow
from eerl_launch.report.values import number, table, text, whole

GENERATION = "generation"
#: The metric that carries the lengths of an update's responses: ``value`` is their mean, the rest is beside it.
LENGTHS_METRIC = "response_length_tokens"
#: What is beside it: quantiles of the lengths in tokens.
QUANTILES = ("p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
#: Metrics so named are data that was moved, in bytes; those of the reward paradigm begin with ``reward``.
BYTES_SUFFIX = "_bytes"


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """One run of generation, GPU by GPU: joules, and seconds idle at its end (None: the ledger does not tell)."""

    place: int
    elapsed_s: float
    uuids: tuple[str, ...]
    energy_j: Values
    idle_tail_s: Values | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of one update's responses in tokens, as the trainer told them."""

    mean: float
    responses: float
    quantiles: dict[str, float]


class Details:
    """Takes a ledger's events as they are read."""

    def __init__(self) -> None:
        self.gpus_of: dict[str, int] = {}
        self.lengths: dict[int, Lengths] = {}
        self.bytes_moved: dict[str, dict[int | None, float]] = {}
        self._runs: list[tuple[tuple[str, ...], Values, Values | None]] = []
        self._uuids: tuple[str, ...] = ()

    def take(self, event: Event) -> None:
        """Account for one event."""
        if event["ev"] == "phase":
            self._phase(event)
        elif event["ev"] == "metric":
            self._metric(event)

    def _phase(self, event: Event) -> None:
        name = text(event.get("phase")) or "unnamed"
        joules = table(event.get("gpu_energy_j"))
        self.gpus_of[name] = max(self.gpus_of.get(name, 0), whole(event.get("gpus")) or len(joules))
        if name != GENERATION or event.get("exclusive", True) is not True:
            return
        uuids = tuple(joules)
        if uuids == self._uuids:
            uuids = self._uuids  # one tuple for all lines, not one a line
        self._uuids = uuids
        tails = event.get("gpu_idle_tail_s")
        self._runs.append(
            (
                uuids,
                _array(joules, uuids),
                _array(tails, uuids) if isinstance(tails, dict) and tails else None,
            )
        )

    def _metric(self, event: Event) -> None:
        name, value, update = text(event.get("name")), number(event.get("value")), whole(event.get("update"))
        if name is None or value is None or value < 0:
            return
        if name.endswith(BYTES_SUFFIX):
            sums = self.bytes_moved.setdefault(name, {})
            sums[update] = sums.get(update, 0.0) + value
        elif name == LENGTHS_METRIC and update is not None:
            told = {key: number(event.get(key)) for key in QUANTILES}
            found = Lengths(
                value,
                number(event.get("responses")) or 0.0,
                {key: tokens for key, tokens in told.items() if tokens is not None and tokens >= 0},
            )
            known = self.lengths.get(update)
            if known is None or found.responses >= known.responses:  # of several senders, who has seen most
                self.lengths[update] = found

    def placed(self, rows: Sequence[PhaseRow], places: dict[int, int]) -> list[GenerationRun]:
        """The runs of generation in the updates that count; ``rows`` are the ledger's phase lines in order."""
        generation = [row for row in rows if row.phase == GENERATION and row.exclusive]
        return [
            GenerationRun(places[row.index], row.elapsed_s, *details)
            for row, details in zip(generation, self._runs, strict=True)
            if row.index in places and row.elapsed_s is not None and row.elapsed_s > 0
        ]


def _array(values: dict[str, object] | object, uuids: Sequence[str]) -> Values:
    """A number for each GPU, NaN where it is missing or cannot be one."""
    known = table(values)
    found = [number(known.get(uuid)) for uuid in uuids]
    return np.array([UNKNOWN if value is None or value < 0 else value for value in found], dtype=np.float64)
