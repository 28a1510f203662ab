"""Energy of each GPU over time: cumulative joules from counter samples, interpolated between them.

The counter (``nvmlDeviceGetTotalEnergyConsumption``, mJ since the driver was loaded) is the truth where it is
offered; where it is not, power samples are integrated by trapezoid and the result is called estimated. A counter
that restarts (driver reload, GPU reset) or jumps closes its segment: the gap is bridged with power and reported,
never subtracted. All times are run time in seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eerl_launch.devices.base import GpuSample

_NAN = float("nan")
#: No GPU or superchip module draws more (GB300 module limit: 2900 W); a faster counter is not counting joules.
_MAX_POWER_W = 5000.0
#: Neighbouring samples further apart than this leave an edge between them uncertain; it is then reported.
MAX_GAP_S = 3.0
#: Samples kept per node before the older half is thinned; edges already used do not need them.
_MAX_SAMPLES = 6000


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a GPU that the report must tell."""

    kind: str
    uuid: str
    t_s: float
    text: str


class _Meter:
    """One GPU's counter readings turned into joules since the first of them."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.energy_j: float | None = None
        self.estimated_j = 0.0
        self.lost_at_s: float | None = None
        self.measured_s = 0.0
        self.fresh = False
        self._last_t_s: float | None = None
        self._last_mj: int | None = None
        self._last_w: float | None = None
        self._told_estimated = False

    def read(self, t_s: float, sample: GpuSample | None) -> list[Notice]:
        """Take one sample in; None where the GPU gave nothing."""
        if sample is None or (sample.energy_mj is None and sample.power_mw is None):
            return self._missing(t_s, sample)
        notices = []
        if self.lost_at_s is not None:
            notices.append(Notice("gpu_back", self.uuid, t_s, "answers again"))
            self.lost_at_s = None
        power_w = None if sample.power_mw is None else sample.power_mw / 1000.0
        step_s = 0.0 if self._last_t_s is None else t_s - self._last_t_s
        # The counter is published about every 100 ms: an equal reading is the old one, not "no energy used".
        self.fresh = sample.energy_mj is None or sample.energy_mj != self._last_mj or step_s > MAX_GAP_S
        if not self.fresh:
            return notices
        if self.energy_j is None:
            self.energy_j = 0.0
        elif sample.energy_mj is not None and self._last_mj is not None:
            notices += self._count(t_s, sample.energy_mj, step_s, power_w)
        else:
            notices += self._integrate(t_s, step_s, power_w)
        self.measured_s += step_s
        self._last_t_s = t_s
        self._last_mj = sample.energy_mj
        self._last_w = power_w if power_w is not None else self._last_w
        return notices

    def _missing(self, t_s: float, sample: GpuSample | None) -> list[Notice]:
        if sample is None or sample.error_code is None or self.lost_at_s is not None:
            return []
        self.lost_at_s = t_s
        return [Notice("gpu_lost", self.uuid, t_s, f"cannot be read (NVML code {sample.error_code})")]

    def _count(self, t_s: float, energy_mj: int, step_s: float, power_w: float | None) -> list[Notice]:
        delta_j = (energy_mj - (self._last_mj or 0)) / 1000.0
        # One counter period (100 ms) of slack: a publication can fall between two close samples.
        if 0.0 <= delta_j <= _MAX_POWER_W * (step_s + 0.2):
            self.energy_j = (self.energy_j or 0.0) + delta_j
            return []
        bridged_j = self._bridge_j(step_s, power_w)
        text = f"energy counter went from {self._last_mj} to {energy_mj} mJ; "
        text += f"{step_s:.1f} s bridged with {bridged_j:.0f} J from power samples"
        return [Notice("counter_restart", self.uuid, t_s, text)]

    def _integrate(self, t_s: float, step_s: float, power_w: float | None) -> list[Notice]:
        self._bridge_j(step_s, power_w)
        if self._told_estimated:
            return []
        self._told_estimated = True
        return [Notice("energy_estimated", self.uuid, t_s, "no energy counter: power samples are integrated")]

    def _bridge_j(self, step_s: float, power_w: float | None) -> float:
        known = [w for w in (self._last_w, power_w) if w is not None]
        bridged_j = sum(known) / len(known) * step_s if known else 0.0
        self.energy_j = (self.energy_j or 0.0) + bridged_j
        self.estimated_j += bridged_j
        return bridged_j


@dataclass(slots=True)
class PhaseStatistics:
    """What the samples inside some intervals say about one group of GPUs."""

    samples: int = 0
    busy_samples: int = 0
    achieved_mhz_sum: float = 0.0
    achieved_samples: int = 0
    capped_samples: int = 0
    slowed_samples: int = 0
    util_samples: int = 0

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
        return self.capped_samples / self.samples if self.samples else None

    @property
    def slowed_fraction(self) -> float | None:
        """Share of samples in which heat or hardware protection held the clock down."""
        return self.slowed_samples / self.samples if self.samples else None


#: Clock-event reasons (nvml.h). HwSlowdown 0x8 is left out: it is also reported during a switch of ours.
POWER_CAP = 0x4
THERMAL_OR_HARDWARE = 0x20 | 0x40 | 0x80


class NodeEnergy:
    """The samples of one node and the joules of each of its GPUs between any two instants covered by them."""

    def __init__(self, node: str, uuids: Sequence[str], time_scale: float = 1.0) -> None:
        self.node = node
        self._max_gap_s = MAX_GAP_S * time_scale
        self.uuids = tuple(uuids)
        self.meters = {uuid: _Meter(uuid) for uuid in self.uuids}
        self._times: list[float] = []
        self._energy: list[array[float]] = []  # one row a sample: joules by GPU, NaN where unknown
        self._state: list[tuple[tuple[int | None, int | None, int | None], ...]] = []  # mhz, util, reasons

    @property
    def last_t_s(self) -> float:
        """Run time of the newest sample, or minus infinity."""
        return self._times[-1] if self._times else float("-inf")

    @property
    def first_t_s(self) -> float:
        """Run time of the oldest sample kept, or plus infinity."""
        return self._times[0] if self._times else float("inf")

    def covered(self, t_s: float) -> bool:
        """Whether every GPU that is not lost has a fresh reading at or after ``t_s``."""
        begin = bisect_left(self._times, t_s)
        rows = self._energy[begin:]
        return bool(rows) and all(
            self.meters[uuid].lost_at_s is not None or any(row[gpu] == row[gpu] for row in rows)
            for gpu, uuid in enumerate(self.uuids)
        )

    def add(self, t_s: float, samples: Sequence[GpuSample | None]) -> list[Notice]:
        """Take in one sample of every GPU (in the order of ``uuids``); what the report must tell of it."""
        notices: list[Notice] = []
        if t_s <= self.last_t_s:
            return notices
        gap_s = t_s - self.last_t_s
        if self._max_gap_s < gap_s < float("inf"):
            notices.append(Notice("sample_gap", "", t_s, f"no samples from {self.node} for {gap_s:.1f} s"))
        row = array("d")
        for uuid, sample in zip(self.uuids, samples, strict=True):
            meter = self.meters[uuid]
            notices += meter.read(t_s, sample)
            known = meter.fresh and meter.lost_at_s is None and sample is not None
            row.append(meter.energy_j if known and meter.energy_j is not None else _NAN)
        self._times.append(t_s)
        self._energy.append(row)
        self._state.append(
            tuple(
                (None, None, None) if sample is None else (sample.sm_mhz, sample.util_pct, sample.reasons)
                for sample in samples
            )
        )
        if len(self._times) > _MAX_SAMPLES:
            self._thin()
        return notices

    def _thin(self) -> None:
        """Drop every other sample of the older half: power is steady inside a phase, and edges are recent."""
        half = len(self._times) // 2
        self._times[:half] = self._times[:half:2]
        self._energy[:half] = self._energy[:half:2]
        self._state[:half] = self._state[:half:2]

    def forget_before(self, t_s: float) -> None:
        """Drop samples that no edge at or after ``t_s`` needs."""
        keep = max(0, bisect_right(self._times, t_s) - 1)
        if keep:
            del self._times[:keep], self._energy[:keep], self._state[:keep]

    def energy_at_j(self, t_s: float, gpu: int) -> float | None:
        """Joules of GPU number ``gpu`` from its first sample to ``t_s``; None outside what was sampled."""
        right = bisect_left(self._times, t_s)
        if right < len(self._times) and self._times[right] == t_s:
            exact = self._energy[right][gpu]
            return exact if exact == exact else None
        before = next(
            (i for i in range(right - 1, -1, -1) if self._energy[i][gpu] == self._energy[i][gpu]), None
        )
        after = next(
            (i for i in range(right, len(self._times)) if self._energy[i][gpu] == self._energy[i][gpu]), None
        )
        if before is None or after is None:
            return None
        t0, t1 = self._times[before], self._times[after]
        e0, e1 = self._energy[before][gpu], self._energy[after][gpu]
        return e0 + (e1 - e0) * (t_s - t0) / (t1 - t0)

    def between_j(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Joules of every GPU between two instants; None where an edge is not covered."""
        result: dict[str, float | None] = {}
        for gpu, uuid in enumerate(self.uuids):
            begin_j, end_j = self.energy_at_j(begin_s, gpu), self.energy_at_j(end_s, gpu)
            result[uuid] = None if begin_j is None or end_j is None else max(0.0, end_j - begin_j)
        return result

    def rows_between(
        self, begin_s: float, end_s: float
    ) -> Iterator[tuple[tuple[int | None, int | None, int | None], ...]]:
        """Clock, utilisation and event reasons of every GPU at each sample in [begin, end)."""
        yield from self._state[bisect_left(self._times, begin_s) : bisect_left(self._times, end_s)]


@dataclass(slots=True)
class Allocation:
    """Energy of all nodes; ``expected_nodes`` that never joined make every total partial."""

    nodes: dict[str, NodeEnergy] = field(default_factory=dict)

    def between_j(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Joules of every GPU between two instants."""
        result: dict[str, float | None] = {}
        for node in self.nodes.values():
            result |= node.between_j(begin_s, end_s)
        return result

    def cumulative_j(self) -> dict[str, float | None]:
        """Joules of every GPU since its first sample."""
        return {uuid: meter.energy_j for node in self.nodes.values() for uuid, meter in node.meters.items()}

    def statistics(self, intervals: Sequence[tuple[float, float]]) -> PhaseStatistics:
        """Achieved clock, busy share and event reasons over the samples inside ``intervals``."""
        result = PhaseStatistics()
        for node in self.nodes.values():
            for begin_s, end_s in intervals:
                for row in node.rows_between(begin_s, end_s):
                    for mhz, util, reasons in row:
                        result.samples += 1
                        busy = util is None or util > 0
                        if util is not None:
                            result.util_samples += 1
                            result.busy_samples += busy
                        if mhz is not None and busy:
                            result.achieved_mhz_sum += mhz
                            result.achieved_samples += 1
                        if reasons is not None:
                            result.capped_samples += bool(reasons & POWER_CAP)
                            result.slowed_samples += bool(reasons & THERMAL_OR_HARDWARE)
        return result

    def covered(self, t_s: float) -> bool:
        """Whether every GPU that answers has a fresh counter reading at or after ``t_s``."""
        return all(node.covered(t_s) for node in self.nodes.values())

    def forget_before(self, t_s: float) -> None:
        """Drop samples that no edge at or after ``t_s`` needs."""
        for node in self.nodes.values():
            node.forget_before(t_s)
