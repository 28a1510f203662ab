"""Everything that is believed about a run whose pools overlap, and what each update adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from eerl_controller.bayes.alarm import Alarm
from eerl_controller.bayes.firsts import Firsts
from eerl_controller.bayes.look import Look, Looks, usual
from eerl_controller.bayes.outliers import Outlier, Outliers
from eerl_controller.bayes.paces import Paces
from eerl_controller.bayes.pool_losses import Losses
from eerl_controller.bayes.recent import Latest, Recent
from eerl_controller.bayes.sample import Three
from eerl_controller.bayes.sides import (
    GENERATION,
    GOVERNED,
    REST,
    TRAINING,
    Lowered,
    Two,
    lowered,
)
from eerl_controller.bayes.warm import Told, Verdict
from eerl_controller.bayes.watts import Watts, first_watts
from eerl_controller.clocks import Pair, requested
from eerl_controller.records import ExecutionMode
from eerl_controller.settling import is_long
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable, phase_totals, visitors

#: A change of this size (a log) is what an alarm makes possible: the loss that a lock must not keep.
JUMP_SD = 0.03
#: A side that took longer than this many times what its work explains waited for something that no clock moves. The
#: next one in a row did not: that is how long updates are now.
LONGEST = 2.0
#: After so many in a row under the governor nothing that is known of paces holds any more.
ANOTHER_JOB = 3


class PoolLearner:
    """The models of time and power, what is expected of the next updates, and what was spent of the allowance."""

    def __init__(self, mode: ExecutionMode, top_mhz: float) -> None:
        self._top_mhz = top_mhz
        self.ceilings_mhz = (top_mhz, top_mhz)
        self.paces, self.watts, self.recent = Paces(mode), Watts(), Recent(mode)
        self._losses = Losses(mode, self.paces, self.recent)
        #: Seconds that the run has taken, without what waited for nothing that a clock moves.
        self.past_s = 0.0
        #: Updates that the run has taken, lost ones included.
        self.seen = 0
        self._looks = Looks(mode)
        #: How deep either clock has been while it could be learnt from, as a log below the governor's.
        self.reach = [0.0, 0.0]
        #: How deep an earlier run went (``warm``).
        self._told = Told()
        self._alarm = Alarm()
        self._firsts = Firsts()
        self._outliers = Outliers(Lowered.from_list)
        #: Updates in a row that took longer than their work explains, and those of them that were the governor's.
        self._long = [0, 0]
        #: The latest update: what it showed, and as one of those that the next are expected to be like.
        self.look: Look | None = None
        self._newest: Latest | None = None

    @property
    def known(self) -> bool:
        """Whether the models have begun and expect anything."""
        return self.paces.known and self.recent.known and self.watts.known

    @property
    def alarmed(self) -> bool:
        """Whether updates have lately not been what they were."""
        return self._alarm.raised

    @property
    def outdated(self) -> bool:
        """Whether the governor's updates have become far longer than anything known explains."""
        return self._long[1] >= ANOTHER_JOB

    @property
    def tells_at_once(self) -> bool:
        """Whether the first update under other clocks tells of them."""
        return self._firsts.trusted and is_long(self.recent.total_s)

    @property
    def lost_share(self) -> float:
        """What lowered clocks are believed to have cost so far, as a share of the run's time."""
        return self.paces.lost[0] / self.past_s if self.past_s > 0.0 else 0.0

    def setting_of(self, pair: Pair) -> Lowered:
        """A pair of clocks as the models see it."""
        return lowered(pair, self.ceilings_mhz, self._top_mhz)

    def begin(self, first: Sequence[Look], ceilings_mhz: Two) -> None:
        """Start the models from governor updates: their medians first, then one by one.

        What the run has lost before, to another governor, is kept.
        """
        self.ceilings_mhz = ceilings_mhz
        names = {name for look in first for name in look.counts}
        centres = {
            name: median(look.counts[name] for look in first if name in look.counts) for name in sorted(names)
        }
        a, b, c = (median(look.sides.seconds[part] for look in first) for part in range(3))
        if not self.paces.known:
            self.past_s = self.seen * median(
                look.sides.running_s + look.sides.seconds[REST] for look in first
            )
        self.paces.begin((a, b, c), centres)
        self.watts.begin(*first_watts([look.sides for look in first]))
        self.recent.forget()
        self._long = [0, 0]
        for look in usual(first, self.paces):
            self.paces.advance()
            self.watts.advance(1)
            self._learn(look, GOVERNED)
            self._expect(look, GOVERNED)
        self.recent.refresh(self.paces.slow)
        self.settle()
        self.reach = [0.0, 0.0]

    def settle(self) -> None:
        """An alarm was taken care of."""
        self._alarm.settle()

    def doubt(self, pair: Pair) -> None:
        """The machine, or what these clocks cost, may have changed."""
        generation_mhz, training_mhz = pair.phases
        self.paces.doubt((generation_mhz is not None, training_mhz is not None), JUMP_SD)
        # The coming updates are like those since then.
        self.recent.keep(self._alarm.since)
        self.settle()

    def observe(self, evidence: Evidence, wished: Pair, *, settled: bool, timed: bool) -> bool:
        """Count the update's time and what its clocks took of it; True when it could be learnt from.

        ``timed``: its time tells of its clocks, its power only if it is ``settled`` too.
        """
        record, pair = evidence.record, evidence.pair
        lost = evidence.lost
        self.seen += 1 + lost
        visit_s = visitors(record)[0]
        validation_s = phase_totals(record).get("validation", (0.0, None))[0]
        self.recent.add_visits(validation_s, max(visit_s - validation_s, 0.0))
        look = self.look = self._looks.of(evidence)
        if not self.known:
            return False
        usual_s = self.recent.own_s
        own_s = max((record.elapsed_s or usual_s) - visit_s, 0.0)
        ran_under = self.setting_of(pair or requested(record))
        strange = look is None or self._is_strange(look, ran_under)
        self.past_s += (min(own_s, LONGEST * usual_s) if strange else own_s) + visit_s + lost * usual_s
        self.paces.advance(1 + lost)
        self.watts.advance(1 + lost)
        if lost:
            self._losses.account_typically(float(lost), self.setting_of(wished), 0.0)
        self._newest = None
        learnt = False
        if look is not None and pair is not None:
            learnt = timed and self._tells(look, ran_under, settled=settled)
            if learnt:
                self._learn(look if settled else look.without_joules(), ran_under)
            if not strange:
                self._expect(look, ran_under)
        if evidence.unusable is not Unusable.OPERATOR_HOLD and not ran_under.is_governor:
            if look is None or strange:
                self._losses.account_typically(1.0, ran_under, validation_s)
            else:
                self._losses.account(look.sides, ran_under, validation_s, self._newest)
        return learnt

    def _tells(self, look: Look, setting: Lowered, *, settled: bool) -> bool:
        """Whether an update tells of its clocks: a first one under them while first ones do."""

        def residuals(seconds: Three, work: Mapping[str, float]) -> list[float]:
            return self.paces.residuals(seconds, work, setting)

        self._firsts.add(setting.depths, look.sides.seconds, look.counts, residuals, self.paces.noise)
        return settled or self._firsts.trusted

    def _is_strange(self, look: Look, setting: Lowered) -> bool:
        """Whether an update is far longer than its work explains, and the one before was not."""
        if self.paces.excess(look.sides.seconds, look.counts, setting) <= LONGEST:
            self._long = [0, 0]
            return False
        self._long = [self._long[0] + 1, self._long[1] + setting.is_governor]
        return self._long[0] == 1

    def refresh(self) -> None:
        """Work out what is expected of the next updates, and what was lost in the latest, by today's belief."""
        self.recent.refresh(self.paces.slow)
        more_s = self.recent.corrected_s()
        if more_s:
            self.paces.lose((0.0, 0.0, 0.0), more_s, GOVERNED)

    def _learn(self, look: Look, setting: Lowered) -> None:
        surprises = self.paces.read(look.sides.seconds, look.counts, setting)
        for slow in self._outliers.add(surprises, Outlier(look.sides.seconds, look.counts, setting)):
            self.paces.insist(slow.seconds, slow.work, slow.setting)
        self._alarm.add(surprises)
        for axis in (GENERATION, TRAINING):
            self.reach[axis] = max(self.reach[axis], setting.depths[axis])
        if not setting.is_governor:
            verdict = self._told.compare(max(abs(surprises[axis]) for axis in (GENERATION, TRAINING)))
            if verdict is Verdict.WRONG:
                self.paces.forget_prior()
            elif verdict is Verdict.RIGHT:
                self.reach = self._told.take(self.reach)
        self.watts.read(look.sides, setting)

    def posterior(self) -> dict[str, Any] | None:
        """What is known of the clocks, ready for JSON; None before anything is."""
        if not self.known:
            return None
        return {
            "paces": self.paces.posterior(),
            "watts": self.watts.posterior(),
            "reach": list(self.reach),
            "ceilings_mhz": list(self.ceilings_mhz),
        }

    def warm(self, posterior: Mapping[str, Any]) -> None:
        """Begin, when the time comes, from what an earlier run knew."""
        self.paces.prior, self.watts.prior = posterior.get("paces"), posterior.get("watts")
        self._told = Told(posterior["reach"])

    def _expect(self, look: Look, setting: Lowered) -> None:
        """The update becomes one of those that the next ones are expected to be like."""
        longest = look.counts.get("longest_consumed", look.counts.get("longest", 1.0))
        self._newest = Latest(look.sides, setting, max(longest, 1.0), look.age)
        self.recent.add(self._newest)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "ceilings_mhz": list(self.ceilings_mhz),
            "paces": self.paces.to_dict(),
            "watts": self.watts.to_dict(),
            "recent": self.recent.to_dict(),
            "past_s": self.past_s,
            "seen": self.seen,
            "looks": self._looks.to_dict(),
            "reach": list(self.reach),
            "alarm": self._alarm.to_list(),
            "long": list(self._long),
            "told": self._told.to_list(),
            "slow": self._outliers.to_list(),
            "firsts": self._firsts.to_list(),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        generation, training = values["ceilings_mhz"]
        self.ceilings_mhz = (generation, training)
        self.paces.load(values["paces"])
        self.watts.load(values["watts"])
        self.recent.load(values["recent"])
        self.past_s, self.seen = values["past_s"], values["seen"]
        self._looks.load(values["looks"])
        self.reach = list(values["reach"])
        self._alarm.load(values["alarm"])
        self._long = list(values["long"])
        self._told = Told(*values["told"])
        self._outliers.load(values["slow"])
        self._firsts.load(values["firsts"])
