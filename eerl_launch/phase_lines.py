"""The ledger's ``phase`` lines of one stretch of time: when each phase ran, what it used, and how it ran. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eerl_launch.arrangement import Arrangement
from eerl_launch.measures import Measures, total_j
from eerl_launch.occurrences import Interval, Occurrence, top_level
from eerl_launch.phase_shares import Share, seconds, shares

#: Runs of one phase in an update that get a ledger line each; more are summed up in one line.
_MAX_LINES = 50
#: The phase in which GPUs run out of work one by one, as the longest responses are waited for.
_GENERATION = "generation"


class PhaseLines:
    """Makes the lines of a run; all times are run time in seconds."""

    def __init__(self, measures: Measures, arrangement: Arrangement) -> None:
        self._measures = measures
        self._arrangement = arrangement

    def of(
        self,
        occurrences: Sequence[Occurrence],
        label: int | None,
        begin_s: float,
        end_s: float,
        *,
        all_nodes_measured: bool = True,
    ) -> list[dict[str, Any]]:
        """Ledger lines of the phases of one stretch of time: the disjoint partition, then the subphases."""
        incomplete = {top_level(o.phase) for o in occurrences if not (o.complete or o.goes_on)}
        found = shares(occurrences, begin_s, end_s, self._arrangement, self._measures.everyone())
        subphases: dict[str, list[Interval]] = {}
        for occurrence in occurrences:
            span = (
                max(begin_s, occurrence.begin_s),
                min(end_s, end_s if occurrence.end_s is None else occurrence.end_s),
            )
            if "/" in occurrence.phase and span[1] > span[0]:
                subphases.setdefault(occurrence.phase, []).append(span)
        parts = [(True, phase, share, share.intervals) for phase, share in found.items()]
        parts += [
            (False, phase, found.get(top_level(phase), Share(intervals)), intervals)
            for phase, intervals in subphases.items()
        ]
        events = []
        for exclusive, phase, share, intervals in parts:
            lines = [[i] for i in intervals] if len(intervals) <= _MAX_LINES else [intervals]
            events += [
                self._phase_event(
                    label,
                    phase,
                    share,
                    line,
                    exclusive=exclusive,
                    complete=top_level(phase) not in incomplete,
                    all_nodes_measured=all_nodes_measured,
                )
                for line in lines
            ]
        return events

    def _phase_event(
        self,
        label: int | None,
        phase: str,
        share: Share,
        intervals: Sequence[Interval],
        *,
        exclusive: bool,
        complete: bool,
        all_nodes_measured: bool,
    ) -> dict[str, Any]:
        by_gpu = self._measures.joules(intervals, share.gpus)
        energy_j = total_j(by_gpu) if all_nodes_measured else None
        error_j = self._measures.error_j(intervals, share.gpus) if energy_j is not None else None
        statistics = self._measures.statistics(intervals, share.workers or share.gpus)
        event: dict[str, Any] = {
            "ev": "phase",
            "t_s": intervals[-1][1],
            "update": label,
            "phase": phase,
            "pool": share.role if self._arrangement.separate else None,
            "begin_s": intervals[0][0],
            "end_s": intervals[-1][1],
            "elapsed_s": seconds(intervals),
            "energy_j": energy_j,
            "energy_error_j": error_j,
            "energy_reason": self._measures.unresolved(intervals) or self._measures.coarse(energy_j, error_j)
            if energy_j is not None
            else self._why_unknown(by_gpu, all_nodes_measured),
            "gpu_energy_j": by_gpu,
            "requested_mhz": self._measures.requested_mhz(share.role, intervals),
            "achieved_mhz": statistics.achieved_mhz,
            "busy_fraction": statistics.busy_fraction,
            "capped_fraction": statistics.capped_fraction,
            "exclusive": exclusive,
            "complete": complete,
        }
        if exclusive and phase == _GENERATION:
            tails_s = self._measures.idle_tail_s(intervals, share.workers or share.gpus)
            event["gpu_idle_tail_s"] = {
                uuid: None if tail_s is None else round(tail_s, 2) for uuid, tail_s in tails_s.items()
            }
        if len(intervals) > 1:
            event["intervals"] = len(intervals)
        return event

    @staticmethod
    def _why_unknown(by_gpu: dict[str, float | None], all_nodes_measured: bool) -> str:
        if not by_gpu:
            return "no GPU is measured"
        missing = [uuid for uuid, joules in by_gpu.items() if joules is None]
        if missing:
            return f"{len(missing)} of {len(by_gpu)} GPUs not covered: {', '.join(missing[:4])}"
        return "not every node is measured" if not all_nodes_measured else "not covered"
