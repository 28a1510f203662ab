"""Energy and state of all GPUs over time: joules between any two instants, and what the samples say of a stretch.

Energy is interpolated on each GPU's own curve (see :mod:`eerl_launch.meter`). Clocks, load and event reasons are
kept as running sums per node and group of GPUs (those of one pool), so that any stretch of any length costs two
look-ups a group: the session is one thread, and a long update of a large job has millions of readings. All times
are run time in seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eerl_launch.curve import MAX_GAP_S
from eerl_launch.devices.base import GpuSample
from eerl_launch.idle_watch import IdleWatch
from eerl_launch.meter import Meter
from eerl_launch.meter import Notice as Notice
from eerl_launch.power_watch import PowerWatch

#: Samples kept per node before every other one of the older half goes.
_MAX_SAMPLES = 6000
#: A node this many gaps behind the newest one has fallen silent; nobody waits for its readings.
_SILENT_GAPS = 2

#: Clock-event reasons (nvml.h). HwSlowdown 0x8 is left out: it is also reported during a switch of ours.
POWER_CAP = 0x4
THERMAL_OR_HARDWARE = 0x20 | 0x40 | 0x80


@dataclass(slots=True)
class PhaseStatistics:
    """What the samples inside some intervals say about one group of GPUs; a sample is of one GPU."""

    samples: int = 0
    util_samples: int = 0
    busy_samples: int = 0
    achieved_samples: int = 0
    achieved_mhz_sum: float = 0.0
    reason_samples: int = 0
    capped_samples: int = 0
    slowed_samples: int = 0

    @property
    def achieved_mhz(self) -> float | None:
        """Mean SM clock over busy samples, in MHz."""
        return self.achieved_mhz_sum / self.achieved_samples if self.achieved_samples else None

    @property
    def busy_fraction(self) -> float | None:
        """Share of samples with the GPU in use."""
        return self.busy_samples / self.util_samples if self.util_samples else None

    @property
    def capped_fraction(self) -> float | None:
        """Share of samples in which a power cap held the clock down."""
        return self.capped_samples / self.reason_samples if self.reason_samples else None

    @property
    def slowed_fraction(self) -> float | None:
        """Share of samples in which heat or hardware protection held the clock down."""
        return self.slowed_samples / self.reason_samples if self.reason_samples else None


#: Running sums per sample of a node, in the order of PhaseStatistics.
_COLUMNS = tuple(PhaseStatistics.__dataclass_fields__)
_WIDTH = len(_COLUMNS)


def _count(running: list[float], sample: GpuSample) -> None:
    running[0] += 1
    if sample.util_pct is not None:
        running[1] += 1
        running[2] += sample.util_pct > 0
    if sample.sm_mhz is not None and sample.util_pct != 0:  # of unknown use: taken as busy
        running[3] += 1
        running[4] += sample.sm_mhz
    if sample.reasons is not None:
        running[5] += 1
        running[6] += bool(sample.reasons & POWER_CAP)
        running[7] += bool(sample.reasons & THERMAL_OR_HARDWARE)


def _statistics(running: Sequence[float]) -> PhaseStatistics:
    return PhaseStatistics(**{name: int(value) for name, value in zip(_COLUMNS, running, strict=True)})


class _Sums:
    """Running sums over the samples of some GPUs of one node."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.uuids = frozenset(uuids)
        self._times = array("d")
        self._sums = array("d")  # _WIDTH values a sample, each the sum over all samples so far
        self._running = [0.0] * _WIDTH
        self._forgotten = [0.0] * _WIDTH  # the sums before the oldest sample kept

    def take(self, sample: GpuSample) -> None:
        """Add one GPU's part of a sample."""
        _count(self._running, sample)

    def close_sample(self, t_s: float) -> None:
        """All GPUs have been taken; the sums are of this instant."""
        self._times.append(t_s)
        self._sums.extend(self._running)
        if len(self._times) > _MAX_SAMPLES:
            self._thin()

    def _thin(self) -> None:
        """Drop every other sample of the older half: sums stay right, their edges become coarser."""
        half = len(self._times) // 2
        times, sums = self._times, self._sums
        self._times = times[:half:2] + times[half:]
        kept = array("d")
        for i in range(0, half, 2):
            kept += sums[i * _WIDTH : (i + 1) * _WIDTH]
        self._sums = kept + sums[half * _WIDTH :]

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        keep = bisect_right(self._times, t_s) - 1
        if keep > 0:
            self._forgotten = list(self._sums[(keep - 1) * _WIDTH : keep * _WIDTH])
            del self._times[:keep], self._sums[: keep * _WIDTH]

    def add_to(self, total: list[float], begin_s: float, end_s: float) -> None:
        """Add the sums over the samples in [begin, end) to ``total``."""
        first, last = bisect_left(self._times, begin_s), bisect_left(self._times, end_s)
        if last <= first:
            return
        newest = (last - 1) * _WIDTH
        before = self._sums[(first - 1) * _WIDTH : first * _WIDTH] if first else self._forgotten
        for column in range(_WIDTH):
            total[column] += self._sums[newest + column] - before[column]


class NodeEnergy:
    """The samples of one node: a meter for each of its GPUs, and running sums of what they were doing."""

    def __init__(
        self, node: str, uuids: Sequence[str], time_scale: float = 1.0, counter_period_s: float = 0.0
    ) -> None:
        self.node = node
        self.max_gap_s = MAX_GAP_S * time_scale
        self.uuids = tuple(uuids)
        self.meters = {uuid: Meter(uuid, self.max_gap_s, counter_period_s) for uuid in self.uuids}
        self.powers = {uuid: PowerWatch(uuid, self.max_gap_s) for uuid in self.uuids}
        self._by_gpu = {uuid: [0.0] * _WIDTH for uuid in self.uuids}
        self.idles = {uuid: IdleWatch() for uuid in self.uuids}
        self._last_t_s = float("-inf")
        self._groups = [_Sums(self.uuids)]
        self._group_of = dict.fromkeys(self.uuids, self._groups[0])

    def group_by(self, pools: Iterable[frozenset[str]]) -> None:
        """Keep sums for the GPUs of each pool from now on; what was summed up over other groups is dropped."""
        groups = [group for pool in pools if (group := pool.intersection(self.uuids))]
        rest = frozenset(self.uuids).difference(*groups)
        groups += [rest] if rest or not groups else []
        if {group.uuids for group in self._groups} == set(groups):
            return
        self._groups = [_Sums(tuple(group)) for group in groups]
        self._group_of = {uuid: sums for sums in self._groups for uuid in sums.uuids}

    @property
    def last_t_s(self) -> float:
        """Run time of the newest sample, or minus infinity."""
        return self._last_t_s

    def covered(self, t_s: float) -> bool:
        """Whether every GPU that answers has a fresh reading at or after ``t_s``."""
        return self.last_t_s >= t_s and all(
            meter.curve.last_t_s >= t_s or meter.absent for meter in self.meters.values()
        )

    def add(self, t_s: float, samples: Sequence[GpuSample | None]) -> list[Notice]:
        """Take in one sample of every GPU (in the order of ``uuids``); what the report must tell of it.

        ``t_s`` is the instant of the newest reading among them; one that was taken earlier (another GPU hung
        meanwhile) counts from its own. A sample that is not later than the last one is passed over: the estimate
        of a node's clock has moved.
        """
        notices: list[Notice] = []
        if t_s <= self.last_t_s:
            return notices
        gap_s = t_s - self.last_t_s
        if self.max_gap_s < gap_s < float("inf"):
            notices.append(Notice("sample_gap", "", t_s, f"no samples from {self.node} for {gap_s:.1f} s"))
        newest_ns = max((sample.t_ns for sample in samples if sample is not None), default=0)
        for uuid, sample in zip(self.uuids, samples, strict=True):
            own_t_s = t_s if sample is None else t_s - (newest_ns - sample.t_ns) / 1e9
            notices += self.meters[uuid].read(own_t_s, sample)
            notices += self.powers[uuid].read(own_t_s, sample)
            if sample is not None:
                self._group_of[uuid].take(sample)
                _count(self._by_gpu[uuid], sample)
                self.idles[uuid].read(own_t_s, sample.util_pct)
        self._last_t_s = t_s
        for group in self._groups:
            group.close_sample(t_s)
        return notices

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        for group in self._groups:
            group.forget_before(t_s)
        for meter in self.meters.values():
            meter.curve.forget_before(t_s)
        for idle in self.idles.values():
            idle.forget_before(t_s)

    def between_j(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Joules of every GPU between two instants; None where an edge is not covered."""
        result: dict[str, float | None] = {}
        for uuid, meter in self.meters.items():
            begin_j, end_j = meter.curve.at(begin_s), meter.curve.at(end_s)
            result[uuid] = None if begin_j is None or end_j is None else max(0.0, end_j - begin_j)
        return result

    def edge_error_j(self, t_s: float, uuids: frozenset[str] | None) -> float | None:
        """How far the joules of these GPUs (None: all) may be off at an instant; None when that is not known."""
        total_j = 0.0
        for uuid, meter in self.meters.items():
            if uuids is None or uuid in uuids:
                edge = meter.curve.edge(t_s)
                if edge is None or edge.error_j is None or meter.estimating:
                    return None
                total_j += edge.error_j
        return total_j

    def loads(self) -> dict[str, PhaseStatistics]:
        """What every GPU did in all of its samples."""
        return {uuid: _statistics(running) for uuid, running in self._by_gpu.items()}

    def add_statistics(
        self, total: list[float], begin_s: float, end_s: float, uuids: frozenset[str] | None
    ) -> None:
        """Add the sums over the samples in [begin, end) of these GPUs (None: all) to ``total``.

        ``uuids`` is a pool or a union of pools; a group of which it is only a part does not count.
        """
        for group in self._groups:
            if uuids is None or group.uuids <= uuids:
                group.add_to(total, begin_s, end_s)


@dataclass(slots=True)
class Allocation:
    """Energy and state of all nodes that joined."""

    nodes: dict[str, NodeEnergy] = field(default_factory=dict)

    def uuids(self) -> list[str]:
        """Every GPU of the nodes that joined."""
        return [uuid for node in self.nodes.values() for uuid in node.uuids]

    def between_j(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Joules of every GPU between two instants."""
        result: dict[str, float | None] = {}
        for node in self.nodes.values():
            result |= node.between_j(begin_s, end_s)
        return result

    def error_j(
        self, intervals: Sequence[tuple[float, float]], uuids: frozenset[str] | None = None
    ) -> float | None:
        """How far the joules of these GPUs over the intervals may be off, edge by edge; None when not known."""
        total_j = 0.0
        for t_s in (t_s for interval in intervals for t_s in interval):
            for node in self.nodes.values():
                error_j = node.edge_error_j(t_s, uuids)
                if error_j is None:
                    return None
                total_j += error_j
        return total_j

    def cumulative_j(self) -> dict[str, float | None]:
        """Joules of every GPU since its first sample."""
        return {uuid: meter.energy_j for node in self.nodes.values() for uuid, meter in node.meters.items()}

    def mean_power_w(self) -> dict[str, float | None]:
        """Mean draw of every GPU alone, by its power samples, whatever its counter covers."""
        return {uuid: power.mean_w for node in self.nodes.values() for uuid, power in node.powers.items()}

    def loads(self) -> dict[str, PhaseStatistics]:
        """Clock, busy share and event reasons of every GPU over the whole run."""
        return {uuid: load for node in self.nodes.values() for uuid, load in node.loads().items()}

    @property
    def estimating(self) -> bool:
        """Whether the energy of any GPU comes from power samples now."""
        return any(meter.estimating for node in self.nodes.values() for meter in node.meters.values())

    def group_by(self, pools: Iterable[frozenset[str]]) -> None:
        """Keep statistics by pool from now on."""
        groups = list(pools)
        for node in self.nodes.values():
            node.group_by(groups)

    def statistics(
        self, intervals: Sequence[tuple[float, float]], uuids: frozenset[str] | None = None
    ) -> PhaseStatistics:
        """Achieved clock, busy share and event reasons over the samples inside ``intervals``.

        ``uuids``: only of these GPUs, a pool or a union of pools; None is all.
        """
        total = [0.0] * _WIDTH
        for node in self.nodes.values():
            for begin_s, end_s in intervals:
                node.add_statistics(total, begin_s, end_s, uuids)
        return _statistics(total)

    def idle_tail_s(
        self, intervals: Sequence[tuple[float, float]], uuids: frozenset[str] | None = None
    ) -> dict[str, float | None]:
        """Seconds at the ends of the intervals in which each of these GPUs (None: all) had nothing to do."""
        result: dict[str, float | None] = {}
        for node in self.nodes.values():
            for uuid, idle in node.idles.items():
                if uuids is None or uuid in uuids:
                    tails = [idle.tail_s(begin_s, end_s) for begin_s, end_s in intervals]
                    known = [tail_s for tail_s in tails if tail_s is not None]
                    result[uuid] = sum(known) if len(known) == len(tails) else None
        return result

    def covered(self, t_s: float) -> bool:
        """Whether every GPU that answers has a fresh reading at or after ``t_s``; silent nodes do not answer."""
        newest_s = max((node.last_t_s for node in self.nodes.values()), default=0.0)
        return all(
            node.covered(t_s) or newest_s - node.last_t_s > _SILENT_GAPS * node.max_gap_s
            for node in self.nodes.values()
        )

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        for node in self.nodes.values():
            node.forget_before(t_s)
