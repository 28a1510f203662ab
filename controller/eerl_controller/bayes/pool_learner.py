"""Everything that is believed about a run whose pools overlap, and what each update adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from eerl_controller.bayes.paces import Paces
from eerl_controller.bayes.recent import Latest, Recent
from eerl_controller.bayes.sides import (
    GENERATION,
    GOVERNED,
    REST,
    TRAINING,
    Lowered,
    Sides,
    Two,
    lowered,
    own_seconds,
    sides_of,
    work_of,
)
from eerl_controller.bayes.watts import Watts
from eerl_controller.clocks import Pair
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.records import ExecutionMode, UpdateRecord
from eerl_controller.regression import robust_sd
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation, Unusable, phase_totals, visitors

#: Page's cumulative sum: surprises beyond this drift add up, and this much of them is a change. Gaussian surprises
#: reach it by chance once in some thousand updates; no single one can.
CUSUM_DRIFT, CUSUM_LIMIT, LARGEST_SURPRISE = 0.75, 7.0, 3.0
#: A change of this size (a log) is what an alarm makes possible: the loss that a lock must not keep.
JUMP_SD = 0.03
#: An update that took longer than this many times the usual waited for something that no clock moves.
LONGEST = 2.0

First = tuple[Observation, UpdateRecord]


class PoolLearner:
    """The models of time and power, what is expected of the next updates, and what was spent of the allowance."""

    def __init__(self, mode: ExecutionMode, top_mhz: float) -> None:
        self._mode = mode
        self._top_mhz = top_mhz
        self.ceilings_mhz = (top_mhz, top_mhz)
        self.paces, self.watts, self.recent = Paces(mode), Watts(), Recent(mode)
        #: Seconds that the run has taken, without what waited for nothing that a clock moves.
        self.past_s = 0.0
        #: Updates that the run has taken, lost ones included.
        self.seen = 0
        self._last_update: int | None = None
        self._last_counts: dict[str, float] | None = None
        #: How deep either clock has been while it could be learnt from, as a log below the governor's.
        self.reach = [0.0, 0.0]
        self._cusum = [0.0, 0.0, 0.0, 0.0]
        self._gaps_s = [0.0, 0.0]
        #: The latest update, until its loss has been accounted for.
        self._newest: Latest | None = None

    @property
    def known(self) -> bool:
        """Whether the models have begun and expect anything."""
        return self.paces.known and self.recent.known and self.watts.known

    @property
    def alarmed(self) -> bool:
        """Whether updates have lately not been what they were."""
        return max(self._cusum) >= CUSUM_LIMIT

    @property
    def lost_share(self) -> float:
        """What lowered clocks are believed to have cost so far, as a share of the run's time."""
        return self.paces.lost[0] / self.past_s if self.past_s > 0.0 else 0.0

    def setting_of(self, pair: Pair) -> Lowered:
        """A pair of clocks as the models see it."""
        return lowered(pair, self.ceilings_mhz, self._top_mhz)

    def sides_of(self, observation: Observation, record: UpdateRecord) -> Sides | None:
        """The update's sides as this mode has them."""
        return sides_of(observation, record, self._mode, (self._gaps_s[0], self._gaps_s[1]))

    def begin(self, first: Sequence[First], ceilings_mhz: Two) -> None:
        """Start the models from governor updates: their medians first, then one by one.

        What the run has lost before, to another governor, is kept.
        """
        self.ceilings_mhz = ceilings_mhz
        found: list[tuple[Sides, dict[str, float], UpdateRecord]] = []
        previous: dict[str, float] | None = None
        for observation, record in first:
            sides = self.sides_of(observation, record)
            if sides is not None:
                found.append((sides, work_of(observation, previous), record))
            previous = dict(observation.counts)
        names = {name for _, counts, _ in found for name in counts}
        centres = {
            name: median(counts[name] for _, counts, _ in found if name in counts) for name in sorted(names)
        }
        a, b, c = (median(sides.seconds[part] for sides, _, _ in found) for part in range(3))
        if not self.paces.known:
            typical_s = median(sides.running_s + sides.seconds[REST] for sides, _, _ in found)
            self.past_s = self.seen * typical_s
        self.paces.begin((a, b, c), centres)
        self.watts.begin(*self._first_watts([sides for sides, _, _ in found]))
        self.recent.forget()
        for sides, counts, record in self._usual(found):
            self.paces.advance()
            self.watts.advance(1)
            self._learn(sides, counts, GOVERNED)
            self._expect(sides, counts, GOVERNED, record)
        self.recent.refresh(self.paces.slow)
        self.settle()
        self.reach = [0.0, 0.0]

    def _first_watts(self, found: Sequence[Sides]) -> tuple[Two, Two]:
        busy, other = [], []
        for pool in (GENERATION, TRAINING):
            known = [s for s in found if s.busy_j is not None and s.other_j is not None]
            busy.append(median((s.busy_j or (0.0, 0.0))[pool] / s.busy_s[pool] for s in known))
            rests = [(s.other_j or (0.0, 0.0))[pool] / s.other_s(pool) for s in known if s.other_s(pool) > 0.0]
            other.append(median(rests) if rests else busy[pool])
        return (busy[0], busy[1]), (other[0], other[1])

    def _usual(
        self, found: Sequence[tuple[Sides, dict[str, float], UpdateRecord]]
    ) -> list[tuple[Sides, dict[str, float], UpdateRecord]]:
        """The first updates that are near the others at equal work: the very first are slow for theirs."""
        kept = list(found)
        for part in (GENERATION, TRAINING):
            logs = [
                math.log(sides.seconds[part]) - self.paces.work_log(part, counts) for sides, counts, _ in found
            ]
            middle = median(logs)
            limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
            near = {
                id(sides)
                for (sides, _, _), log in zip(found, logs, strict=True)
                if abs(log - middle) <= limit
            }
            kept = [item for item in kept if id(item[0]) in near]
        return kept or list(found)

    def settle(self) -> None:
        """An alarm was taken care of."""
        self._cusum = [0.0] * 4

    def doubt(self, pair: Pair) -> None:
        """The machine, or what these clocks cost, may have changed."""
        generation_mhz, training_mhz = pair.phases
        self.paces.doubt((generation_mhz is not None, training_mhz is not None), JUMP_SD)
        self.settle()

    def observe(self, evidence: Evidence, wished: Pair, *, settled: bool) -> bool:
        """Count the update's time and what its clocks took of it; True when it could be learnt from."""
        record, observation, pair = evidence.record, evidence.observation, evidence.pair
        lost = max(record.update - self._last_update - 1, 0) if self._last_update is not None else 0
        self._last_update = record.update
        self.seen += 1 + lost
        previous = self._last_counts if not lost else None
        self._last_counts = dict(observation.counts) if observation is not None else None
        visit_s = visitors(record)[0]
        validation_s = phase_totals(record).get("validation", (0.0, None))[0]
        self.recent.add_visits(validation_s, max(visit_s - validation_s, 0.0))
        sides = self.sides_of(observation, record) if observation is not None else None
        if sides is not None and observation is not None and not sides.visited:
            own = own_seconds(observation)
            if own is not None:
                self._gaps_s = [max(sides.seconds[axis] - own[axis], 0.0) for axis in (0, 1)]
        if not self.known:
            return False
        usual_s = self.recent.own_s
        own_s = max((record.elapsed_s or usual_s) - visit_s, 0.0)
        self.past_s += min(own_s, LONGEST * usual_s) + visit_s + lost * usual_s
        self.paces.advance(1 + lost)
        self.watts.advance(1 + lost)
        if lost:
            self._lose_typically(float(lost), self.setting_of(wished), 0.0)
        learnt = observation is not None and sides is not None and pair is not None and settled
        if observation is not None and sides is not None and pair is not None:
            counts, setting = work_of(observation, previous), self.setting_of(pair)
            if settled:
                self._learn(sides, counts, setting)
            self._expect(sides, counts, setting, record)
        if evidence.unusable is not Unusable.OPERATOR_HOLD:
            setting = self.setting_of(pair or requested(record))
            if not setting.is_governor:
                self._lose(sides, setting, validation_s)
        return learnt

    def refresh(self) -> None:
        """Work out what is expected of the next updates, and what was lost in the latest, by today's belief."""
        self.recent.refresh(self.paces.slow)
        more_s = self.recent.corrected_s()
        if more_s:
            self.paces.lose((0.0, 0.0, 0.0), more_s, GOVERNED)

    def _learn(self, sides: Sides, counts: Mapping[str, float], setting: Lowered) -> None:
        surprises = self.paces.read(sides.seconds, counts, setting)
        for axis in (GENERATION, TRAINING):
            surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprises[axis]))
            for i, signed in ((2 * axis, surprise), (2 * axis + 1, -surprise)):
                self._cusum[i] = max(self._cusum[i] + signed - CUSUM_DRIFT, 0.0)
            self.reach[axis] = max(self.reach[axis], setting.depths[axis])
        self.watts.read(sides, setting)

    def _expect(
        self, sides: Sides, counts: Mapping[str, float], setting: Lowered, record: UpdateRecord
    ) -> None:
        """The update becomes one of those that the next ones are expected to be like."""
        self._newest = None
        if self.recent.known and sides.running_s > LONGEST * self._expected_s(setting):
            return
        longest = counts.get("longest_consumed", counts.get("longest", 1.0))
        age = float(record.policy_age_max or 0.0)
        self._newest = Latest(sides, setting, max(counts["valid"], 1.0), max(longest, 1.0), age)
        self.recent.add(self._newest)

    def _expected_s(self, setting: Lowered) -> float:
        """Running seconds of an update under this setting."""
        generation, training, _ = self.paces.slow(setting)
        return float(self.recent.knee.running_s(generation, training))

    def _lose(self, sides: Sides | None, setting: Lowered, validation_s: float) -> None:
        """What an update's clocks cost, whether it is evidence or not."""
        if sides is None or sides.running_s > LONGEST * self._expected_s(setting):
            self._lose_typically(1.0, setting, validation_s)
            return
        slow = self.paces.slow(setting)
        if self._mode is ExecutionMode.ASYNC_DRAINED:
            generation_s, training_s = (sides.seconds[axis] * math.exp(-slow[axis]) for axis in (0, 1))
            governor_s = max(generation_s, training_s)
            critical = (governor_s, 0.0) if generation_s >= training_s else (0.0, governor_s)
        else:
            knee = self.recent.knee
            scale = sides.running_s / float(knee.running_s(slow[0], slow[1]))
            own, other = knee.critical_s(0.0, 0.0)
            critical = (scale * float(own), scale * float(other))
            governor_s = sum(critical)
            if self._newest is not None and self._newest.sides is sides:
                self._newest.accounted = (slow[0], slow[1], sides.running_s - governor_s)
        self._account(critical, sides.running_s - governor_s, sides.seconds[REST], setting, validation_s)

    def _lose_typically(self, updates: float, setting: Lowered, validation_s: float) -> None:
        """The same for updates of which nothing is known but their setting."""
        if setting.is_governor:
            return
        knee, slow = self.recent.knee, self.paces.slow(setting)
        own, other = knee.critical_s(0.0, 0.0)
        more_s = float(knee.running_s(slow[0], slow[1]) - knee.running_s(0.0, 0.0))
        rest_s = self.recent.rest_s * math.exp(slow[REST])
        critical = (updates * float(own), updates * float(other))
        self._account(critical, updates * more_s, updates * rest_s, setting, validation_s)

    def _account(
        self, critical_s: Two, more_s: float, rest_s: float, setting: Lowered, validation_s: float
    ) -> None:
        slow = self.paces.slow(setting)
        rest_governor_s = rest_s * math.exp(-slow[REST])
        validated_s = validation_s * math.exp(-slow[GENERATION])
        more_s += (rest_s - rest_governor_s) + (validation_s - validated_s)
        governor_s = (critical_s[0] + validated_s, critical_s[1], rest_governor_s)
        self.paces.lose(governor_s, more_s, setting)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ceilings_mhz": list(self.ceilings_mhz),
            "paces": self.paces.to_dict(),
            "watts": self.watts.to_dict(),
            "recent": self.recent.to_dict(),
            "past_s": self.past_s,
            "seen": self.seen,
            "last_update": self._last_update,
            "last_counts": self._last_counts,
            "reach": list(self.reach),
            "cusum": list(self._cusum),
            "gaps_s": list(self._gaps_s),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        self.ceilings_mhz = (generation, training)
        self.paces.load(values["paces"])
        self.watts.load(values["watts"])
        self.recent.load(values["recent"], self.paces.slow)
        self.past_s, self.seen = values["past_s"], values["seen"]
        self._last_update, self._last_counts = values["last_update"], values["last_counts"]
        self.reach, self._cusum = list(values["reach"]), list(values["cusum"])
        self._gaps_s = list(values["gaps_s"])


def requested(record: UpdateRecord) -> Pair:
    """The clocks of an update that ran under more than one plan, as far as its pools tell."""
    found = [record.pools.get(name) for name in ("generation", "training")]
    mhz = [pool.requested_mhz if pool is not None else None for pool in found]
    return Pair(mhz[0], mhz[1])
