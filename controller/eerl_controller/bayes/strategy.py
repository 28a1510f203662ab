"""Policy ``eerl`` in the synchronous modes: learn from every usable update, decide by one rule.

Every change of state goes through :meth:`BayesSync._enter`; ``states`` says what the states mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from eerl_controller.bayes.decision import Allowance, Axis, Choice, Rule
from eerl_controller.bayes.outlook import Outlook, governor_parts
from eerl_controller.bayes.powers import Powers
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Clocks, Parts, clocks_of, parts_of
from eerl_controller.bayes.times import WORK, Layout, Times
from eerl_controller.clocks import GOVERNOR, Pair, PlanBook, allowed_clocks, idle_clock, snap
from eerl_controller.colocated import ColocatedSync
from eerl_controller.controlled import Controlled
from eerl_controller.disaggregated import DisaggregatedSync
from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.horizon import remaining_updates
from eerl_controller.records import ClockGrid, ExecutionMode, UpdateRecord
from eerl_controller.references import References
from eerl_controller.regression import robust_sd
from eerl_controller.settings import Settings
from eerl_controller.situation import ceilings_mhz
from eerl_controller.states import TRANSITIONS, Reason, State
from eerl_controller.strategy import Evidence, Strategy, no_clocks_note
from eerl_controller.suspension import Suspension
from eerl_controller.trouble import Trouble
from eerl_controller.work import Observation, Unusable, phase_totals, visitors

HOLDING = (State.SEARCH, State.CONFIRMATION, State.LOCKED)
#: Usable governor updates before the first trial: their median stands two slow ones that warm-up left over.
FIRST_UPDATES = 6
#: Usable updates of a block, trial or governor: with one, a single straggler would be all that is known.
BLOCK_UPDATES = 2
#: Clocks nearer than this (a log) are not worth telling apart.
LEAST_STEP = 0.02
#: A trial goes no deeper than this many times what was tried: beyond lies extrapolation.
DEEPER = 2.0
#: Alternations of lowered clocks and governor that make a search.
SEARCH_CONTRASTS = 3
#: Updates that a change of clocks must repay: it costs its first one as evidence.
CHANGE_UPDATES = 2.0
#: Page's cumulative sum: surprises beyond this drift add up, and this much of them is a change. Gaussian surprises
#: reach it by chance once in some thousand updates.
CUSUM_DRIFT, CUSUM_LIMIT, LARGEST_SURPRISE = 0.75, 7.0, 3.0
#: A change of this size (a log) is what an alarm makes possible.
JUMP_SD = 0.03


class BayesSync(Strategy):
    """The controller of a synchronous job, colocated or with separate pools."""

    def __init__(
        self, settings: Settings, grid: ClockGrid, references: References, mode: ExecutionMode
    ) -> None:
        super().__init__(State.CALIBRATION, PlanBook(Reason.CALIBRATING, "governor clocks until it is known"))
        self._settings = settings
        self._grid = grid
        self._references = references
        self._clocks = tuple(mhz for mhz in allowed_clocks(grid, settings) if mhz < grid.governor_mhz)
        self._one_pool = mode is ExecutionMode.COLOCATED_SYNC
        self._idle_mhz = None if self._one_pool else idle_clock(grid, settings)
        self._trouble = Trouble(settings)
        self._suspension = Suspension(settings)
        self._times, self._powers, self._outlook = Times(), Powers(), Outlook()
        self._first: list[Observation] = []
        self._ceilings: tuple[float, float] = (float(grid.governor_mhz), float(grid.governor_mhz))
        self._rule: Rule | None = None
        self._past_s = 0.0
        self._seen = 0
        self._left: float | None = None
        self._last_update: int | None = None
        #: Usable updates under the clocks in force, and how many make the block.
        self._usable = 0
        self._contrasts = 0
        self._reach = [0.0, 0.0]
        self._cusum = [0.0, 0.0, 0.0, 0.0]
        self._choice: Choice | None = None
        #: The lowered clocks that a governor block interrupts.
        self._held = GOVERNOR
        #: Updates in a row whose phases are not known.
        self._blind = 0
        #: The policy of trials, which needs no phases; None as long as there are some.
        self._fallback: Controlled | None = None
        if not self._clocks:
            self.state = State.FAILED
            self.book = PlanBook(Reason.NO_CLOCKS, no_clocks_note(settings, grid))

    # -- one way in --------------------------------------------------------------------------------------------

    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""
        if self._fallback is not None:
            self._fallback.observe(evidence)
            self.state = self._fallback.state
            return
        record = evidence.record
        self._account(evidence)
        if evidence.unusable is Unusable.OPERATOR_HOLD or self.state is State.FAILED:
            return
        if self.state in HOLDING and not self.book.pair.is_governor:
            reason = self._trouble.add(evidence)
            if reason is None and self._blind >= self._settings.give_up_updates:
                reason = Reason.NO_EVIDENCE
            if reason is not None:
                self._suspend(reason, "too many updates in a row; governor clocks for now")
                return
        self._left = remaining_updates(record, self._outlook.total_s if self._outlook.known else 0.0)
        if self.state is State.CALIBRATION:
            self._on_calibration(evidence)
        elif self.state is State.SUSPENDED:
            self._on_suspended(evidence)
        elif evidence.in_force and self._usable >= BLOCK_UPDATES:
            self._decide()

    def _enter(self, state: State, pair: Pair, reason: Reason, note: str) -> None:
        """The only place where the state or the clocks change."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"no way from {self.state.value} to {state.value}: a bug in the controller")
        if pair != self.book.pair:
            self._trouble.reset()
            self._usable = self._blind = 0
        self.state = state
        self.book.wish(pair, reason, note)

    def _clocks_of(self, pair: Pair) -> Clocks:
        return clocks_of(pair, self._ceilings, one_pool=self._one_pool)

    # -- learning ----------------------------------------------------------------------------------------------

    def _account(self, evidence: Evidence) -> None:
        """Count the update's time and what the clocks took of it; learn from it when it is usable."""
        record = evidence.record
        lost = 0
        if self._last_update is not None:
            lost = max(record.update - self._last_update - 1, 0)
        self._last_update = record.update
        self._seen += 1 + lost
        self._past_s += record.elapsed_s or 0.0
        if self._times.known:
            self._times.advance(1 + lost)
            self._powers.advance(1 + lost)
            if lost and self._outlook.known:
                clocks = self._clocks_of(self.book.pair)
                seconds = [lost * value for value in self._outlook.seconds]
                self._past_s += sum(seconds)
                self._times.lose((seconds[0], seconds[1], seconds[2]), clocks)
        validation_s, visits_s = _validation(record)
        self._outlook.add_visits(validation_s, visits_s - validation_s)
        observation = evidence.observation
        parts = parts_of(observation) if observation is not None else None
        if observation is not None:
            self._blind = 0 if parts is not None else self._blind + 1
        if self._times.known and parts is not None and evidence.pair is not None and observation is not None:
            clocks = self._clocks_of(evidence.pair)
            if evidence.settled:
                self._learn(parts, observation, clocks)
                self._usable += evidence.in_force
            self._expect(parts, clocks)
        if self._times.known and evidence.unusable is not Unusable.OPERATOR_HOLD:
            self._lose(record, parts, evidence.pair, validation_s)

    def _learn(self, parts: Parts, observation: Observation, clocks: Clocks) -> None:
        surprises = self._times.read(parts.seconds, observation.counts, clocks)
        for axis in (GENERATION, TRAINING):
            surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprises[axis]))
            for i, signed in ((2 * axis, surprise), (2 * axis + 1, -surprise)):
                self._cusum[i] = max(self._cusum[i] + signed - CUSUM_DRIFT, 0.0)
        if parts.joules is not None:
            watts = [j / s if s > 0.0 else 0.0 for j, s in zip(parts.joules, parts.seconds, strict=True)]
            self._powers.read((watts[0], watts[1], watts[2]), observation.counts, clocks)
        for axis in (0, 1):
            self._reach[axis] = max(self._reach[axis], clocks.depths[axis])

    def _expect(self, parts: Parts, clocks: Clocks) -> None:
        """What the governor would have taken for this update goes into what is expected of the next."""
        mean, _ = self._times.bank.pooled()
        slow = [float(self._times.response_row(part, clocks) @ mean) for part in (GENERATION, TRAINING, REST)]
        self._outlook.add_seconds(governor_parts(parts.seconds, (slow[0], slow[1], slow[2])))
        if parts.joules is not None:
            power = self._powers.mean
            change = [
                slow[part] - float(self._powers.response_row(part, clocks) @ power)
                for part in (GENERATION, TRAINING, REST)
            ]
            self._outlook.add_joules(governor_parts(parts.joules, (change[0], change[1], change[2])))

    def _lose(
        self, record: UpdateRecord, parts: Parts | None, pair: Pair | None, validation_s: float
    ) -> None:
        """What an update's clocks cost, whether it is evidence or not."""
        pair = pair or self._requested(record)
        if pair.is_governor:
            return
        seconds = parts.seconds if parts is not None else _rough_parts(record, self._outlook)
        if seconds is None:
            return
        if self._outlook.known:
            # A straggler waits for something else than the clock.
            usual = self._outlook.seconds
            seconds = tuple(min(value, 2.0 * most) for value, most in zip(seconds, usual, strict=True))  # type: ignore[assignment]
        self._times.lose((seconds[0] + validation_s, seconds[1], seconds[2]), self._clocks_of(pair))

    def _requested(self, record: UpdateRecord) -> Pair:
        """The clocks of an update that ran under more than one plan, as far as its pools tell."""
        found = [record.pools.get(name) for name in ("generation", "training")]
        mhz = [pool.requested_mhz if pool is not None else None for pool in found]
        return Pair(mhz[0], mhz[1])

    # -- calibration -------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        if self._times.known:
            self._usable = max(self._usable, BLOCK_UPDATES)
            self._decide()
            return
        if self._blind >= FIRST_UPDATES:
            self._fall_back(evidence)
            return
        observation = evidence.observation
        if observation is not None and evidence.is_reference and parts_of(observation) is not None:
            self._first.append(observation)
        have = [item for item in self._first if item.energy_j is not None]
        if len(have) < FIRST_UPDATES:
            reason, note = Reason.CALIBRATING, f"{len(have)} of {FIRST_UPDATES} usable governor updates"
            if evidence.unusable is Unusable.MISSING_COUNTS:
                reason = Reason.MISSING_COUNTS
                note += "; markers bring no valid_tokens: send them to have clocks controlled"
            elif len(self._first) >= FIRST_UPDATES:
                reason, note = Reason.MISSING_ENERGY, "energy of the job is not known"
            self._first = self._first[-2 * FIRST_UPDATES :]
            self._enter(State.CALIBRATION, GOVERNOR, reason, note)
            return
        self._begin()
        self._try_first()

    def _fall_back(self, evidence: Evidence) -> None:
        """Phases are not told apart: whole updates under both clocks are what trials can judge."""
        kind = ColocatedSync if self._one_pool else DisaggregatedSync
        self._fallback = kind(self._settings, self._grid, self._references)
        self._fallback.book = self.book
        self._fallback.observe(evidence)
        self.state = self._fallback.state

    def _begin(self) -> None:
        """Start the models from the first updates' medians, then read them one by one."""
        parts = [(item, found) for item in self._first if (found := parts_of(item)) is not None]
        counts = {
            name: median(item.counts.get(name, 0.0) for item, _ in parts)
            for name in parts[0][0].counts
            if all(name in item.counts for item, _ in parts)
        }
        seconds = [median(found.seconds[part] for _, found in parts) for part in range(3)]
        powered = [found for _, found in parts if found.joules is not None]
        watts = [
            median((p.joules or (0.0,) * 3)[part] / max(p.seconds[part], 1e-9) for p in powered)
            for part in range(3)
        ]
        self._times.begin((seconds[0], seconds[1], seconds[2]), counts)
        self._powers.begin((watts[0], watts[1], watts[2]), counts)
        model = self._references.model
        if model is not None:
            self._ceilings = ceilings_mhz(model, self._grid)
        governed = self._clocks_of(GOVERNOR)
        for item, found in usual(parts, counts):
            self._times.advance()
            self._powers.advance(1)
            self._learn(found, item, governed)
            self._expect(found, governed)
        self._cusum = [0.0] * 4
        self._first = []
        self._rule = self._make_rule()

    def _make_rule(self) -> Rule:
        """The settings to choose among, for the clocks that the governor reaches."""
        generation, training = (Axis(thinned(self._clocks, mhz), mhz) for mhz in self._ceilings)
        return Rule((generation, training), self._idle_mhz, one_pool=self._one_pool)

    def _try_first(self) -> None:
        """Both clocks reduced (paper, section 6.1), as far as the allowance bears at the worst."""
        fraction = self._settings.start_fraction
        allowance = self._allowance()
        budget = allowance.limit * (allowance.past_s / self._outlook.total_s + allowance.left)
        trial = 2.0 * BLOCK_UPDATES
        while trial * (1.0 / fraction - 1.0) > 0.5 * budget and fraction < 0.99:
            fraction = 1.0 - 0.7 * (1.0 - fraction)
        below = [[mhz for mhz in self._clocks if mhz < ceiling] for ceiling in self._ceilings]
        pair = Pair(
            snap(fraction * self._ceilings[0], below[0]) if below[0] else None,
            snap(fraction * self._ceilings[1], below[1]) if below[1] else None,
            self._idle_mhz,
        )
        self._enter(State.SEARCH, pair, Reason.TRIAL, f"first trial: {pair}")

    # -- deciding ----------------------------------------------------------------------------------------------

    def _allowance(self) -> Allowance:
        """What may be lost; as long again as it has run when nobody says how long it will (and no less than a
        monitoring window, so that it may begin)."""
        left = self._left
        told = left is not None
        if left is None:
            left = max(float(self._seen), float(self._settings.monitor_window))
        return Allowance(self._settings.max_throughput_loss, self._past_s, left, told)

    def _decide(self) -> None:
        rule = self._rule
        if rule is None or not self._outlook.known:
            return
        if max(self._cusum) >= CUSUM_LIMIT:
            self._alarm()
            return
        was_governor = self.book.pair.is_governor
        if was_governor and self._contrasts == 0 and not self._held.is_governor:
            self._contrasts = 1
        allowance = self._allowance()
        reach = tuple(max(DEEPER * deep, -math.log(self._settings.start_fraction)) for deep in self._reach)
        current = self.book.pair if not was_governor else self._held
        best, here = rule.choose(
            self._times,
            self._powers,
            self._outlook,
            allowance,
            reach=(reach[0], reach[1]),
            current=None if current.is_governor else current,
        )
        if here is not None and (best.saving - here.saving) * allowance.left < CHANGE_UPDATES * best.saving:
            best = here
        self._choice = best
        if not was_governor and self._should_probe(best, allowance):
            self._held = self.book.pair
            self._probe(Reason.BETWEEN_TRIALS if self.state is State.SEARCH else Reason.REFERENCE_AGE, best)
        elif (hope := self._hope(best, allowance, (reach[0], reach[1]))) is not None:
            self._explore(hope)
        elif best.pair.is_governor or best.saving <= 0.0:
            if not was_governor:
                self._held = self.book.pair
            self._nothing_pays()
        else:
            if was_governor:
                self._contrasts += 1
            self._hold(best)

    def _should_probe(self, best: Choice, allowance: Allowance) -> bool:
        """Whether what a governor block teaches is worth more than what it costs."""
        if best.pair.is_governor:
            return False
        if self._contrasts == 0:
            return True
        block = BLOCK_UPDATES + 1.0
        if allowance.left < 3.0 * block:
            return False
        clocks = self._clocks_of(best.pair)
        hold = self._times.after_probe(best.gradient, clocks, ((False, 2 * BLOCK_UPDATES + 1),))
        after = self._times.after_probe(
            best.gradient, clocks, ((True, BLOCK_UPDATES), (False, BLOCK_UPDATES))
        )
        relief = best.price * 2.326 * (hold - after) * (allowance.left - block)
        cost = block * max(best.saving - best.price * best.loss, 0.1 * best.saving)
        return relief > cost

    def _hope(self, best: Choice, allowance: Allowance, reach: tuple[float, float]) -> Choice | None:
        """A setting worth a trial, if there is enough left to make use of what it may show."""
        rule, trial = self._rule, BLOCK_UPDATES + 1.0
        if rule is None or allowance.left < 3.0 * trial:
            return None
        return rule.hope(
            self._times,
            self._powers,
            self._outlook,
            allowance,
            reach=reach,
            best=best,
            trial=trial,
        )

    def _explore(self, hope: Choice) -> None:
        note = f"may be better: {100 * hope.saving:.1f} % saving and {100 * hope.loss:.2f} % loss expected"
        searching = self._contrasts < SEARCH_CONTRASTS and self.state is not State.LOCKED
        if searching or self.state in (State.SEARCH, State.CALIBRATION):
            self._enter(State.SEARCH, hope.pair, Reason.TRIAL, note)
        else:
            self._enter(State.CONFIRMATION, hope.pair, Reason.MARGIN, note)
        self._held = hope.pair
        self._usable = 0

    def _probe(self, reason: Reason, best: Choice) -> None:
        note = f"governor for {BLOCK_UPDATES} updates: loss of {best.pair} known to {100 * best.loss_sd:.2f} points"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, reason, note)

    def _hold(self, best: Choice) -> None:
        note = (
            f"{100 * best.saving:.1f} % saving and {100 * best.loss:.2f} % loss expected, "
            f"known to {100 * best.loss_sd:.2f}; {100 * self._times.bank.pooled()[0][Layout.lost] / self._past_s:.2f} % lost so far"
        )
        searching = self._contrasts < SEARCH_CONTRASTS
        if searching and self.state in (State.SEARCH, State.REMEASURE):
            self._enter(State.SEARCH, best.pair, Reason.TRIAL, note)
        elif self.state is State.CALIBRATION:
            self._enter(State.CONFIRMATION, best.pair, Reason.CONFIRMING, note)
        elif self.state is State.SEARCH:
            self._enter(State.CONFIRMATION, best.pair, Reason.CONFIRMING, note)
        else:
            self._suspension.forgive()
            self._enter(State.LOCKED, best.pair, Reason.CONFIRMED, note)
        self._held = best.pair
        self._usable = 0

    def _nothing_pays(self) -> None:
        """The governor, and what it teaches; after a monitoring window of that, the governor for now."""
        note = "no setting saves within what is left of the allowance"
        if self.book.pair.is_governor and self._usable >= self._settings.monitor_window:
            self._suspend(Reason.NOTHING_PAYS, note)
            return
        state = State.SEARCH if self.state in (State.SEARCH, State.CALIBRATION) else State.REMEASURE
        reason = Reason.BETWEEN_TRIALS if state is State.SEARCH else Reason.DRIFT
        self._enter(state, GOVERNOR, reason, note)

    def _alarm(self) -> None:
        """Updates are not what they were: the governor tells whether it is the clocks or the machine."""
        self._cusum = [0.0] * 4
        generation_mhz, training_mhz = self.book.pair.phases
        self._times.doubt((generation_mhz is not None, training_mhz is not None), JUMP_SD)
        governed = self.book.pair.is_governor
        if governed:
            self._usable = 0
            return
        self._held = self.book.pair
        note = "updates are not what they were: the governor tells whether it is the clocks"
        state = State.SEARCH if self.state is State.SEARCH else State.REMEASURE
        self._enter(state, GOVERNOR, Reason.DRIFT, note)

    # -- governor for now --------------------------------------------------------------------------------------

    def _suspend(self, reason: Reason, note: str) -> None:
        if self._suspension.begin(reason):
            self._enter(
                State.SUSPENDED, GOVERNOR, reason, f"{note}; again in {self._suspension.left} updates"
            )
        else:
            self._enter(State.FAILED, GOVERNOR, reason, f"{note}; given up after repeated attempts")

    def _on_suspended(self, evidence: Evidence) -> None:
        due = self._suspension.count_down()
        if due and evidence.observation is not None and evidence.observation.energy_j is not None:
            note = "another attempt after " + str(self.book.plan.reason.value).replace("_", " ")
            self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, note)
            self._on_calibration(evidence)

    # -- words and memory --------------------------------------------------------------------------------------

    def summary(self) -> str:
        """State, clocks and what is expected of them, in one line."""
        if self._fallback is not None:
            return self._fallback.summary()
        return f"{self.state.value}: {self.book.pair}, {self.book.plan.note}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "trouble": self._trouble.to_dict(),
            "suspension": self._suspension.to_dict(),
            "times": self._times.to_dict(),
            "powers": self._powers.to_dict(),
            "outlook": self._outlook.to_dict(),
            "first": [item.to_dict() for item in self._first],
            "ceilings_mhz": list(self._ceilings),
            "past_s": self._past_s,
            "seen": self._seen,
            "left": self._left,
            "last_update": self._last_update,
            "usable": self._usable,
            "contrasts": self._contrasts,
            "reach": list(self._reach),
            "cusum": list(self._cusum),
            "held": list(self._held),
            "blind": self._blind,
            "fallback": self._fallback.to_dict() if self._fallback is not None else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._trouble.load(values["trouble"])
        self._suspension.load(values["suspension"])
        self._times.load(values["times"])
        self._powers.load(values["powers"])
        self._outlook.load(values["outlook"])
        self._first = [Observation.from_dict(item) for item in values["first"]]
        generation, training = values["ceilings_mhz"]
        self._ceilings = (generation, training)
        self._past_s, self._seen, self._left = values["past_s"], values["seen"], values["left"]
        self._last_update, self._usable = values["last_update"], values["usable"]
        self._contrasts, self._blind = values["contrasts"], values["blind"]
        self._reach, self._cusum = list(values["reach"]), list(values["cusum"])
        self._held = Pair(*values["held"])
        self._rule = self._make_rule() if self._times.known else None
        if values["fallback"] is not None:
            kind = ColocatedSync if self._one_pool else DisaggregatedSync
            self._fallback = kind(self._settings, self._grid, self._references)
            self._fallback.load(values["fallback"])
            self.book = self._fallback.book


def usual(
    parts: Sequence[tuple[Observation, Parts]], counts: Mapping[str, float]
) -> list[tuple[Observation, Parts]]:
    """The first updates that are near the others at equal work: the very first are slow, however long they were."""
    kept = list(parts)
    for part in (GENERATION, TRAINING):
        logs = []
        for item, found in parts:
            log = math.log(found.seconds[part])
            for name, slope, _ in WORK[part]:
                if name in counts and name in item.counts:
                    log -= slope * (math.log1p(item.counts[name]) - math.log1p(counts[name]))
            logs.append(log)
        middle = median(logs)
        limit = max(STRAGGLER_SD * robust_sd(logs), STRAGGLER_FLOOR)
        near = {id(item) for (item, _), log in zip(parts, logs, strict=True) if abs(log - middle) <= limit}
        kept = [(item, found) for item, found in kept if id(item) in near]
    return kept


def thinned(clocks: tuple[int, ...], ceiling_mhz: float) -> list[int]:
    """The clocks below the ceiling, from the top, no nearer to each other than is worth telling apart."""
    kept: list[int] = []
    last = ceiling_mhz
    for mhz in sorted((clock for clock in clocks if clock < ceiling_mhz), reverse=True):
        if math.log(last / mhz) >= LEAST_STEP - 1e-9:
            kept.append(mhz)
            last = float(mhz)
    return kept


def _validation(record: UpdateRecord) -> tuple[float, float]:
    """Seconds of validation, which runs under generation's clock, and of all visitors."""
    totals = phase_totals(record)
    seconds = totals.get("validation", (0.0, None))[0]
    return seconds, visitors(record)[0]


def _rough_parts(record: UpdateRecord, outlook: Outlook) -> tuple[float, float, float] | None:
    """An update's seconds by part, shared out as usual when its phases are not known."""
    if record.elapsed_s is None or not outlook.known:
        return None
    usual = outlook.seconds
    own_s = max(record.elapsed_s - visitors(record)[0], 0.0)
    a, b, c = (own_s * value / sum(usual) for value in usual)
    return a, b, c
