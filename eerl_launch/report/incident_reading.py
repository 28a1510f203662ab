"""What a ledger says of clock switches and of what was out of the ordinary: counted, and some of it word for word."""

from __future__ import annotations

from eerl_launch.ledger import Event
from eerl_launch.report.gpu_reading import GpuReading
from eerl_launch.report.rows import EventRow, Run
from eerl_launch.report.values import number, table, text, whole

#: Events kept word for word for each kind; beyond that they are only counted, so that a GPU that fails
#: at every sample cannot fill the memory or the page.
EVENTS_KEPT_PER_KIND = 50


class IncidentReading:
    """Takes ``clock`` and ``event`` lines into a :class:`Run`."""

    def __init__(self, run: Run, gpus: GpuReading) -> None:
        self.run = run
        self.gpus = gpus

    def clock(self, event: Event) -> None:
        """A switch of clocks."""
        totals = self.run.switches
        totals.switches += 1
        totals.gpus_set += whole(event.get("gpus_set")) or 0
        latency_s = number(event.get("latency_s"))
        if latency_s is not None:
            totals.latencies_s.append(latency_s)
        failures = event.get("failures")
        for failure in failures if isinstance(failures, list) else []:
            entry = table(failure)
            totals.failures += 1
            totals.failure_texts[
                f"{entry.get('node')} {entry.get('uuid')}: code {entry.get('code')} {entry.get('text')}"
            ] += 1

    def event(self, event: Event) -> None:
        """Something out of the ordinary."""
        run = self.run
        kind = text(event.get("kind")) or "warning"
        uuid, node = text(event.get("uuid")), text(event.get("node"))
        at_s = number(event.get("at_s"))
        row = EventRow(
            number(event.get("t_s")) if at_s is None else at_s,
            kind,
            node,
            uuid,
            text(event.get("text")) or "",
        )
        run.event_counts[kind] += 1
        if run.event_counts[kind] <= EVENTS_KEPT_PER_KIND:
            run.events.append(row)
        if kind == "energy_estimated":
            for gpu in (
                [self.gpus.gpu(uuid)] if uuid else [g for g in run.gpus.values() if node in (None, g.node)]
            ):
                gpu.estimated = True
        if uuid is not None and kind in (
            "gpu_lost",
            "counter_restart",
            "not_honoured",
            "sample_gap",
            "power_limit_changed",
        ):
            gpu = self.gpus.gpu(uuid)
            note = kind.replace("_", " ") + ("" if row.t_s is None else f" at {row.t_s:.0f} s")
            if len(gpu.notes) < 5:
                gpu.notes.append(note)
