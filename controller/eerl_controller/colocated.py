"""Colocated synchronous control (paper, sections 5 and 6.1): both clocks searched together, then locked.

Every method named ``_on_<state>`` takes one update in; every change of state goes through :meth:`_enter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair, PlanBook, allowed_clocks
from eerl_controller.comparison import Comparison, compare, pooled, without_stragglers
from eerl_controller.experiment import Experiment
from eerl_controller.governor import GovernorModel
from eerl_controller.horizon import has_room
from eerl_controller.monitor import Monitor, lower_with_margin, raise_responsible
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.search import Levels, Search
from eerl_controller.settings import Settings
from eerl_controller.situation import ceilings_mhz, has_shifted, phase_shares
from eerl_controller.states import TRANSITIONS, Reason, State
from eerl_controller.strategy import Evidence, Strategy, no_clocks_note
from eerl_controller.suspension import Suspension
from eerl_controller.trouble import Trouble
from eerl_controller.work import Unusable

#: Raises in a row that did not bring the throughput back: the reference, not the clock, is in doubt.
FRUITLESS_RAISES = 2

#: Pairs whose showing is remembered: a lock moves by small steps, seldom further than this many.
KNOWN_PAIRS = 32

_HOLDING = (State.SEARCH, State.CONFIRMATION, State.LOCKED)


class ColocatedSync(Strategy):
    """The controller of a colocated synchronous job."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(State.CALIBRATION, PlanBook(Reason.CALIBRATING, "governor clocks until it is known"))
        self._settings = settings
        self._grid = grid
        self._clocks = tuple(mhz for mhz in allowed_clocks(grid, settings) if mhz < grid.governor_mhz)
        self._references = references
        self._trouble = Trouble(settings)
        self._suspension = Suspension(settings)
        self._monitor = Monitor(settings)
        self._search: Search | None = None
        self._levels: Levels | None = None
        self._experiment: Experiment | None = None
        self._bracket = 0
        self._lock: Pair | None = None
        self._confirming = Reason.CONFIRMING
        self._last: Comparison | None = None
        self._known: dict[Pair, Comparison] = {}
        self._raises = 0
        self._remeasured = 0
        self._drift_checked = False
        self._margin_wait = 0
        self._margin_failures = 0
        if not self._clocks:
            self.state = State.FAILED
            self.book = PlanBook(Reason.NO_CLOCKS, no_clocks_note(settings, grid))

    # -- one way in -------------------------------------------------------------------------------------------

    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""
        if evidence.unusable is Unusable.OPERATOR_HOLD:
            return
        if self.state in _HOLDING and not self.book.pair.is_governor:
            reason = self._trouble.add(evidence)
            if reason is not None:
                self._suspend(reason, "too many updates in a row; governor clocks for now")
                return
        handlers = {
            State.CALIBRATION: self._on_calibration,
            State.SEARCH: self._on_search,
            State.CONFIRMATION: self._on_confirmation,
            State.LOCKED: self._on_locked,
            State.REMEASURE: self._on_remeasure,
            State.SUSPENDED: self._on_suspended,
        }
        handler = handlers.get(self.state)
        if handler is not None:
            handler(evidence)

    def _enter(self, state: State, pair: Pair, reason: Reason, note: str) -> None:
        """The only place where the state or the clocks change."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"no way from {self.state.value} to {state.value}: a bug in the controller")
        if pair != self.book.pair:
            self._trouble.reset()
        self.state = state
        self.book.wish(pair, reason, note)

    @property
    def _model(self) -> GovernorModel:
        model = self._references.model
        if model is None:
            raise RuntimeError("no governor model after calibration: a bug in the controller")
        return model

    # -- calibration ------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        model = self._references.model
        have, want = self._references.usable, self._settings.calibration_updates
        note = f"{have} of {want} usable governor updates"
        if model is None or have < want:
            reason = Reason.CALIBRATING
            if evidence.unusable is Unusable.MISSING_COUNTS:
                reason = Reason.MISSING_COUNTS
                note += (
                    "; no valid training tokens in the markers: send valid_tokens to have clocks controlled"
                )
            self._enter(State.CALIBRATION, GOVERNOR, reason, note)
        elif model.energy is None:
            self._enter(State.CALIBRATION, GOVERNOR, Reason.MISSING_ENERGY, "energy of the job is not known")
        elif not has_room(evidence.record, self._typical_s(), self._settings):
            self._enter(
                State.CALIBRATION, GOVERNOR, Reason.NEAR_END, "too few updates left to repay a search"
            )
        elif self._lock is not None:
            self._confirm(self._lock, Reason.REJUDGING)
        else:
            self._begin_search(evidence)

    def _typical_s(self) -> float:
        return median(item.elapsed_s for item in self._model.references)

    # -- search -----------------------------------------------------------------------------------------------

    def _begin_search(self, evidence: Evidence) -> None:
        """A fresh search from the reference as it stands."""
        ceilings = ceilings_mhz(self._model, self._grid)
        search = Search(self._settings, self._clocks, ceilings, phase_shares(self._model))
        if not search.has_settings:
            self._suspend(
                Reason.NOTHING_PAYS, "no supported clock lies below the one that the governor reaches"
            )
            return
        self._search, self._lock, self._last = search, None, None
        self._known.clear()
        if self.state is State.CALIBRATION:
            # The calibration is the governor observation before the first trial.
            self._bracket = self._settings.bracket_updates
        else:
            self._bracket = 0
        self._experiment = None
        self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, "search begins")
        if self._bracket >= self._settings.bracket_updates:
            self._next_trial(evidence)

    def _on_search(self, evidence: Evidence) -> None:
        if self.book.pair.is_governor:
            self._bracket += evidence.is_reference
            if self._bracket >= self._settings.bracket_updates:
                self._judge_trial()
                self._next_trial(evidence)
            return
        experiment = self._experiment
        if experiment is None or not evidence.in_force:
            return
        experiment.add(evidence, self._model)
        if experiment.is_complete(self._model):
            self._between_trials(f"after {experiment.pair}: governor updates before it is judged")
        elif experiment.is_hopeless:
            self._give_up(experiment)
        else:
            done = len(experiment.observations)
            note = f"trial of {experiment.pair}: {done} of {experiment.wanted} updates"
            self._enter(State.SEARCH, experiment.pair, Reason.TRIAL, note)

    def _between_trials(self, note: str) -> None:
        self._bracket = 0
        self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)

    def _judge_trial(self) -> None:
        """Judged after the governor updates that follow it, so that they are among the references."""
        if self._search is None or self._experiment is None or self._levels is None:
            return
        comparison = compare(self._model, self._experiment.evidence(self._model))
        if comparison is not None:
            self._search.record(self._levels, comparison)
            self._last = comparison
        self._experiment = None

    def _next_trial(self, evidence: Evidence) -> None:
        search = self._search
        if search is None:
            raise RuntimeError("searching without a search: a bug in the controller")
        levels = search.next() if has_room(evidence.record, self._typical_s(), self._settings) else None
        if levels is not None:
            self._levels, pair = levels, search.pair(levels)
            self._experiment = Experiment(pair, self._settings.trial_updates)
            note = f"trial {len(search.trials) + 1} of {pair}"
            if self._last is not None:
                note += f"; the one before: {self._last}"
            self._enter(State.SEARCH, pair, Reason.TRIAL, note)
            return
        self._confirm_best()

    def _confirm_best(self) -> None:
        passing = self._search.passing() if self._search else []
        if self._search is not None and passing and len(self._search.trials) < 2 * self._settings.max_trials:
            self._levels = passing[0]
            self._confirm(self._search.pair(passing[0]), Reason.CONFIRMING)
            return
        self._suspend(Reason.NOTHING_PAYS, "no tested setting keeps the throughput and saves energy")

    def _give_up(self, experiment: Experiment) -> None:
        """The setting ran without giving evidence: the work moved away, or updates are unusable."""
        self._experiment = None
        if 2 * experiment.outside >= experiment.seen:
            note = f"{experiment.outside} of {experiment.seen} updates outside the work that the governor did"
            self._remeasure(Reason.COVERAGE, note)
        else:
            self._suspend(
                Reason.NO_EVIDENCE, f"{experiment.seen} updates at {experiment.pair}, too few usable"
            )

    # -- confirmation -----------------------------------------------------------------------------------------

    def _confirm(self, pair: Pair, reason: Reason) -> None:
        self._confirming = reason
        self._experiment = Experiment(pair, self._settings.confirmation_updates)
        note = f"{pair} on {self._settings.confirmation_updates} fresh updates"
        self._enter(State.CONFIRMATION, pair, reason, note)

    def _on_confirmation(self, evidence: Evidence) -> None:
        experiment = self._experiment
        if experiment is None or not evidence.in_force:
            return
        experiment.add(evidence, self._model)
        if experiment.is_hopeless:
            self._give_up(experiment)
            return
        if not experiment.is_complete(self._model):
            return
        comparison = compare(self._model, experiment.evidence(self._model))
        if comparison is None:
            return
        before, self._last, self._experiment = self._last, comparison, None
        self._note(experiment.pair, comparison)
        passed = comparison.passes(self._settings.max_throughput_loss)
        if self._confirming is Reason.MARGIN:
            self._after_margin(experiment.pair, comparison, before, passed=passed)
        elif self._confirming is Reason.REJUDGING:
            self._after_rejudging(experiment.pair, comparison, evidence, passed=passed)
        else:
            self._after_confirmation(experiment.pair, comparison, evidence, passed=passed)

    def _after_confirmation(
        self, pair: Pair, comparison: Comparison, evidence: Evidence, *, passed: bool
    ) -> None:
        if self._search is not None and self._levels is not None:
            self._search.record(self._levels, comparison, confirming=True)
        if passed:
            self._lock_in(pair, Reason.CONFIRMED, f"confirmed: {comparison}")
        elif self._search is not None and self._search.passing():
            self._confirm_best()
        else:
            self._between_trials(f"{pair} not confirmed: {comparison}")

    def _after_margin(
        self, pair: Pair, comparison: Comparison, before: Comparison | None, *, passed: bool
    ) -> None:
        """A lower setting must also save more than the lock it comes from."""
        lock = self._lock or pair
        if passed and (before is None or comparison.energy_change < before.energy_change):
            self._lock_in(pair, Reason.CONFIRMED, f"lowered with margin: {comparison}")
        else:
            self._wait_for_margin()
            self._lock_in(lock, Reason.CONFIRMED, f"back from {pair}: {comparison}")
            self._last = before

    def _wait_for_margin(self) -> None:
        """Each step that had to be taken back makes the next wait twice as long: a flat optimum must come to rest."""
        self._margin_failures = min(self._margin_failures + 1, 8)
        self._margin_wait = self._settings.monitor_window * 2**self._margin_failures

    def _note(self, pair: Pair, comparison: Comparison) -> None:
        """Remember what a pair showed, pooled with what it showed before."""
        before = self._known.pop(pair, None)
        self._known[pair] = pooled([before, comparison]) if before else comparison
        while len(self._known) > KNOWN_PAIRS:
            self._known.pop(next(iter(self._known)))

    def _after_rejudging(
        self, pair: Pair, comparison: Comparison, evidence: Evidence, *, passed: bool
    ) -> None:
        if passed:
            self._lock_in(
                pair, Reason.CONFIRMED, f"still good after the governor was measured again: {comparison}"
            )
        elif comparison.energy_change < 0.0 and comparison.loss <= self._settings.feedback_large_loss:
            self._lock_in(pair, Reason.CONFIRMED, f"a little short: {comparison}")
            if self._is_short(comparison):
                self._raise_clock(comparison)
        elif has_room(evidence.record, self._typical_s(), self._settings):
            self._begin_search(evidence)
        else:
            self._suspend(Reason.NEAR_END, f"the lock no longer pays and the end is near: {comparison}")

    def _lock_in(self, pair: Pair, reason: Reason, note: str) -> None:
        self._lock = pair
        self._raises = 0
        self._monitor.restart()
        self._suspension.forgive()
        self._enter(State.LOCKED, pair, reason, note)

    # -- locked -----------------------------------------------------------------------------------------------

    def _on_locked(self, evidence: Evidence) -> None:
        settings = self._settings
        if self._references.age_updates >= settings.reference_max_age_updates:
            note = f"no governor update for {self._references.age_updates} updates"
            self._remeasure(Reason.REFERENCE_AGE, note)
            return
        if not evidence.in_force or not evidence.settled or evidence.observation is None:
            return
        model = self._model
        self._margin_wait = max(self._margin_wait - 1, 0)
        self._monitor.add(evidence.observation, covered=model.covers(evidence.observation.counts))
        if self._monitor.outside >= settings.coverage_failures:
            note = f"{self._monitor.outside} of the last {len(self._monitor.observations)} updates outside"
            self._remeasure(Reason.COVERAGE, f"{note} the work that the governor was measured on")
        elif self._monitor.is_due:
            self._judge_lock(evidence)

    def _judge_lock(self, evidence: Evidence) -> None:
        comparison = compare(self._model, without_stragglers(self._model, self._monitor.observations))
        self._monitor.judged()
        if comparison is None:
            return
        self._last = comparison
        self._note(self.book.pair, comparison)
        if self._is_short(comparison):
            if self._raises >= FRUITLESS_RAISES:
                self._remeasure(Reason.DRIFT, f"{self._raises} raises did not help: {comparison}")
            else:
                self._raise_clock(comparison)
            return
        self._raises = 0
        if comparison.energy_change >= 0.0:
            self._remeasure(Reason.DRIFT, f"the lock no longer saves: {comparison}")
        elif -comparison.loss > max(self._settings.max_throughput_loss, 3.0 * comparison.time_se) and (
            not self._drift_checked
        ):
            self._drift_checked = True
            self._remeasure(Reason.DRIFT, f"faster than a lowered clock can be: {comparison}")
        else:
            self._enter(
                State.LOCKED, self.book.pair, Reason(self.book.plan.reason), f"monitored: {comparison}"
            )
            self._try_margin(comparison, evidence)

    def _is_short(self, window: Comparison) -> bool:
        """Whether the lock loses more than allowed: by more than one standard error, or on all its windows together.

        Without the second look, the luck of single windows would ratchet the clocks up over a long run.
        """
        allowed = self._settings.max_throughput_loss
        everything = self._known.get(self.book.pair, window)
        return window.loss > allowed and (window.loss - window.time_se > allowed or everything.loss > allowed)

    def _raise_clock(self, comparison: Comparison) -> None:
        before = self.book.pair
        pair = raise_responsible(
            before, comparison, self._settings, self._clocks, ceilings_mhz(self._model, self._grid)
        )
        self._wait_for_margin()
        if pair.is_governor:
            self._lock = None
            self._suspend(Reason.NOTHING_PAYS, f"the last lowered clock was still too slow: {comparison}")
            return
        self._raises += 1
        self._lock = pair
        self._monitor.restart()
        self._enter(State.LOCKED, pair, Reason.SHORTFALL, f"raised from {before}: {comparison}")

    def _try_margin(self, comparison: Comparison, evidence: Evidence) -> None:
        if (
            self._search is None
            or self._margin_wait > 0
            or not has_room(evidence.record, self._typical_s(), self._settings)
        ):
            return
        pair = lower_with_margin(
            self.book.pair,
            comparison,
            self._known,
            (self._search.response(0), self._search.response(1)),
            self._settings,
            self._clocks,
            ceilings_mhz(self._model, self._grid),
        )
        if pair is not None:
            self._confirm(pair, Reason.MARGIN)

    # -- governor again ---------------------------------------------------------------------------------------

    def _remeasure(self, reason: Reason, note: str) -> None:
        self._remeasured = 0
        self._experiment = None
        self._enter(State.REMEASURE, GOVERNOR, reason, note)

    def _on_remeasure(self, evidence: Evidence) -> None:
        self._remeasured += evidence.is_reference
        wanted = self._settings.remeasure_updates
        if self._remeasured < wanted:
            return
        self._known.clear()
        self._raises = 0
        shifted = has_shifted(self._references, wanted, self._settings.max_throughput_loss)
        if shifted:
            self._references.keep_last(wanted)
            self._enter(
                State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, f"the governor has changed: {shifted}"
            )
        elif self._references.usable < self._settings.calibration_updates:
            self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, "more governor updates are needed")
        elif self._lock is not None:
            self._confirm(self._lock, Reason.REJUDGING)
        elif self._search is not None and self._search.trials:
            self._bracket = self._settings.bracket_updates
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, "the governor was measured again")
            self._next_trial(evidence)
        else:
            self._begin_search(evidence)

    def _suspend(self, reason: Reason, note: str) -> None:
        self._experiment = None
        if self._suspension.begin(reason):
            self._enter(
                State.SUSPENDED, GOVERNOR, reason, f"{note}; again in {self._suspension.left} updates"
            )
        else:
            self._lock = None
            self._enter(State.FAILED, GOVERNOR, reason, f"{note}; given up after repeated attempts")

    def _on_suspended(self, evidence: Evidence) -> None:
        if self._suspension.count_down():
            note = "another attempt after " + self.book.plan.reason.value.replace("_", " ")
            self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, note)
            self._on_calibration(evidence)

    # -- words and memory -------------------------------------------------------------------------------------

    def summary(self) -> str:
        """State, clocks and the latest judgement, in one line."""
        parts = [f"{self.state.value}: {self.book.pair}"]
        if self._experiment is not None:
            parts.append(f"{len(self._experiment.observations)} of {self._experiment.wanted} updates")
        elif self.state is State.CALIBRATION:
            parts.append(
                f"{self._references.usable} of {self._settings.calibration_updates} governor updates"
            )
        elif self.state is State.SUSPENDED:
            parts.append(f"{self.book.plan.reason.value.replace('_', ' ')}, again in {self._suspension.left}")
        if self._last is not None and self.state in _HOLDING:
            parts.append(
                f"last judged {100 * self._last.throughput_change:+.1f} % throughput, "
                f"{100 * self._last.energy_change:+.1f} % energy"
            )
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "trouble": self._trouble.to_dict(),
            "suspension": self._suspension.to_dict(),
            "monitor": self._monitor.to_dict(),
            "search": self._search.to_dict() if self._search else None,
            "levels": list(self._levels) if self._levels else None,
            "experiment": self._experiment.to_dict() if self._experiment else None,
            "bracket": self._bracket,
            "lock": list(self._lock) if self._lock else None,
            "confirming": self._confirming.value,
            "last": self._last.to_dict() if self._last else None,
            "known": [[*pair, word.to_dict()] for pair, word in self._known.items()],
            "raises": self._raises,
            "remeasured": self._remeasured,
            "drift_checked": self._drift_checked,
            "margin_wait": self._margin_wait,
            "margin_failures": self._margin_failures,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._trouble.load(values["trouble"])
        self._suspension.load(values["suspension"])
        self._monitor.load(values["monitor"])
        search, experiment, last = values["search"], values["experiment"], values["last"]
        self._search = Search.from_dict(search, self._settings, self._clocks) if search else None
        self._levels = Levels(*values["levels"]) if values["levels"] else None
        self._experiment = Experiment.from_dict(experiment) if experiment else None
        self._bracket = values["bracket"]
        self._lock = Pair(*values["lock"]) if values["lock"] else None
        self._confirming = Reason(values["confirming"])
        self._last = Comparison.from_dict(last) if last else None
        self._known = {
            Pair(generation, training): Comparison.from_dict(word)
            for generation, training, word in values["known"]
        }
        self._raises = values["raises"]
        self._remeasured = values["remeasured"]
        self._drift_checked = values["drift_checked"]
        self._margin_wait = values["margin_wait"]
        self._margin_failures = values["margin_failures"]
