"""Everything that is believed about a run, and what each update adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from eerl_controller.bayes.alarm import Alarm
from eerl_controller.bayes.effort import Effort
from eerl_controller.bayes.first_updates import typical, usual
from eerl_controller.bayes.firsts import Firsts
from eerl_controller.bayes.outliers import Outlier, Outliers
from eerl_controller.bayes.outlook import Outlook, governor_parts
from eerl_controller.bayes.powers import Powers
from eerl_controller.bayes.powers import response_row as power_row
from eerl_controller.bayes.sample import (
    GENERATION,
    GOVERNED,
    REST,
    TRAINING,
    Clocks,
    Parts,
    clocks_of,
    parts_of,
)
from eerl_controller.bayes.time_prior import Layout
from eerl_controller.bayes.times import Times
from eerl_controller.bayes.warm import Told, Verdict
from eerl_controller.clocks import Pair, requested
from eerl_controller.records import UpdateRecord
from eerl_controller.settling import is_long
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation, Unusable, phase_totals, visitors

#: A change of this size (a log) is what an alarm makes possible: the loss that a lock must not keep.
JUMP_SD = 0.03
#: An update to be learnt from together with the next: parts, work, clocks, and whether it is the first under them.
Waiting = tuple[Parts, Mapping[str, float], Clocks, bool]
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
        #: How deep either clock has been while it could be learnt from, as a log below the governor's.
        self.reach = [0.0, 0.0]
        self.alarm = Alarm()
        self._firsts = Firsts()
        #: How deep an earlier run went (``warm``).
        self._told = Told()
        self._outliers = Outliers(Clocks.from_list)
        #: The first update under clocks deeper than any before, until the second has come.
        self._waiting: list[Waiting] = []

    @property
    def known(self) -> bool:
        """Whether the models have begun and expect anything."""
        return self.times.known and self.outlook.known

    @property
    def tells_at_once(self) -> bool:
        """Whether the first update under other clocks tells of them."""
        return self._firsts.trusted and is_long(self.outlook.total_s)

    @property
    def lost_share(self) -> float:
        """What lowered clocks are believed to have cost so far, as a share of the run's time."""
        mean = self.times.bank.pooled_mean()
        return float(mean[Layout.lost]) / self.past_s if self.past_s > 0.0 else 0.0

    def clocks_of(self, pair: Pair) -> Clocks:
        """A pair of clocks as the models see it."""
        return clocks_of(pair, self.ceilings_mhz, one_pool=self._one_pool)

    def begin(self, first: Sequence[Observation], ceilings_mhz: tuple[float, float]) -> None:
        """Start the models from governor updates with known phases: their medians first, then one by one.

        What the run has lost before, to another governor, is kept.
        """
        self.ceilings_mhz = ceilings_mhz
        parts = [found for item in first if (found := parts_of(item)) is not None]
        for item in first:
            # What is usual is only known once all of them were seen.
            self._effort.of(item.counts)
        work = [self._effort.of(item.counts) for item in first]
        begin = typical(parts, work)
        if not self.times.known:
            self.past_s = self.seen * median(item.elapsed_s for item in first)
        self.times.begin(begin.seconds, begin.work)
        self.powers.begin(begin.watts, begin.work)
        self.outlook.forget()
        for row, found in usual(list(zip(work, parts, strict=True)), begin.work):
            self.times.advance()
            self.powers.advance(1)
            self._learn(found, row, GOVERNED)
            self._expect(found, GOVERNED)
        self.alarm.settle()
        self.reach = [0.0, 0.0]
        self._waiting = []

    def doubt(self, pair: Pair) -> None:
        """The machine, or what these clocks cost, may have changed."""
        generation_mhz, training_mhz = pair.phases
        self.times.doubt((generation_mhz is not None, training_mhz is not None), JUMP_SD)
        self.alarm.settle()

    def observe(self, evidence: Evidence, wished: Pair) -> bool:
        """Count the update's time and what its clocks took of it; True when it could be learnt from."""
        record = evidence.record
        lost = evidence.lost
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
        learnt, fresh = False, evidence.timed and not evidence.settled
        if observation is not None and parts is not None and pair is not None and evidence.timed:
            work, clocks = self._effort.of(observation.counts), self.clocks_of(pair)
            odd = self._firsts.add(
                clocks.depths,
                parts.seconds,
                work,
                lambda s, w: self.times.residuals(s, w, clocks),
                self.times.noise,
            )
            if odd is not None:
                self.times.doubt_first(odd)
            learnt = evidence.settled or self._firsts.trusted
            if learnt:
                # Power also follows temperature, which takes longer.
                self._take(replace(parts, joules=None) if fresh else parts, work, clocks, fresh=fresh)
        if parts is not None and pair is not None:
            self._expect(parts, self.clocks_of(pair), fresh=fresh)
        if evidence.unusable is not Unusable.OPERATOR_HOLD:
            self._lose(record, parts, pair or requested(record), validation_s, fresh=fresh)
        return learnt

    def _take(self, parts: Parts, work: Mapping[str, float], clocks: Clocks, *, fresh: bool) -> None:
        """Learn from an update; from the first under clocks deeper than any before together with the second.

        Of something never seen before anything is believed, a straggler too, and what follows then looks like the
        outlier. Of two the one nearer to what was expected is taken first.
        """
        self._waiting.append((parts, work, clocks, fresh))
        deeper = any(depth > most + 1e-9 for depth, most in zip(clocks.depths, self.reach, strict=True))
        if not deeper or len(self._waiting) > 1:
            self._learn_waiting()

    def _learn_waiting(self) -> None:
        self._waiting.sort(key=lambda item: self.times.distance(item[0].seconds, item[1], item[2]))
        for parts, work, clocks, fresh in self._waiting:
            self._learn(parts, work, clocks, fresh=fresh)
        self._waiting = []

    def _learn(self, parts: Parts, work: Mapping[str, float], clocks: Clocks, *, fresh: bool = False) -> None:
        surprises = self.times.read(parts.seconds, work, clocks, fresh=fresh)
        for slow in self._outliers.add(surprises, Outlier(parts.seconds, work, clocks)):
            self.times.insist(slow.seconds, slow.work, slow.setting)
        self.alarm.add(surprises)
        for axis in (GENERATION, TRAINING):
            self.reach[axis] = max(self.reach[axis], clocks.depths[axis])
        if not clocks.is_governor:
            verdict = self._told.compare(max(abs(surprises[axis]) for axis in (GENERATION, TRAINING)))
            if verdict is Verdict.WRONG:
                self.times.forget_prior()
            elif verdict is Verdict.RIGHT:
                self.reach = self._told.take(self.reach)
        if parts.joules is not None:
            watts = [j / s if s > 0.0 else 0.0 for j, s in zip(parts.joules, parts.seconds, strict=True)]
            self.powers.read((watts[0], watts[1], watts[2]), work, clocks)

    def _expect(self, parts: Parts, clocks: Clocks, *, fresh: bool = False) -> None:
        """What the governor would have taken for this update goes into what is expected of the next."""
        slow = self.times.slow(clocks, fresh=fresh)
        self.outlook.add_seconds(governor_parts(parts.seconds, slow))
        if parts.joules is not None:
            power = self.powers.mean
            change = [
                slow[part] - float(power_row(part, clocks) @ power) for part in (GENERATION, TRAINING, REST)
            ]
            self.outlook.add_joules(governor_parts(parts.joules, (change[0], change[1], change[2])))

    def _lose(
        self, record: UpdateRecord, parts: Parts | None, pair: Pair, validation_s: float, *, fresh: bool
    ) -> None:
        """What an update's clocks, and their change, cost, whether it is evidence or not."""
        if pair.is_governor and not fresh:
            return
        typical = self.outlook.seconds
        if parts is not None:
            found = parts.seconds
        else:
            own_s = max((record.elapsed_s or sum(typical)) - visitors(record)[0], 0.0)
            a, b, c = (own_s * value / sum(typical) for value in typical)
            found = (a, b, c)
        a, b, c = (min(value, LONGEST * most) for value, most in zip(found, typical, strict=True))
        self.times.lose((a + validation_s, b, c), self.clocks_of(pair), fresh=fresh)

    def posterior(self) -> dict[str, Any] | None:
        """What is known of the clocks, ready for JSON; None before anything is."""
        if not self.known:
            return None
        times, powers = self.times.posterior(), self.powers.posterior()
        return {
            "times": times,
            "powers": powers,
            "reach": list(self.reach),
            "ceilings_mhz": list(self.ceilings_mhz),
        }

    def warm(self, posterior: Mapping[str, Any]) -> None:
        """Begin, when the time comes, from what an earlier run knew."""
        self.times.prior, self.powers.prior = posterior.get("times"), posterior.get("powers")
        self._told = Told(posterior["reach"])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ceilings_mhz": list(self.ceilings_mhz),
            "times": self.times.to_dict(),
            "powers": self.powers.to_dict(),
            "outlook": self.outlook.to_dict(),
            "past_s": self.past_s,
            "seen": self.seen,
            "effort": self._effort.to_list(),
            "reach": list(self.reach),
            "alarm": self.alarm.to_list(),
            "told": self._told.to_list(),
            "slow": self._outliers.to_list(),
            "firsts": self._firsts.to_list(),
            "waiting": [_plain(item) for item in self._waiting],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        self.ceilings_mhz = (generation, training)
        self.times.load(values["times"])
        self.powers.load(values["powers"])
        self.outlook.load(values["outlook"])
        self.past_s, self.seen = values["past_s"], values["seen"]
        self._effort.load(values["effort"])
        self.reach = list(values["reach"])
        self.alarm.load(values["alarm"])
        self._firsts.load(values["firsts"])
        self._told = Told(*values["told"])
        self._waiting = [_seen(item) for item in values["waiting"]]
        self._outliers.load(values["slow"])


def _plain(seen: Waiting) -> list[Any]:
    parts, work, clocks, fresh = seen
    return [
        list(parts.seconds),
        list(parts.joules) if parts.joules else None,
        dict(work),
        clocks.to_list(),
        fresh,
    ]


def _seen(plain: Sequence[Any]) -> Waiting:
    seconds, joules, work, clocks, fresh = plain
    return Parts((*seconds,), (*joules,) if joules else None), work, Clocks.from_list(clocks), fresh
