"""What every mode that searches by trials has in common: calibration, rounds of a search, words, memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.comparison import Comparison
from eerl_controller.experiment import Experiment
from eerl_controller.governor import GovernorModel
from eerl_controller.horizon import has_room
from eerl_controller.records import ClockGrid
from eerl_controller.references import References
from eerl_controller.response import Curve
from eerl_controller.rounds import Levels
from eerl_controller.search import Search
from eerl_controller.settings import Settings
from eerl_controller.situation import ceilings_mhz
from eerl_controller.stateful import HOLDING, Stateful
from eerl_controller.states import Reason, State
from eerl_controller.strategy import Evidence
from eerl_controller.work import Unusable

Handler = Callable[[Evidence], None]


class Controlled(Stateful):
    """A strategy that calibrates, searches in one round or two, and locks."""

    def __init__(self, settings: Settings, grid: ClockGrid, references: References) -> None:
        super().__init__(settings, grid, references)
        self._search: Search | None = None
        #: The first of two rounds, once it is over, and the setting that it confirmed.
        self._finished: Search | None = None
        self._confirmed: tuple[Pair, Comparison] | None = None
        self._levels: Levels | None = None
        self._experiment: Experiment | None = None
        self._last: Comparison | None = None

    # -- one way in --------------------------------------------------------------------------------------------

    def observe(self, evidence: Evidence) -> None:
        """Take one update in and, if need be, wish for another plan."""
        if evidence.unusable is Unusable.OPERATOR_HOLD:
            return
        if self.state in HOLDING and not self.book.pair.is_governor:
            reason = self._trouble.add(evidence)
            if reason is not None:
                self._suspend(reason, "too many updates in a row; governor clocks for now")
                return
        handler = self._handlers().get(self.state)
        if handler is not None:
            handler(evidence)

    def _handlers(self) -> Mapping[State, Handler]:
        """What takes an update in, by state."""
        return {State.CALIBRATION: self._on_calibration, State.SUSPENDED: self._on_suspended}

    @property
    def _model(self) -> GovernorModel:
        model = self._references.model
        if model is None:
            raise RuntimeError("no governor model after calibration: a bug in the controller")
        return model

    @property
    def _ceilings(self) -> tuple[float, float]:
        return ceilings_mhz(self._model, self._grid)

    def _has_room(self, evidence: Evidence) -> bool:
        """Whether enough of the job is left for something new."""
        typical_s = median(item.elapsed_s for item in self._model.references)
        return has_room(evidence.record, typical_s, self._cost_updates)

    @property
    def _cost_updates(self) -> int:
        """Updates of a trial, its confirmation and the governor's around them."""
        settings = self._settings
        cost = settings.trial_updates + settings.bracket_updates + settings.confirmation_updates
        return cost + 3 * settings.settle_updates

    # -- calibration -------------------------------------------------------------------------------------------

    def _on_calibration(self, evidence: Evidence) -> None:
        model = self._references.model
        have, want = self._references.usable, self._settings.calibration_updates
        if model is None or have < want:
            note, reason = f"{have} of {want} usable governor updates", Reason.CALIBRATING
            if evidence.unusable is Unusable.MISSING_COUNTS:
                reason = Reason.MISSING_COUNTS
                note += "; markers bring no valid_tokens: send them to have clocks controlled"
            self._enter(State.CALIBRATION, GOVERNOR, reason, note)
        elif model.energy is None:
            self._enter(State.CALIBRATION, GOVERNOR, Reason.MISSING_ENERGY, "energy of the job is not known")
        elif (missing := self._missing(model)) is not None:
            self._enter(State.CALIBRATION, GOVERNOR, *missing)
        elif not self._has_room(evidence):
            self._enter(
                State.CALIBRATION, GOVERNOR, Reason.NEAR_END, "too few updates left to repay a search"
            )
        else:
            self._calibrated(evidence)

    def _missing(self, model: GovernorModel) -> tuple[Reason, str] | None:
        """What this mode needs to know and the references do not tell; None when nothing is missing."""
        return None

    @abstractmethod
    def _calibrated(self, evidence: Evidence) -> None:
        """The governor is known: what comes next."""

    @abstractmethod
    def _first_round(self) -> Search:
        """The first round of a search from the reference as it stands."""

    def _second_round(self, pair: Pair, comparison: Comparison) -> Search | None:
        """A further round on top of what the first confirmed; None when there is none in this mode."""
        return None

    @abstractmethod
    def _try(self, pair: Pair, note: str) -> None:
        """Begin a trial of a setting."""

    @abstractmethod
    def _confirm_setting(self, pair: Pair) -> None:
        """Begin to confirm the setting that the search found."""

    @abstractmethod
    def _lock_in(self, pair: Pair, comparison: Comparison, note: str) -> None:
        """Lock a confirmed setting."""

    # -- rounds ------------------------------------------------------------------------------------------------

    def _next_trial(self, evidence: Evidence) -> None:
        """The next setting is tried; the best one is confirmed when the search is over, or the job nearly."""
        search = self._with_overlap()
        levels = search.next() if search is not None and self._has_room(evidence) else None
        if search is None or levels is None:
            self._confirm_best()
            return
        self._levels, pair = levels, search.pair(levels)
        note = f"trial {len(search.trials) + 1}: {pair}"
        if self._last is not None:
            note += f"; the one before: {self._last}"
        self._try(pair, note)

    def _between_trials(self, note: str) -> None:
        """The governor, until the next trial."""
        self._enter(State.SEARCH, GOVERNOR, Reason.BETWEEN_TRIALS, note)

    def _confirm_best(self) -> None:
        """The passing setting of lowest energy is confirmed; without one, what an earlier round found is locked."""
        search = self._search
        passing = search.passing() if search is not None else []
        if search is not None and passing and len(search.trials) < 2 * self._settings.max_trials:
            self._levels = passing[0]
            self._confirm_setting(search.pair(passing[0]))
        elif self._confirmed is not None:
            pair, comparison = self._confirmed
            self._lock_in(pair, comparison, f"nothing lower pays on top of {pair}: {comparison}")
        else:
            self._suspend(Reason.NOTHING_PAYS, "no tested setting keeps the throughput and saves energy")

    def _go_on(self, pair: Pair, comparison: Comparison, evidence: Evidence) -> None:
        """A confirmed setting is kept in the next round of the search, or locked when there is none."""
        following = None
        if self._confirmed is None and self._has_room(evidence):
            following = self._second_round(pair, comparison)
        if following is None:
            self._lock_in(pair, comparison, f"confirmed: {comparison}")
            return
        self._confirmed = (pair, comparison)
        self._finished, self._search, self._levels = self._search, following, None
        self._between_trials(f"{pair} confirmed, now the other pool: {comparison}")

    def _with_overlap(self) -> Search | None:
        """The search, knowing what the references know now of how pools wait for each other."""
        for search in (self._search, self._finished):
            if search is not None:
                search.overlap = self._model.overlap
        return self._search

    def _responses(self) -> tuple[Curve | None, Curve | None] | None:
        """How either clock answers, for monitoring; None before any search."""
        if self._with_overlap() is None:
            return None
        curves: list[Curve | None] = []
        for axis in (0, 1):
            rounds = [item for item in (self._search, self._finished) if item and item.changes(axis)]
            curves.append(rounds[0].response(axis) if rounds else None)
        return curves[0], curves[1]

    # -- governor for now --------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Clocks go back to the governor for a while: what was under way is over."""
        self._experiment = None

    # -- words and memory --------------------------------------------------------------------------------------

    def summary(self) -> str:
        """State, clocks and the latest judgement, in one line."""
        parts = [f"{self.state.value}: {self.book.pair}"]
        if self._experiment is not None and not self.book.pair.is_governor:
            parts.append(f"{len(self._experiment.observations)} of {self._experiment.wanted} updates")
        elif self.state is State.CALIBRATION:
            parts.append(
                f"{self._references.usable} of {self._settings.calibration_updates} governor updates"
            )
        elif self.state is State.SUSPENDED:
            parts.append(
                f"{str(self.book.plan.reason.value).replace('_', ' ')}, again in {self._suspension.left}"
            )
        if self._last is not None and self.state in HOLDING:
            parts.append(
                f"last judged {100 * self._last.throughput_change:+.1f} % throughput, "
                f"{100 * self._last.energy_change:+.1f} % energy"
            )
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the references are the controller's to write."""
        confirmed = self._confirmed
        return {
            **super().to_dict(),
            "search": self._search.to_dict() if self._search else None,
            "finished": self._finished.to_dict() if self._finished else None,
            "confirmed": [list(confirmed[0]), confirmed[1].to_dict()] if confirmed else None,
            "levels": list(self._levels) if self._levels else None,
            "experiment": self._experiment.to_dict() if self._experiment else None,
            "last": self._last.to_dict() if self._last else None,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        super().load(values)
        experiment, last, confirmed = values["experiment"], values["last"], values["confirmed"]
        self._search, self._finished = (
            Search.from_dict(found, self._settings, self._clocks) if found else None
            for found in (values["search"], values["finished"])
        )
        self._confirmed = (Pair(*confirmed[0]), Comparison.from_dict(confirmed[1])) if confirmed else None
        self._levels = Levels(*values["levels"]) if values["levels"] else None
        self._experiment = Experiment.from_dict(experiment) if experiment else None
        self._last = Comparison.from_dict(last) if last else None
