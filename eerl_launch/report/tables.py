"""Ledger to rows, in one pass: the ledger is streamed, per-GPU energies of phases are summed as they come by.

A ledger cut short at any byte still gives a :class:`Run`; what is missing stays None, damage is said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from sys import intern
from typing import Any

from eerl_launch.errors import LedgerError
from eerl_launch.ledger import Event, read_events
from eerl_launch.report.gpu_reading import GpuReading
from eerl_launch.report.incident_reading import IncidentReading
from eerl_launch.report.rows import NodeRow, PhaseRow, PlanRow, Run, UpdateRow
from eerl_launch.report.values import number, table, text, whole


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
        self.gpus = GpuReading(run)
        self.incidents = IncidentReading(run, self.gpus)
        self.handlers: dict[str, Callable[[Event], None]] = {
            "start": self._start,
            "node": self._node,
            "controller": lambda event: run.controller.update(event),
            "granted": lambda event: run.granted.update(table(event.get("gpus_by_node"))),
            "run": lambda event: run.trainer.update(event),
            "pool": self._pool,
            "metric": self._metric,
            "plan": self._plan,
            "clock": self.incidents.clock,
            "phase": self._phase,
            "update": self._update,
            "gpu_phases": self.gpus.phase_sums,
            "tick": self.gpus.totals,
            "event": self.incidents.event,
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
        self.gpus.finish()
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
        self.gpus.of_node(event, name)

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

    def _phase(self, event: Event) -> None:
        name = intern(text(event.get("phase")) or "unnamed")
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
        row.gpus_energy_j = self.gpus.of_phase(name, row.exclusive, event)
        if row.energy_j is None and row.energy_reason is None and event.get("gpu_energy_j"):
            row.energy_reason = "energy of the whole phase is missing from the ledger"

    def _update(self, event: Event) -> None:
        record = dict(table(event.get("record")))
        pools = table(record.get("pools"))
        generation, training = table(pools.get("generation")), table(pools.get("training"))
        governor, unattributed = table(event.get("governor")), table(event.get("unattributed"))
        longest = number(record.get("longest_generated_tokens"))
        flags = record.get("flags")
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
            gpus_energy_j=self.gpus.of_update(event, number(record.get("elapsed_s"))),
            usable=event.get("usable", True) is not False,
            unusable_reason=text(event.get("unusable_reason")),
            flags=tuple(str(flag) for flag in flags) if isinstance(flags, list) else (),
            record=record,
            pool_waits=table(event.get("pool_waits")),
        )
        self.run.updates.append(row)

    def _end(self, event: Event) -> None:
        self.run.end = dict(event)
        self.gpus.totals(event)


def _state(value: Any) -> str | None:
    """A controller state in lower case, however the ledger spells the Enum member."""
    found = text(value)
    return None if found is None else found.rsplit(".", 1)[-1].lower()
