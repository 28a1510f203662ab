"""Everything that is believed about a run, and what each update adds to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from eerl_controller.bayes.effort import Effort
from eerl_controller.bayes.outlook import Outlook, governor_parts
from eerl_controller.bayes.powers import Powers
from eerl_controller.bayes.sample import (
    GENERATION,
    GOVERNED,
    REST,
    TRAINING,
    Clocks,
    Parts,
    Three,
    clocks_of,
    parts_of,
)
from eerl_controller.bayes.times import WORK, Layout, Times
from eerl_controller.clocks import Pair
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.records import UpdateRecord
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


class Learner:
    """The models of time and power, what is expected of the next updates, and what was spent of the allowance."""

    def __init__(self, ceilings_mhz: tuple[float, float], *, one_pool: bool) -> None:
        self._one_pool = one_pool
        self.ceilings_mhz = ceilings_mhz
        self.times, self.powers, self.outlook = Times(), Powers(), Outlook()
        self._effort = Effort()
        #: Seconds that the run has taken, without what waited for nothing that a clock moves.
        self.past_s = 0.0
        #: Updates that the run has taken, lost ones included.
        self.seen = 0
        self._last_update: int | None = None
        #: How deep either clock has been while it could be learnt from, as a log below the governor's.
        self.reach = [0.0, 0.0]
        self._cusum = [0.0, 0.0, 0.0, 0.0]
        #: The first update under clocks deeper than any before, until the second has come.
        self._waiting: list[tuple[Parts, Mapping[str, float], Clocks]] = []

    @property
    def known(self) -> bool:
        """Whether the models have begun and expect anything."""
        return self.times.known and self.outlook.known

    @property
    def alarmed(self) -> bool:
        """Whether updates have lately not been what they were."""
        return max(self._cusum) >= CUSUM_LIMIT

    @property
    def lost_share(self) -> float:
        """What lowered clocks are believed to have cost so far, as a share of the run's time."""
        mean = self.times.bank.pooled_mean()
        return float(mean[Layout.lost]) / self.past_s if self.past_s > 0.0 else 0.0

    def clocks_of(self, pair: Pair) -> Clocks:
        """A pair of clocks as the models see it."""
        return clocks_of(pair, self.ceilings_mhz, one_pool=self._one_pool)

    def begin(self, first: Sequence[Observation], ceilings_mhz: tuple[float, float]) -> None:
        """Start the models from governor updates: their medians first, then one by one.

        What the run has lost before, to another governor, is kept.
        """
        self.ceilings_mhz = ceilings_mhz
        parts = [(item, found) for item in first if (found := parts_of(item)) is not None]
        work = [self._effort.of(item.counts) for item, _ in parts]
        # What is usual is only known once all of them were seen.
        work = [self._effort.of(item.counts) for item, _ in parts]
        counts = {
            name: median(row[name] for row in work) for name in work[0] if all(name in row for row in work)
        }
        seconds = [median(found.seconds[part] for _, found in parts) for part in range(3)]
        joules = [(found.joules, found.seconds) for _, found in parts if found.joules is not None]
        watts = [median(j[part] / max(s[part], 1e-9) for j, s in joules) for part in range(3)]
        if not self.times.known:
            self.past_s = self.seen * median(item.elapsed_s for item, _ in parts)
        self.times.begin((seconds[0], seconds[1], seconds[2]), counts)
        self.powers.begin((watts[0], watts[1], watts[2]), counts)
        self.outlook.forget()
        for row, found in usual([(row, found) for row, (_, found) in zip(work, parts, strict=True)], counts):
            self.times.advance()
            self.powers.advance(1)
            self._learn(found, row, GOVERNED)
            self._expect(found, GOVERNED)
        self.settle()
        self.reach = [0.0, 0.0]
        self._waiting = []

    def settle(self) -> None:
        """An alarm was taken care of."""
        self._cusum = [0.0] * 4

    def doubt(self, pair: Pair) -> None:
        """The machine, or what these clocks cost, may have changed."""
        generation_mhz, training_mhz = pair.phases
        self.times.doubt((generation_mhz is not None, training_mhz is not None), JUMP_SD)
        self.settle()

    def observe(self, evidence: Evidence, wished: Pair) -> bool:
        """Count the update's time and what its clocks took of it; True when it could be learnt from."""
        record = evidence.record
        lost = max(record.update - self._last_update - 1, 0) if self._last_update is not None else 0
        self._last_update = record.update
        self.seen += 1 + lost
        visit_s = visitors(record)[0]
        validation_s = phase_totals(record).get("validation", (0.0, None))[0]
        self.outlook.add_visits(validation_s, max(visit_s - validation_s, 0.0))
        if not self.known:
            return False
        if self._waiting and (evidence.pair is None or self.clocks_of(evidence.pair) != self._waiting[0][2]):
            self._learn_waiting()
        usual_s = sum(self.outlook.seconds)
        own_s = max((record.elapsed_s or usual_s) - visit_s, 0.0)
        self.past_s += min(own_s, LONGEST * usual_s) + visit_s + lost * usual_s
        self.times.advance(1 + lost)
        self.powers.advance(1 + lost)
        if lost:
            a, b, c = (lost * value for value in self.outlook.seconds)
            self.times.lose((a, b, c), self.clocks_of(wished))
        observation, pair = evidence.observation, evidence.pair
        parts = parts_of(observation) if observation is not None else None
        learnt = observation is not None and parts is not None and pair is not None and evidence.settled
        if learnt and observation is not None and parts is not None and pair is not None:
            self._take(parts, self._effort.of(observation.counts), self.clocks_of(pair))
        if parts is not None and pair is not None:
            self._expect(parts, self.clocks_of(pair))
        if evidence.unusable is not Unusable.OPERATOR_HOLD:
            self._lose(record, parts, pair or requested(record), validation_s)
        return learnt

    def _take(self, parts: Parts, work: Mapping[str, float], clocks: Clocks) -> None:
        """Learn from an update; from the first under clocks deeper than any before together with the second.

        Of something never seen before anything is believed, a straggler too, and what follows then looks like the
        outlier. Of two the one nearer to what was expected is taken first.
        """
        self._waiting.append((parts, work, clocks))
        deeper = any(depth > most + 1e-9 for depth, most in zip(clocks.depths, self.reach, strict=True))
        if not deeper or len(self._waiting) > 1:
            self._learn_waiting()

    def _learn_waiting(self) -> None:
        self._waiting.sort(key=lambda item: self.times.distance(item[0].seconds, item[1], item[2]))
        for parts, work, clocks in self._waiting:
            self._learn(parts, work, clocks)
        self._waiting = []

    def _learn(self, parts: Parts, work: Mapping[str, float], clocks: Clocks) -> None:
        surprises = self.times.read(parts.seconds, work, clocks)
        for axis in (GENERATION, TRAINING):
            surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprises[axis]))
            for i, signed in ((2 * axis, surprise), (2 * axis + 1, -surprise)):
                self._cusum[i] = max(self._cusum[i] + signed - CUSUM_DRIFT, 0.0)
            self.reach[axis] = max(self.reach[axis], clocks.depths[axis])
        if parts.joules is not None:
            watts = [j / s if s > 0.0 else 0.0 for j, s in zip(parts.joules, parts.seconds, strict=True)]
            self.powers.read((watts[0], watts[1], watts[2]), work, clocks)

    def _expect(self, parts: Parts, clocks: Clocks) -> None:
        """What the governor would have taken for this update goes into what is expected of the next."""
        mean = self.times.bank.pooled_mean()
        slow = [float(self.times.response_row(part, clocks) @ mean) for part in (GENERATION, TRAINING, REST)]
        self.outlook.add_seconds(governor_parts(parts.seconds, (slow[0], slow[1], slow[2])))
        if parts.joules is not None:
            power = self.powers.mean
            change = [
                slow[part] - float(self.powers.response_row(part, clocks) @ power)
                for part in (GENERATION, TRAINING, REST)
            ]
            self.outlook.add_joules(governor_parts(parts.joules, (change[0], change[1], change[2])))

    def _lose(self, record: UpdateRecord, parts: Parts | None, pair: Pair, validation_s: float) -> None:
        """What an update's clocks cost, whether it is evidence or not."""
        if pair.is_governor:
            return
        typical = self.outlook.seconds
        if parts is not None:
            found = parts.seconds
        else:
            own_s = max((record.elapsed_s or sum(typical)) - visitors(record)[0], 0.0)
            a, b, c = (own_s * value / sum(typical) for value in typical)
            found = (a, b, c)
        a, b, c = (min(value, LONGEST * most) for value, most in zip(found, typical, strict=True))
        self.times.lose((a + validation_s, b, c), self.clocks_of(pair))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ceilings_mhz": list(self.ceilings_mhz),
            "times": self.times.to_dict(),
            "powers": self.powers.to_dict(),
            "outlook": self.outlook.to_dict(),
            "past_s": self.past_s,
            "seen": self.seen,
            "last_update": self._last_update,
            "effort": self._effort.to_list(),
            "reach": list(self.reach),
            "cusum": list(self._cusum),
            "waiting": [
                [
                    list(parts.seconds),
                    list(parts.joules) if parts.joules else None,
                    dict(work),
                    clocks.to_list(),
                ]
                for parts, work, clocks in self._waiting
            ],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        self.ceilings_mhz = (generation, training)
        self.times.load(values["times"])
        self.powers.load(values["powers"])
        self.outlook.load(values["outlook"])
        self.past_s, self.seen = values["past_s"], values["seen"]
        self._last_update = values["last_update"]
        self._effort.load(values["effort"])
        self.reach, self._cusum = list(values["reach"]), list(values["cusum"])
        self._waiting = [
            (Parts((*seconds,), (*joules,) if joules else None), work, Clocks.from_list(clocks))
            for seconds, joules, work, clocks in values["waiting"]
        ]


def requested(record: UpdateRecord) -> Pair:
    """The clocks of an update that ran under more than one plan, as far as its pools tell."""
    found = [record.pools.get(name) for name in ("generation", "training")]
    mhz = [pool.requested_mhz if pool is not None else None for pool in found]
    return Pair(mhz[0], mhz[1])


def usual(
    parts: Sequence[tuple[Mapping[str, float], Parts]], counts: Mapping[str, float]
) -> list[tuple[Mapping[str, float], Parts]]:
    """The first updates that are near the others at equal work: the very first are slow for theirs."""
    kept = list(range(len(parts)))
    for part in (GENERATION, TRAINING):
        logs = []
        for work, found in parts:
            log = math.log(found.seconds[part])
            for name, slope, _ in WORK[part]:
                if name in counts and name in work:
                    log -= slope * (math.log1p(work[name]) - math.log1p(counts[name]))
            logs.append(log)
        middle = median(logs)
        limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
        kept = [i for i in kept if abs(logs[i] - middle) <= limit]
    return [parts[i] for i in kept] or list(parts)


__all__ = ["CUSUM_LIMIT", "JUMP_SD", "Learner", "Three", "requested", "usual"]
