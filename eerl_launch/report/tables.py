"""Ledger to rows, in one pass: the ledger is streamed, per-GPU energies of phases are summed as they come by.

A ledger cut short at any byte still gives a :class:`Run`; what is missing stays None, damage is said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eerl_launch.errors import LedgerError
from eerl_launch.ledger import Event, read_events
from eerl_launch.report.rows import EventRow, GpuRow, NodeRow, PhaseRow, PlanRow, Run, UpdateRow
from eerl_launch.report.values import number, table, text, whole

#: Events kept word for word for each kind; beyond that they are only counted, so that a GPU that fails
#: at every sample cannot fill the memory or the page.
EVENTS_KEPT_PER_KIND = 50


def read_run(folder: Path, also: Callable[[Event], None] | None = None) -> Run:
    """All that ``ledger.jsonl`` in ``folder`` says; ``also`` is shown every event that was read, in order.

    Raises :class:`LedgerError` when there is no ledger at all or its first line is not one; damage further on
    ends the reading and is kept in ``Run.damage``.
    """
    run = Run()
    reader = _Reader(run)
    try:
        for event in read_events(folder):
            reader.take(event)
            if also is not None:
                also(event)
    except LedgerError as error:
        if run.lines == 0:
            raise
        run.damage = str(error)
    reader.finish()
    return run


class _Reader:
    """Takes events one by one into a :class:`Run`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cumulative_j: dict[str, float] = {}
        self.handlers: dict[str, Callable[[Event], None]] = {
            "start": self._start,
            "node": self._node,
            "controller": lambda event: run.controller.update(event),
            "granted": lambda event: run.granted.update(table(event.get("gpus_by_node"))),
            "run": lambda event: run.trainer.update(event),
            "pool": self._pool,
            "metric": self._metric,
            "plan": self._plan,
            "clock": self._clock,
            "phase": self._phase,
            "update": self._update,
            "tick": lambda event: self._cumulative(event),
            "event": self._event,
            "end": self._end,
        }

    def take(self, event: Event) -> None:
        """Account for one event; kinds this version does not know are passed over."""
        self.run.lines += 1
        t_s = number(event.get("t_s"))
        if t_s is not None:
            self.run.last_t_s = max(self.run.last_t_s, t_s)
        handler = self.handlers.get(str(event["ev"]))
        if handler is not None:
            handler(event)

    def finish(self) -> None:
        """Settle what only the whole ledger tells: totals by GPU, pools, who held the clocks."""
        run = self.run
        for uuid, energy_j in self.cumulative_j.items():
            self._gpu(uuid).energy_j = energy_j
        coverage = table(run.end.get("gpu_coverage")) if run.end else {}
        for uuid, gpu in run.gpus.items():
            gpu.coverage = number(coverage.get(uuid))
            gpu.pools = tuple(role for role, members in run.pools.items() if uuid in members)
            if run.end is None:
                # Cut short between two ticks, phases and updates may know more than the last cumulative reading.
                known_j = (gpu.energy_j or 0.0, sum(gpu.phase_energy_j.values()), gpu.updates_energy_j)
                gpu.energy_j = max(known_j) or gpu.energy_j
        ever_lowered = any(not plan.is_governor for plan in run.plans.values())
        for row in run.updates:
            row.governor = self._governor(row, ever_lowered)
        self._place_phases()

    def _place_phases(self) -> None:
        """Give each phase the update in whose time it began; labels are no help, they may repeat."""
        run = self.run
        timed = sorted(
            (row for row in run.updates if row.begin_s is not None), key=lambda row: row.begin_s or 0.0
        )
        begins = [row.begin_s or 0.0 for row in timed]
        for phase in run.phases:
            if phase.begin_s is None:
                continue
            place = bisect_right(begins, phase.begin_s + 1e-9) - 1
            row = timed[place] if place >= 0 else None
            if row is None or (row.end_s is not None and phase.begin_s >= row.end_s):
                continue
            phase.index = row.index
            if phase.exclusive and phase.energy_j is not None:
                row.phases_energy_j = (row.phases_energy_j or 0.0) + phase.energy_j

    def _governor(self, row: UpdateRow, ever_lowered: bool) -> bool | None:
        plan = None if row.plan_id is None else self.run.plans.get(row.plan_id)
        if plan is not None:
            return plan.is_governor
        if row.generation_mhz is not None or row.training_mhz is not None:
            return False
        return None if ever_lowered else True

    def _gpu(self, uuid: str) -> GpuRow:
        return self.run.gpus.setdefault(uuid, GpuRow(uuid))

    def _start(self, event: Event) -> None:
        self.run.start.update(event)
        nodes = event.get("nodes")
        for node in nodes if isinstance(nodes, list) else []:
            self.run.nodes.setdefault(str(node), NodeRow(str(node)))

    def _node(self, event: Event) -> None:
        name = text(event.get("node"))
        if name is None:
            return
        row = self.run.nodes.setdefault(name, NodeRow(name))
        row.state = text(event.get("state")) or row.state
        for key in ("reason", "hostname", "source", "backend", "backend_reason", "driver"):
            setattr(row, key, text(event.get(key)) or getattr(row, key))
        for key in ("clock_offset_s", "clock_offset_error_s"):
            found = number(event.get(key))
            setattr(row, key, getattr(row, key) if found is None else found)
        gpus = event.get("gpus")
        for entry in gpus if isinstance(gpus, list) else []:
            uuid = text(table(entry).get("uuid"))
            if uuid is None:
                continue
            gpu = self._gpu(uuid)
            gpu.node = name
            gpu.index = whole(entry.get("index"))
            gpu.name = text(entry.get("name"))
            gpu.scope = text(entry.get("energy_scope")) or "unknown"
            gpu.mig = entry.get("mig") is True

    def _pool(self, event: Event) -> None:
        role, members = text(event.get("role")), event.get("gpus")
        if role is None or not isinstance(members, list):
            return
        known = self.run.pools.setdefault(role, [])
        known.extend(str(uuid) for uuid in members if str(uuid) not in known)

    def _metric(self, event: Event) -> None:
        name, value = text(event.get("name")), number(event.get("value"))
        if name is not None and value is not None:
            self.run.metrics.setdefault(name, []).append((whole(event.get("update")), value))

    def _plan(self, event: Event) -> None:
        plan_id = whole(event.get("plan_id"))
        if plan_id is None:
            return
        self.run.plans[plan_id] = PlanRow(
            plan_id,
            number(event.get("t_s")),
            number(event.get("generation_mhz")),
            number(event.get("training_mhz")),
            number(event.get("idle_mhz")),
            _state(event.get("state")),
            text(event.get("reason")),
            text(event.get("note")),
        )

    def _clock(self, event: Event) -> None:
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

    def _phase(self, event: Event) -> None:
        name = text(event.get("phase")) or "unnamed"
        row = PhaseRow(
            phase=name,
            update=whole(event.get("update")),
            begin_s=number(event.get("begin_s")),
            end_s=number(event.get("end_s")),
            elapsed_s=number(event.get("elapsed_s")),
            energy_j=number(event.get("energy_j")),
            energy_reason=text(event.get("energy_reason")),
            energy_error_j=number(event.get("energy_error_j")),
            requested_mhz=number(event.get("requested_mhz")),
            achieved_mhz=number(event.get("achieved_mhz")),
            busy_fraction=number(event.get("busy_fraction")),
            capped_fraction=number(event.get("capped_fraction")),
            exclusive=event.get("exclusive", "/" not in name) is True,
            complete=event.get("complete", True) is True,
        )
        self.run.phases.append(row)
        gpu_energy_j = table(event.get("gpu_energy_j"))
        row.gpus_energy_j = _sum([number(value) for value in gpu_energy_j.values()])
        if row.energy_j is None and gpu_energy_j and row.energy_reason is None:
            row.energy_reason = "energy of the whole phase is missing from the ledger"
        for uuid, value in gpu_energy_j.items():
            energy_j = number(value)
            if energy_j is None:
                continue
            gpu = self._gpu(uuid)
            into = gpu.phase_energy_j if row.exclusive else gpu.subphase_energy_j
            into[name] = into.get(name, 0.0) + energy_j
        self._gpu_detail(event, row.elapsed_s)

    def _gpu_detail(self, event: Event, elapsed_s: float | None) -> None:
        """Per-GPU clocks and load of a phase, where the session wrote them (optional keys)."""
        if elapsed_s is None:
            return
        for uuid, value in table(event.get("gpu_achieved_mhz")).items():
            mhz = number(value)
            if mhz is not None:
                gpu = self._gpu(uuid)
                gpu.achieved_mhz_s += mhz * elapsed_s
                gpu.achieved_s += elapsed_s
        for uuid, value in table(event.get("gpu_busy_fraction")).items():
            busy = number(value)
            if busy is not None:
                gpu = self._gpu(uuid)
                gpu.busy_fraction_s += busy * elapsed_s
                gpu.busy_known_s += elapsed_s

    def _update(self, event: Event) -> None:
        record = dict(table(event.get("record")))
        pools = table(record.get("pools"))
        generation, training = table(pools.get("generation")), table(pools.get("training"))
        governor, unattributed = table(event.get("governor")), table(event.get("unattributed"))
        longest = number(record.get("longest_generated_tokens"))
        flags = record.get("flags")
        gpu_energy_j = {uuid: number(value) for uuid, value in table(event.get("gpu_energy_j")).items()}
        for uuid, energy_j in gpu_energy_j.items():
            self._gpu(uuid).updates_energy_j += energy_j or 0.0
        index = whole(event.get("index"))
        plan_id = whole(record.get("plan_id"))
        row = UpdateRow(
            index=len(self.run.updates) if index is None else index,
            update=whole(event.get("label") if "label" in event else record.get("update")),
            begin_s=number(event.get("begin_s")),
            end_s=number(event.get("end_s")),
            elapsed_s=number(record.get("elapsed_s")),
            energy_j=number(record.get("energy_j")),
            state=_state(event.get("state")),
            plan_id=whole(event.get("plan_id")) if plan_id is None else plan_id,
            generation_mhz=number(generation.get("requested_mhz")),
            training_mhz=number(training.get("requested_mhz")),
            generation_achieved_mhz=number(generation.get("achieved_mhz")),
            training_achieved_mhz=number(training.get("achieved_mhz")),
            generated_tokens=number(record.get("generated_tokens")),
            valid_tokens=number(record.get("valid_tokens")),
            longest_response_tokens=number(record.get("longest_consumed_tokens"))
            if longest is None
            else longest,
            responses=number(event.get("responses")),
            reward=number(record.get("reward")),
            online_governor_elapsed_s=number(governor.get("elapsed_s")),
            online_governor_energy_j=number(governor.get("energy_j")),
            inside_coverage=governor.get("inside_coverage"),
            unattributed_s=number(unattributed.get("elapsed_s")),
            unattributed_j=number(unattributed.get("energy_j")),
            gpus_energy_j=_sum(list(gpu_energy_j.values())),
            usable=event.get("usable", True) is not False,
            unusable_reason=text(event.get("unusable_reason")),
            flags=tuple(str(flag) for flag in flags) if isinstance(flags, list) else (),
            record=record,
            pool_waits=table(event.get("pool_waits")),
        )
        self.run.updates.append(row)

    def _cumulative(self, event: Event) -> None:
        for uuid, value in table(event.get("gpu_energy_j")).items():
            energy_j = number(value)
            if energy_j is not None:
                self.cumulative_j[uuid] = energy_j

    def _event(self, event: Event) -> None:
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
                [self._gpu(uuid)] if uuid else [g for g in run.gpus.values() if node in (None, g.node)]
            ):
                gpu.estimated = True
        if uuid is not None and kind in (
            "gpu_lost",
            "counter_restart",
            "not_honoured",
            "sample_gap",
            "power_limit_changed",
        ):
            gpu = self._gpu(uuid)
            note = kind.replace("_", " ") + ("" if row.t_s is None else f" at {row.t_s:.0f} s")
            if len(gpu.notes) < 5:
                gpu.notes.append(note)

    def _end(self, event: Event) -> None:
        self.run.end = dict(event)
        for uuid, watts in table(event.get("gpu_power_w")).items():
            if uuid in self.run.gpus:
                self.run.gpus[uuid].sampled_power_w = number(watts)
        self._cumulative(event)


def _sum(values: list[float | None]) -> float | None:
    """The sum, None when one of them is unknown or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _state(value: Any) -> str | None:
    """A controller state in lower case, however the ledger spells the Enum member."""
    found = text(value)
    return None if found is None else found.rsplit(".", 1)[-1].lower()
