"""What clocks did to a recorded run, told from its own updates: an estimate.

Log seconds and log watts of generation and of training are linear in the token counts of equation 2 (paper, section
5.1) and in the clock: time in how far it was lowered and in its being locked at all, power in ``1 - (mhz/top)^2``,
the fall of V^2 f between linear and cubic (section 2.3). All usable updates enter, whatever clocks they ran under.
A waiting pool draws the same watts all the time, fewer at the idle clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from eerl_controller import ClockGrid, ExecutionMode, UpdateRecord, unusable_reason
from eerl_launch.log_fit import Fit, fit
from eerl_launch.work_parts import POOLS, REST, SIDE_BY_SIDE, Clocks, Parts, parts_of

#: Updates under a lowered clock, and at the governor's, from which its effect may be told.
LEAST_UPDATES = 3
#: A clock this much deeper (a log) than any recorded one is called extrapolated: one step of the grid is not.
SAME_DEPTH = 0.02
#: Token counts that each part follows, and what of the clocks its seconds and its watts may depend on.
_WORK = (("generated", "longest"), ("valid",), ())
_TIME = (("depth", "locked"), ("depth", "locked"), ("generation depth", "training depth", "differ"))
_POWER = (
    ("drop", "other drop", "idle"),
    ("drop", "other drop", "idle"),
    ("generation drop", "training drop", "idle"),
)


@dataclass(frozen=True, slots=True)
class Factors:
    """How many times as long a part takes, and draws, under other clocks."""

    time: float
    power: float


class ClockEffect:
    """The effect of the clocks of one run; :mod:`eerl_launch.moved_update` moves updates with it."""

    def __init__(
        self, records: Sequence[tuple[UpdateRecord, Clocks]], mode: ExecutionMode, grid: ClockGrid
    ) -> None:
        self.mode = mode
        #: The clock that the governor reaches in either phase, MHz.
        self.ceilings_mhz = ceilings(records, grid)
        usable = [(parts_of(record, mode), at) for record, at in records if unusable_reason(record) is None]
        samples = [(parts, clocks) for parts, clocks in usable if parts is not None]
        #: Updates that the effect was told from.
        self.updates = len(samples)
        depths = [self._depths(clocks) for _, clocks in samples]
        self._deepest = [max((item[axis] for item in depths), default=0.0) for axis in (0, 1)]
        lowered = [sum(item[axis] > 0.0 for item in depths) for axis in (0, 1)]
        self._known = [min(count, len(depths) - count) >= LEAST_UPDATES for count in lowered]
        self._idle_known = sum(at.idle_mhz is not None for _, at in samples) >= LEAST_UPDATES
        self._times: list[Fit] = []
        self._powers: list[Fit] = []
        for part in range(3):
            self._fit(samples, part)
        self._wait_w = [self._wait_watts(samples, axis) for axis in (0, 1)]
        self._others = [self._other_watts(samples, axis) for axis in (0, 1)]
        self._queue = self._totals(samples)

    # -- what is known -----------------------------------------------------------------------------------------

    def unknown(self, clocks: Clocks) -> str | None:
        """Which clock of a setting nothing in the run tells of; None when an update can be moved there."""
        for axis, name in enumerate(POOLS):
            if clocks[axis] is not None and not self._known[axis]:
                return (
                    f"{name} at {clocks[axis]} MHz: fewer than {LEAST_UPDATES} usable updates ran under a lowered "
                    f"{name} clock, or under the governor's"
                )
        return None

    def extrapolates(self, clocks: Clocks) -> bool:
        """Whether a clock is lower than any that was recorded."""
        depths = self._depths(clocks)
        return any(mine > seen + SAME_DEPTH for mine, seen in zip(depths, self._deepest, strict=True))

    def idle_unknown(self, clocks: Clocks) -> bool:
        """Whether the setting lowers waiting pools and the run has no example: no saving is claimed for it."""
        return clocks.idle_mhz is not None and not self._idle_known

    # -- effects -----------------------------------------------------------------------------------------------

    def factors(self, source: Clocks, target: Clocks, part: int) -> Factors:
        """What changes for a part of an update from one setting to the other."""
        before, after = self._features(source, part), self._features(target, part)
        time, power = self._times[part], self._powers[part]
        return Factors(
            math.exp(time.log_at(after) - time.log_at(before)),
            math.exp(power.log_at(after) - power.log_at(before)),
        )

    def wait_w(self, clocks: Clocks, axis: int) -> float:
        """Watts of a separate pool while it waits for the other."""
        return self._wait_w[axis][int(self._idle(clocks))]

    def other_power(self, source: Clocks, target: Clocks, axis: int) -> float:
        """How many times the watts a separate pool draws outside its own phases, whether it waits or not."""
        before, after = self._features(source, axis), self._features(target, axis)
        return math.exp(self._others[axis].log_at(after) - self._others[axis].log_at(before))

    def paced_s(self, clocks: Clocks) -> float:
        """In-flight: the run's seconds under these clocks, since a queue goes at the pace of its slower pool."""
        generation_s, training_s, rest_s = self._queue
        slow = [math.exp(self._times[axis].log_at(self._features(clocks, axis))) for axis in (0, 1)]
        return max(generation_s * slow[0], training_s * slow[1]) + rest_s

    # -- fitting -----------------------------------------------------------------------------------------------

    def _depths(self, clocks: Clocks) -> tuple[float, float]:
        """How far either clock lies below what the governor reaches, as a log; 0 for the governor."""
        generation, training = (
            0.0 if mhz is None else max(math.log(ceiling / mhz), 0.0)
            for mhz, ceiling in zip(clocks[:2], self.ceilings_mhz, strict=True)
        )
        return generation, training

    def _idle(self, clocks: Clocks) -> bool:
        return clocks.idle_mhz is not None and self._idle_known

    def _features(self, clocks: Clocks, part: int) -> dict[str, float]:
        """What a part's seconds and watts may depend on."""
        depths = self._depths(clocks)
        drops = [-math.expm1(-2.0 * depth) for depth in depths]
        idle = float(self._idle(clocks))
        if part == REST:
            switches = (
                self.mode is ExecutionMode.COLOCATED_SYNC and clocks.generation_mhz != clocks.training_mhz
            )
            return {
                "generation depth": depths[0],
                "training depth": depths[1],
                "differ": float(switches),
                "generation drop": drops[0],
                "training drop": drops[1],
                "idle": idle,
            }
        # In a phase's joules is the other pool's waiting only where pools take turns.
        beside = self.mode is ExecutionMode.DISAGGREGATED_SYNC
        return {
            "depth": depths[part],
            "locked": float(clocks[part] is not None),
            "drop": drops[part],
            "other drop": drops[1 - part] if beside else 0.0,
            "idle": idle if beside else 0.0,
        }

    def _fit(self, samples: Sequence[tuple[Parts, Clocks]], part: int) -> None:
        rows = [(parts, self._features(clocks, part)) for parts, clocks in samples if parts.seconds[part] > 0]
        powered = [(parts, row, joules) for parts, row in rows if (joules := parts.joules[part] or 0.0) > 0.0]
        self._times.append(
            fit(
                [parts.seconds[part] for parts, _ in rows],
                [parts.counts for parts, _ in rows],
                _WORK[part],
                [row for _, row in rows],
                _TIME[part],
            )
        )
        self._powers.append(
            fit(
                [joules / parts.seconds[part] for parts, _, joules in powered],
                [parts.counts for parts, _, _ in powered],
                _WORK[part],
                [row for _, row, _ in powered],
                _POWER[part],
            )
        )

    def _wait_watts(self, samples: Sequence[tuple[Parts, Clocks]], axis: int) -> tuple[float, float]:
        """Watts of a waiting pool without and with the idle clock, from the updates in which it waited most.

        Outside its own phases it takes part in refits too; where it waits for the larger share, that weighs less.
        """
        found: list[float] = []
        for idle in (False, True):
            known = [
                waiting
                for parts, clocks in samples
                if (waiting := parts.waits[axis]) is not None and self._idle(clocks) is idle
            ]
            most = sorted(known, key=lambda item: item.share)[len(known) // 2 :]
            found.append(median(item.watts for item in most) if most else (found or [0.0])[0])
        return found[0], min(found)

    def _other_watts(self, samples: Sequence[tuple[Parts, Clocks]], axis: int) -> Fit:
        known = [
            (parts, waiting.watts, clocks) for parts, clocks in samples if (waiting := parts.waits[axis])
        ]
        known = [item for item in known if item[1] > 0.0]
        rows = [self._features(clocks, axis) for _, _, clocks in known]
        return fit(
            [watts for _, watts, _ in known], [parts.counts for parts, _, _ in known], (), rows, ("drop",)
        )

    def _totals(self, samples: Sequence[tuple[Parts, Clocks]]) -> tuple[float, float, float]:
        """Seconds of both pools, had the governor run all updates, and of what neither was busy in."""
        if self.mode is not ExecutionMode.ASYNC_INFLIGHT:
            return 1.0, 1.0, 0.0
        pools = [
            sum(
                parts.seconds[axis] / math.exp(self._times[axis].log_at(self._features(clocks, axis)))
                for parts, clocks in samples
            )
            for axis in (0, 1)
        ]
        return pools[0], pools[1], sum(parts.seconds[REST] for parts, _ in samples)


def ceilings(records: Sequence[tuple[UpdateRecord, Clocks]], grid: ClockGrid) -> tuple[float, float]:
    """The clock that the governor reaches in either phase, MHz: the median of its own updates."""
    found = []
    for axis, name in enumerate(POOLS):
        pools = [record.pools.get(name) for record, clocks in records if clocks[axis] is None]
        reached = [pool.achieved_mhz for pool in pools if pool is not None and pool.achieved_mhz]
        found.append(min(median(reached), grid.governor_mhz) if reached else float(grid.governor_mhz))
    return found[0], found[1]


__all__ = ["LEAST_UPDATES", "SIDE_BY_SIDE", "ClockEffect", "Factors", "ceilings"]
