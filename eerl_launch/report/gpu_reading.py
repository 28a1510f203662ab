"""What a ledger says of each GPU, line by line: joules by phase and update, its own totals and load.

A long run of a wide job has ten million joules by GPU, so tables of the same GPUs are added up as whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import Any

from eerl_launch.ledger import Event
from eerl_launch.report.rows import GpuRow, Run
from eerl_launch.report.values import LARGEST, number, table, text, whole


class JouleSums:
    """Joules by GPU, summed over tables; quick while they are of the same GPUs in the same order."""

    def __init__(self) -> None:
        self._uuids: list[str] = []
        self._column: list[float] = []
        self._others: dict[str, float] = {}

    def add(self, joules: Mapping[str, Any]) -> float | None:
        """Take a table in; its own sum, None when one of its values is unknown or there is none."""
        values = list(joules.values())
        try:
            total = float(sum(values))
        except (TypeError, OverflowError):  # an unknown value, or none of ours
            return self._add_each(joules)
        if not values or not -LARGEST <= total <= LARGEST:
            return self._add_each(joules)
        uuids = list(joules)
        if not self._uuids:
            self._uuids, self._column = uuids, [0.0] * len(uuids)
        if uuids != self._uuids:
            return self._add_each(joules)
        self._column = list(map(add, self._column, values))
        return total

    def _add_each(self, joules: Mapping[str, Any]) -> float | None:
        known = {uuid: joule for uuid, value in joules.items() if (joule := number(value)) is not None}
        for uuid, joule in known.items():
            self._others[uuid] = self._others.get(uuid, 0.0) + joule
        return sum(known.values()) if known and len(known) == len(joules) else None

    def by_gpu(self) -> dict[str, float]:
        """The sum of every GPU of which any value was known."""
        sums = dict(zip(self._uuids, self._column, strict=True))
        for uuid, joule in self._others.items():
            sums[uuid] = sums.get(uuid, 0.0) + joule
        return sums


class GpuReading:
    """Takes the parts of events that are of single GPUs into a :class:`Run`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cumulative_j: dict[str, Any] = {}
        self._updates = JouleSums()
        self._phases: dict[tuple[str, bool], JouleSums] = {}
        self._summed: Event = {}

    def gpu(self, uuid: str) -> GpuRow:
        """The row of a GPU."""
        return self._run.gpus.setdefault(uuid, GpuRow(uuid))

    def of_node(self, event: Event, node: str) -> None:
        """The GPUs that a node has."""
        gpus = event.get("gpus")
        for entry in gpus if isinstance(gpus, list) else []:
            uuid = text(table(entry).get("uuid"))
            if uuid is None:
                continue
            gpu = self.gpu(uuid)
            gpu.node = node
            gpu.index = whole(entry.get("index"))
            gpu.name = text(entry.get("name"))
            gpu.scope = text(entry.get("energy_scope")) or "unknown"
            gpu.mig = entry.get("mig") is True

    def totals(self, event: Event) -> None:
        """Joules since the run began."""
        joules = table(event.get("gpu_energy_j"))
        if None in joules.values():
            joules = {uuid: value for uuid, value in joules.items() if value is not None}
        self._cumulative_j.update(joules)

    def of_phase(self, name: str, exclusive: bool, event: Event) -> float | None:
        """Joules by GPU in one run of a phase; their sum, None when one is unknown."""
        joules = event.get("gpu_energy_j")
        total_j = None
        if isinstance(joules, Mapping):
            total_j = self._phases.setdefault((name, exclusive), JouleSums()).add(joules)
        elif "gpu_energy_j" in event:
            self._run.phases_not_by_gpu += 1
        return total_j

    def phase_sums(self, event: Event) -> None:
        """Joules by GPU of the phases whose lines left them out; the newest such line has them all."""
        self._summed = event
        self._run.phases_not_by_gpu = 0

    def of_update(self, event: Event, elapsed_s: float | None) -> float | None:
        """Joules by GPU in one update of so many seconds; their sum, None when one is unknown."""
        joules = table(event.get("gpu_energy_j"))
        total_j = self._updates.add(joules)
        if total_j is None:
            joules = {uuid: number(value) for uuid, value in joules.items()}
        self._run.power.take(elapsed_s, joules)
        return total_j

    def finish(self) -> None:
        """Give every GPU its sums, once all lines have been read."""
        run = self._run
        for uuid, value in self._cumulative_j.items():
            self.gpu(uuid).energy_j = number(value)
        phases, kinds = self._summed.get("phases"), self._summed.get("exclusive")
        if isinstance(phases, list) and isinstance(kinds, list):
            columns = table(self._summed.get("gpu_phase_energy_j")).items()
            lists = [(uuid, values) for uuid, values in columns if isinstance(values, list)]
            for place, (name, exclusive) in enumerate(zip(phases, kinds, strict=False)):
                known = {uuid: number(values[place]) for uuid, values in lists if place < len(values)}
                self._add_phase(str(name), exclusive is True, known)
        for (name, exclusive), sums in self._phases.items():
            self._add_phase(name, exclusive, sums.by_gpu())
        for uuid, joule in self._updates.by_gpu().items():
            self.gpu(uuid).updates_energy_j = joule
        coverage = table(run.end.get("gpu_coverage")) if run.end else {}
        power_w = table(run.end.get("gpu_power_w")) if run.end else {}
        loads = table(run.end.get("gpu_load")) if run.end else {}
        for uuid, gpu in run.gpus.items():
            gpu.coverage = number(coverage.get(uuid))
            gpu.sampled_power_w = number(power_w.get(uuid))
            for key in ("achieved_mhz", "busy_fraction", "capped_fraction", "slowed_fraction"):
                setattr(gpu, key, number(table(loads.get(uuid)).get(key)))
            gpu.pools = tuple(role for role, members in run.pools.items() if uuid in members)
            if run.end is None:
                # Cut short between two ticks, phases and updates may know more than the last cumulative reading.
                known_j = (gpu.energy_j or 0.0, sum(gpu.phase_energy_j.values()), gpu.updates_energy_j)
                gpu.energy_j = max(known_j) or gpu.energy_j

    def _add_phase(self, name: str, exclusive: bool, joules: Mapping[str, float | None]) -> None:
        for uuid, joule in joules.items():
            if joule is not None:
                gpu = self.gpu(uuid)
                into = gpu.phase_energy_j if exclusive else gpu.subphase_energy_j
                into[name] = into.get(name, 0.0) + joule
