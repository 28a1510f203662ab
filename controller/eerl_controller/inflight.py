"""Asynchronous control with in-flight updates (paper, section 6.3): an experiment of blocks.

Requests started under one setting finish under the next, so nothing is fitted at a setting's own clocks. Instead
every candidate block lies between governor blocks, and is compared with them at matched work (``blocks``):

    search and confirmation   G c G c G c G ...          one candidate block between two governor blocks
    after locking             G C C G C C G ...          one governor block for every two candidate blocks

The pool that is less busy is searched first, then the other with the first held. A setting that passed is confirmed
by one fresh trial when that clears it by a standard error, else by two together. Updates that carry requests of an
earlier plan are left out of every block. Pools never wait long enough here for an idle clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eerl_controller.blocks import BlockDesign, compare_blocks, design_blocks
from eerl_controller.clocks import GOVERNOR, Pair, reachable
from eerl_controller.comparison import Comparison, pooled
from eerl_controller.controlled import Handler
from eerl_controller.experiment import Experiment
from eerl_controller.governor import GovernorModel
from eerl_controller.monitor import raise_responsible
from eerl_controller.pools import DEEPEST_START, PoolByPool
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.rounds import pool_round
from eerl_controller.search import Search
from eerl_controller.settings import Settings
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Observation

#: Candidate blocks for every governor block after locking (Table 3).
BLOCKS_PER_GOVERNOR = 2
#: Comparisons after locking that are judged together: older ones tell of a job that was another.
JUDGED_TOGETHER = 6
#: Trials that a confirmation may take (Table 3).
CONFIRMATION_TRIALS = 2


class AsyncInflight(PoolByPool):
    """The controller of an asynchronous job whose generation never stops for an update."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(settings, grid, references)
        self._design: BlockDesign | None = None
        #: The governor blocks before and after the candidate's.
        self._before: list[Observation] = []
        self._after: list[Observation] = []
        #: Comparisons of the setting under confirmation, or of the lock since its clocks last changed.
        self._words: list[Comparison] = []
        #: What is locked, while one of its blocks or a governor block in between is running.
        self._locked: Pair | None = None

    def _handlers(self) -> Mapping[State, Handler]:
        running = dict.fromkeys((State.SEARCH, State.CONFIRMATION, State.LOCKED), self._on_block)
        return {**super()._handlers(), **running}

    def _let_go(self) -> None:
        super()._let_go()
        self._locked = None
        self._words, self._after = [], []

    # -- calibration -------------------------------------------------------------------------------------------

    def _missing(self, model: GovernorModel) -> tuple[Reason, str] | None:
        if model.overlap is not None:
            return None
        note = (
            "busy fractions of both pools are not known: markers of both are needed to have clocks controlled"
        )
        return Reason.MISSING_BUSY, note

    def _calibrated(self, evidence: Evidence) -> None:
        self._design = design_blocks(self._model, self._settings.async_inflight_standard_error)
        self._search, self._last = self._first_round(), None
        self._confirmed = self._finished = None
        if not self._search.has_settings:
            self._suspend(
                Reason.NOTHING_PAYS, "no supported clock lies below the one that the governor reaches"
            )
            return
        # The updates that just calibrated the governor are the block before the first candidate.
        self._before = list(self._model.references[-self._block :])
        self._next_trial(evidence)

    @property
    def _block(self) -> int:
        """Updates of a block."""
        if self._design is None:
            raise RuntimeError("blocks before calibration: a bug in the controller")
        return self._design.updates

    def _first_round(self) -> Search:
        """The less busy pool, until it would be as busy as the other were its work wholly bound by the clock."""
        settings, overlap = self._settings, self._overlap
        ratio = min(overlap.mean_ratio, 1.0 / DEEPEST_START)
        start = min(1.0 / ratio, settings.start_fraction)
        return self._round(pool_round(overlap.first_axis, settings.async_first_step_mhz, start, GOVERNOR))

    # -- blocks ------------------------------------------------------------------------------------------------

    def _on_block(self, evidence: Evidence) -> None:
        """One more update of the block that is running."""
        if not evidence.in_force:
            return
        if self.book.pair.is_governor:
            if evidence.after_gap:
                self._after = []
            if evidence.is_reference and evidence.observation is not None:
                self._after.append(evidence.observation)
            if len(self._after) >= self._block:
                self._judge(evidence)
            return
        experiment = self._experiment
        if experiment is None:
            return
        experiment.add(evidence, self._model)
        if experiment.is_complete(self._model):
            if self.state is State.LOCKED and not self._has_room(evidence):
                # What another governor block could teach would not be used.
                return
            self._governor_block(f"after {experiment.pair}")
        elif experiment.is_hopeless:
            self._give_up(experiment)

    def _candidate_block(self, state: State, pair: Pair, reason: Reason, note: str, blocks: int = 1) -> None:
        self._experiment = Experiment(pair, blocks * self._block)
        self._enter(state, pair, reason, note)

    def _governor_block(self, note: str) -> None:
        self._after = []
        reason = Reason.GOVERNOR_BLOCK if self.state is State.LOCKED else Reason.BETWEEN_TRIALS
        self._enter(self.state, GOVERNOR, reason, f"{note}: {self._block} governor updates to compare with")

    def _give_up(self, experiment: Experiment) -> None:
        """The candidate ran without giving evidence: the work moved away, or updates are unusable."""
        if 2 * experiment.outside >= experiment.seen:
            self._experiment = None
            self._governor_block(f"{experiment.outside} of {experiment.seen} updates outside the known work")
        else:
            reason = Reason.MISSING_ENERGY if experiment.is_powerless else Reason.NO_EVIDENCE
            self._suspend(reason, f"{experiment.seen} updates at {experiment.pair}, too few usable")

    def _judge(self, evidence: Evidence) -> None:
        """The candidate block against the governor blocks around it, now that both are there."""
        word = None
        if self._experiment is not None and self._design is not None:
            blocks = [self._before, self._after]
            candidate = self._experiment
            word = compare_blocks(self._model, self._design, candidate.observations, blocks, candidate.pair)
        self._experiment = None
        self._before, self._after = self._after, []
        self._last = word or self._last
        if self.state is State.SEARCH:
            if word is not None and self._search is not None and self._levels is not None:
                self._search.record(self._levels, word)
            self._next_trial(evidence)
        elif self.state is State.CONFIRMATION:
            self._judge_confirmation(word, evidence)
        else:
            self._judge_lock(word, evidence)

    # -- search and confirmation -------------------------------------------------------------------------------

    def _try(self, pair: Pair, note: str) -> None:
        self._candidate_block(State.SEARCH, pair, Reason.TRIAL, f"{note}; {self._design}")

    def _confirm_setting(self, pair: Pair) -> None:
        self._words = []
        self._confirm_once(pair, "")

    def _confirm_once(self, pair: Pair, note: str) -> None:
        trial = len(self._words) + 1
        note = f"{pair}, trial {trial} of at most {CONFIRMATION_TRIALS}{note}"
        self._candidate_block(State.CONFIRMATION, pair, Reason.CONFIRMING, note)

    def _judge_confirmation(self, word: Comparison | None, evidence: Evidence) -> None:
        search = self._with_overlap()
        if search is None or self._levels is None:
            return
        pair = search.pair(self._levels)
        if word is None:
            self._confirm_once(pair, "; the last one showed nothing")
            return
        self._words.append(word)
        together = pooled(self._words)
        passes = search.would_pass(together)
        near = abs(together.loss - self._settings.allowed_loss) <= together.time_se
        if near and passes and len(self._words) < CONFIRMATION_TRIALS:
            self._confirm_once(pair, f"; so far: {together}")
            return
        search.record(self._levels, together, confirming=True)
        self._last = together
        if passes:
            self._go_on(pair, together, evidence)
            if self.state is State.SEARCH:
                # The governor block that judged the confirmation is the one before the next trial.
                self._next_trial(evidence)
        elif self._has_room(evidence) and search.next() is not None:
            self._between_trials(f"{pair} not confirmed: {together}")
            self._next_trial(evidence)
        else:
            self._confirm_best()

    def _lock_in(self, pair: Pair, comparison: Comparison, note: str) -> None:
        self._suspension.forgive()
        self._words = [comparison]
        self._hold(pair, Reason.CONFIRMED, note)

    # -- locked ------------------------------------------------------------------------------------------------

    def _hold(self, pair: Pair, reason: Reason, note: str) -> None:
        """Two candidate blocks of the lock; governor blocks follow them."""
        self._locked = pair
        self._candidate_block(State.LOCKED, pair, reason, note, BLOCKS_PER_GOVERNOR)

    def _judge_lock(self, word: Comparison | None, evidence: Evidence) -> None:
        """Stay, raise a clock, or leave: from the governor blocks since the clocks last changed."""
        pair = self._locked or GOVERNOR
        now = reachable(pair, self._ceilings)
        if now != pair:
            self._raise_to(now, f"the governor no longer reaches {pair}")
            return
        if word is None:
            self._hold(pair, Reason.CONFIRMED, "the last blocks showed nothing")
            return
        self._words = [*self._words, word][-JUDGED_TOGETHER:]
        together = pooled(self._words)
        allowed = self._settings.allowed_loss
        # Until there is as much evidence as is ever judged together, noise gets the benefit of a standard error, of
        # at most the one that blocks are made for.
        most = 0.0 if len(self._words) >= JUDGED_TOGETHER else self._settings.async_inflight_standard_error
        if together.energy_change - min(together.energy_se, most) >= 0.0:
            self._suspend(Reason.NOTHING_PAYS, f"the lock no longer saves: {together}")
        elif together.loss - min(together.time_se, most) > allowed:
            raised = raise_responsible(pair, together, self._settings, self._clocks, self._ceilings)
            self._raise_to(raised, f"raised from {pair}: {together}")
        else:
            self._hold(pair, Reason.CONFIRMED, f"compared again: {together}")

    def _raise_to(self, pair: Pair, note: str) -> None:
        if pair.is_governor:
            self._suspend(Reason.NOTHING_PAYS, f"the last lowered clock was still too slow; {note}")
            return
        self._words = []
        self._hold(pair, Reason.SHORTFALL, note)

    # -- memory ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        return {
            **super().to_dict(),
            "design": self._design.to_dict() if self._design else None,
            "before": [item.to_dict() for item in self._before],
            "after": [item.to_dict() for item in self._after],
            "words": [word.to_dict() for word in self._words],
            "locked": list(self._locked) if self._locked else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        self._design = BlockDesign.from_dict(values["design"]) if values["design"] else None
        self._before = [Observation.from_dict(item) for item in values["before"]]
        self._after = [Observation.from_dict(item) for item in values["after"]]
        self._words = [Comparison.from_dict(word) for word in values["words"]]
        self._locked = Pair(*values["locked"]) if values["locked"] else None
