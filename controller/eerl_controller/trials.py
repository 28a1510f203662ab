"""Control by trials between governor updates (paper, section 5 and Algorithm 1), then a monitored lock.

What is searched in which order is the mode's own: ``colocated``, ``disaggregated`` and ``drained`` say it.
Every method named ``_on_<state>`` takes one update in; every change of state goes through :meth:`_enter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair, reachable
from eerl_controller.comparison import Comparison, compare
from eerl_controller.controlled import Controlled, Handler
from eerl_controller.experiment import Experiment
from eerl_controller.lock import Advice, Lock
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.settings import Settings
from eerl_controller.situation import has_shifted
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence


class Trials(Controlled):
    """The controller of a job whose every update runs under one setting: synchronous, or with drained updates."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(settings, grid, references)
        self._lock = Lock(settings, self._clocks)
        self._confirming = Reason.CONFIRMING
        #: Governor references since the clocks went back to the governor, between trials or re-measuring.
        self._fresh = 0
        #: Whether the lock's window waits to be judged again by a refreshed reference.
        self._doubted = False

    def _handlers(self) -> Mapping[State, Handler]:
        return {
            **super()._handlers(),
            State.SEARCH: self._on_search,
            State.CONFIRMATION: self._on_confirmation,
            State.LOCKED: self._on_locked,
            State.REMEASURE: self._on_remeasure,
        }

    def _clocks_change(self) -> None:
        super()._clocks_change()
        self._fresh = 0

    def _calibrated(self, evidence: Evidence) -> None:
        if self._lock.pair is not None:
            self._reconfirm(self._lock.pair, evidence)
        else:
            self._begin_search(evidence)

    def _let_go(self) -> None:
        super()._let_go()
        self._doubted = False

    # -- search ------------------------------------------------------------------------------------------------

    def _begin_search(self, evidence: Evidence) -> None:
        """A fresh search from the reference as it stands."""
        missing = self._missing(self._model)
        if missing is not None:
            self._suspend(*missing)
            return
        search = self._first_round()
        if not search.has_settings:
            self._suspend(
                Reason.NOTHING_PAYS, "no supported clock lies below the one that the governor reaches"
            )
            return
        self._search, self._last, self._experiment = search, None, None
        self._confirmed = self._finished = None
        self._lock.let_go()
        # Updates that just calibrated or re-measured the governor are the observation before the first trial.
        bracketed = self.book.pair.is_governor
        self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, "search begins")
        if bracketed:
            self._next_trial(evidence)

    def _on_search(self, evidence: Evidence) -> None:
        experiment = self._experiment
        if self.book.pair.is_governor:
            if experiment is not None and evidence.pair == experiment.pair and not evidence.after_gap:
                # The change back came late: one more update of the trial, for nothing.
                experiment.add(evidence, self._model)
            self._fresh += evidence.is_reference
            if self._fresh >= self._settings.bracket_updates:
                self._judge_trial()
                self._next_trial(evidence)
            return
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

    def _judge_trial(self) -> None:
        """Judged after the governor updates that follow it, so that they are among the references."""
        if self._search is None or self._experiment is None or self._levels is None:
            return
        comparison = self._compared(self._experiment)
        if comparison is not None:
            self._search.record(self._levels, comparison)
            self._last = comparison
        self._experiment = None

    def _compared(self, experiment: Experiment) -> Comparison | None:
        return compare(self._model, experiment.evidence(self._model), experiment.pair)

    def _try(self, pair: Pair, note: str) -> None:
        self._experiment = Experiment(pair, self._settings.trial_updates)
        self._enter(State.SEARCH, pair, Reason.TRIAL, note)

    def _confirm_setting(self, pair: Pair) -> None:
        self._confirm(pair, Reason.CONFIRMING)

    def _give_up(self, experiment: Experiment) -> None:
        """The setting ran without giving evidence: the work moved away, or updates are unusable."""
        if 2 * experiment.outside >= experiment.seen:
            note = f"{experiment.outside} of {experiment.seen} updates outside the work that the governor did"
            self._remeasure(Reason.COVERAGE, note)
        else:
            reason = Reason.MISSING_ENERGY if experiment.is_powerless else Reason.NO_EVIDENCE
            self._suspend(reason, f"{experiment.seen} updates at {experiment.pair}, too few usable")

    # -- confirmation ------------------------------------------------------------------------------------------

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
        complete = experiment.is_complete(self._model)
        comparison = self._compared(experiment) if complete else None
        if comparison is None:
            if experiment.is_hopeless:
                self._give_up(experiment)
            return
        pair, before = experiment.pair, self._last
        self._last, self._experiment = comparison, None
        if self._confirming is Reason.MARGIN:
            self._after_margin(pair, comparison, before)
        elif self._confirming is Reason.REJUDGING:
            self._after_rejudging(pair, comparison, evidence)
        else:
            self._after_confirmation(pair, comparison, evidence)

    def _passes(self, comparison: Comparison) -> bool:
        return comparison.passes(self._settings.allowed_loss)

    def _after_confirmation(self, pair: Pair, comparison: Comparison, evidence: Evidence) -> None:
        if self._search is not None and self._levels is not None:
            self._search.record(self._levels, comparison, confirming=True)
        least = self._confirmed[1].energy_change if self._confirmed else 0.0
        if self._passes(comparison) and comparison.energy_change <= least:
            self._go_on(pair, comparison, evidence)
            return
        # Between what failed and the next passing setting there may be a better one than that.
        search = self._with_overlap()
        more = search is not None and self._has_room(evidence) and search.next() is not None
        if self._search is not None and self._search.passing() and not more:
            self._confirm_best()
        else:
            self._between_trials(f"{pair} not confirmed: {comparison}")

    def _after_margin(self, pair: Pair, comparison: Comparison, before: Comparison | None) -> None:
        """A lower setting must also save more than the lock it comes from."""
        better = before is None or comparison.energy_change < before.energy_change
        if self._passes(comparison) and better:
            self._lock_in(pair, comparison, f"lowered with margin: {comparison}")
            return
        self._lock.note(pair, comparison)
        self._lock.taken_back()
        self._lock.hold(self._lock.pair or pair)
        self._last = before
        self._enter(
            State.LOCKED, self._lock.pair or pair, Reason.CONFIRMED, f"back from {pair}: {comparison}"
        )

    def _after_rejudging(self, pair: Pair, comparison: Comparison, evidence: Evidence) -> None:
        if self._passes(comparison):
            self._lock_in(pair, comparison, f"still good after the governor was measured again: {comparison}")
        elif comparison.energy_change < 0.0 and not self._lock.is_alarming(comparison):
            self._lock_in(pair, comparison, f"a little short: {comparison}")
            if self._lock.is_short(pair, comparison):
                self._raise_to(self._lock.raised(pair, comparison, self._ceilings), comparison)
        elif self._has_room(evidence):
            self._begin_search(evidence)
        else:
            self._suspend(Reason.NEAR_END, f"the lock no longer pays and the end is near: {comparison}")

    def _lock_in(self, pair: Pair, comparison: Comparison, note: str) -> None:
        self._lock.hold(pair)
        self._lock.note(pair, comparison)
        self._suspension.forgive()
        self._enter(State.LOCKED, pair, Reason.CONFIRMED, note)

    # -- locked ------------------------------------------------------------------------------------------------

    def _on_locked(self, evidence: Evidence) -> None:
        age = self._references.age_updates
        if age >= self._settings.reference_max_age_updates and self._has_room(evidence):
            self._doubted = False
            self._remeasure(Reason.REFERENCE_AGE, f"no governor update for {age} updates")
            return
        if not evidence.in_force or not evidence.settled or evidence.observation is None:
            return
        model, pair = self._model, self.book.pair
        self._lock.add(evidence.observation, covered=model.covers(evidence.observation.counts))
        room = self._has_room(evidence)
        responses = self._responses() if room else None
        # Near the end a re-measurement repays nothing: then the reference is taken as fresh.
        verdict = self._lock.monitored(pair, model, age if room else 0, responses, self._ceilings)
        self._last = verdict.comparison or self._last
        if verdict.advice is Advice.RAISE and verdict.comparison is not None:
            self._raise_to(verdict.pair, verdict.comparison)
        elif verdict.advice is Advice.LOWER:
            self._confirm(verdict.pair, Reason.MARGIN)
        elif verdict.advice is Advice.DOUBT:
            self._doubted = verdict.comparison is not None
            self._remeasure(Reason.DRIFT if self._doubted else Reason.COVERAGE, verdict.note)
        elif verdict.note:
            self._enter(State.LOCKED, pair, Reason(self.book.plan.reason), verdict.note)

    def _raise_to(self, pair: Pair, comparison: Comparison) -> None:
        before = self._lock.pair
        if pair.is_governor:
            self._lock.let_go()
            self._suspend(Reason.NOTHING_PAYS, f"the last lowered clock was still too slow: {comparison}")
            return
        self._lock.hold(pair)
        self._enter(State.LOCKED, pair, Reason.SHORTFALL, f"raised from {before}: {comparison}")

    # -- governor again ----------------------------------------------------------------------------------------

    def _remeasure(self, reason: Reason, note: str) -> None:
        self._experiment = None
        self._enter(State.REMEASURE, GOVERNOR, reason, note)

    def _on_remeasure(self, evidence: Evidence) -> None:
        self._fresh += evidence.is_reference
        wanted = self._settings.remeasure_updates
        if self._fresh < wanted:
            return
        self._lock.forget()
        shifted = has_shifted(self._references, wanted, self._settings.allowed_loss)
        if shifted:
            self._references.keep_last(wanted)
            self._lock.believe_speed()
            self._enter(
                State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, f"the governor has changed: {shifted}"
            )
        elif self._references.usable < self._settings.calibration_updates:
            self._enter(State.CALIBRATION, GOVERNOR, Reason.CALIBRATING, "more governor updates are needed")
        elif self._lock.pair is not None:
            self._rejudge(self._lock.pair, evidence)
        elif self._search is not None and (self._search.trials or self._confirmed):
            self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, "the governor was measured again")
            self._next_trial(evidence)
        else:
            self._begin_search(evidence)

    def _rejudge(self, pair: Pair, evidence: Evidence) -> None:
        """Back to the lock: at once when its own window clears or condemns it, else on fresh updates."""
        window = self._lock.judge_window(self._model) if self._doubted else None
        self._doubted = False
        if window is None or window.energy_change >= 0.0:
            self._reconfirm(pair, evidence)
            return
        self._last = window
        self._lock.note(pair, window)
        if self._lock.is_alarming(window) and self._has_room(evidence):
            self._begin_search(evidence)
        elif self._lock.is_short(pair, window):
            self._raise_to(self._lock.raised(pair, window, self._ceilings), window)
        else:
            self._lock_in(pair, window, f"by the reference measured again: {window}")

    def _reconfirm(self, pair: Pair, evidence: Evidence) -> None:
        """The lock on fresh updates, unless the governor no longer reaches clocks that high."""
        now = reachable(pair, self._ceilings)
        if now.is_governor:
            self._begin_search(evidence)
        else:
            self._confirm(now, Reason.REJUDGING)

    # -- memory ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "lock": self._lock.to_dict(),
            "confirming": self._confirming.value,
            "fresh": self._fresh,
            "doubted": self._doubted,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._lock.load(values["lock"])
        self._confirming = Reason(values["confirming"])
        self._fresh = values["fresh"]
        self._doubted = values["doubted"]
