"""How much of a wide job the ledger holds by GPU: everything of a small one, sums where lines would be too many.

A thousand GPUs and sixty phases an update would be 4 MB of lines an update, forty gigabytes a run. So generation, in
which GPUs run out of work one by one, has joules by GPU in its lines; the other phases of an update have while there
are no more than :data:`MOST_VALUES`, those with most energy first. The rest say null, and ``gpu_phases`` lines have
their sums since the run began. Joules by GPU are written to the millijoule, which is what NVML's counter resolves
(``nvmlDeviceGetTotalEnergyConsumption``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Joules = Mapping[str, float | None]

#: Joules by phase and GPU that the lines of one update may hold: about 50 kB.
MOST_VALUES = 1024
_GENERATION = "generation"
#: Updates between two lines with the sums; a killed run loses the phases by GPU of as many.
UPDATES_BETWEEN = 100
#: Jobs of more GPUs write the running totals by GPU this seldom for each GPU.
MOST_GPUS_EVERY_TICK = 256
TICK_S_PER_GPU = 0.5


def millijoules(joules: Joules) -> dict[str, float | None]:
    """The joules by GPU, rounded to what the counter resolves."""
    return {uuid: None if value is None else round(value, 3) for uuid, value in joules.items()}


class GpuDetail:
    """Decides on the phases of one run; to be shown the lines of every update, in order."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, bool], dict[str, float]] = {}
        self._t_s = 0.0
        self._unsaid = 0

    def thin(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The ``phase`` lines of one update as they are to be written, and the sums when they are due."""
        kept = _kept(lines)
        written = []
        for place, line in enumerate(lines):
            joules = line["gpu_energy_j"]
            if place in kept:
                written.append({**line, "gpu_energy_j": millijoules(joules)})
            else:
                written.append({**line, "gpu_energy_j": None, "gpus": len(joules)})
                self._add(line)
        if len(kept) < len(lines):
            self._unsaid += 1
        return written + (self.rest() if self._unsaid >= UPDATES_BETWEEN else [])

    def _add(self, line: Mapping[str, Any]) -> None:
        sums = self._sums.setdefault((line["phase"], line["exclusive"]), {})
        for uuid, joules in line["gpu_energy_j"].items():
            if joules is not None:
                sums[uuid] = sums.get(uuid, 0.0) + joules
        self._t_s = line["t_s"]

    def rest(self) -> list[dict[str, Any]]:
        """The ``gpu_phases`` line, when there is anything that no line has told yet."""
        if not self._unsaid:
            return []
        self._unsaid = 0
        uuids = dict.fromkeys(uuid for sums in self._sums.values() for uuid in sums)
        by_gpu = {
            uuid: [round(sums[uuid], 3) if uuid in sums else None for sums in self._sums.values()]
            for uuid in uuids
        }
        phases = [name for name, _ in self._sums]
        exclusive = [whole for _, whole in self._sums]
        fields = {"phases": phases, "exclusive": exclusive, "gpu_phase_energy_j": by_gpu}
        return [{"ev": "gpu_phases", "t_s": self._t_s, **fields}]


def _kept(lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The places of the lines that keep their joules by GPU."""

    def rank(place: int) -> tuple[bool, float]:
        return lines[place]["phase"] != _GENERATION, -(lines[place]["energy_j"] or 0.0)

    kept, room = set(), MOST_VALUES
    for place in sorted(range(len(lines)), key=rank):
        values = len(lines[place]["gpu_energy_j"])
        if lines[place]["phase"] == _GENERATION or values <= room:
            kept.add(place)
            room -= values
    return kept


class TickDetail:
    """Decides how often the running totals are written by GPU."""

    def __init__(self) -> None:
        self._due_s = float("-inf")

    def totals(self, cumulative_j: Joules, now_s: float) -> dict[str, float | None] | None:
        """Joules by GPU since the run began for a ``tick``; None when it is too early to write so many again.

        ``now_s`` is in seconds of any steady clock.
        """
        if len(cumulative_j) > MOST_GPUS_EVERY_TICK:
            if now_s < self._due_s:
                return None
            self._due_s = now_s + TICK_S_PER_GPU * len(cumulative_j)
        return millijoules(cumulative_j)
