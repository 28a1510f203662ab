"""The locked pair of clocks, what is known about it, and what monitoring makes of it (paper, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair
from eerl_controller.comparison import Comparison, compare, pooled, without_stragglers
from eerl_controller.governor import GovernorModel
from eerl_controller.monitor import Monitor, lower_with_margin, raise_responsible
from eerl_controller.response import Curve
from eerl_controller.settings import Settings
from eerl_controller.work import Observation

#: Raises in a row that did not bring the throughput back: the reference, not the clock, is in doubt.
FRUITLESS_RAISES = 2
#: A reference older than this many windows is measured again before a clock is raised because of it.
FRESH_WINDOWS = 2
#: A loss of this many times ``feedback_large_loss`` is not a matter of feedback steps: the work has changed.
ALARM_FACTOR = 2.0
#: And it must be beyond this many standard errors, because it is looked for at every update.
ALARM_SE = 3.0
#: A lock whose power, relative to the governor's at equal work, moved by this much since it was confirmed, and by
#: as many standard errors, does not behave as it did: a power limit came or went. Time alone is for feedback.
POWER_CHANGE = 0.05
CHANGE_SE = 4.0
#: Pairs whose showing is remembered: a lock moves by small steps, seldom further than this many.
KNOWN_PAIRS = 32
#: Doublings of the wait after steps that had to be taken back.
MAX_DOUBLINGS = 8


class Advice(Enum):
    """What to do with the lock."""

    #: Nothing to judge yet, or all is well.
    KEEP = "keep"
    #: A clock has to rise.
    RAISE = "raise"
    #: A clock may fall, if fresh updates confirm it.
    LOWER = "lower"
    #: The lock is in doubt, or the reference is: measure the governor again.
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Advice, the pair it leads to, and the judgement behind it (None: nothing was judged)."""

    advice: Advice
    pair: Pair
    comparison: Comparison | None = None
    note: str = ""


class Lock:
    """A held pair and its monitoring; ``pair`` None means that nothing is locked."""

    def __init__(self, settings: Settings, clocks: Sequence[int]) -> None:
        self._settings = settings
        self._clocks = clocks
        self.pair: Pair | None = None
        self.monitor = Monitor(settings)
        self._known: dict[Pair, Comparison] = {}
        self._raises = 0
        self._margin_wait = 0
        self._margin_failures = 0
        self._speed_doubted = False

    def hold(self, pair: Pair) -> None:
        """Hold this pair from now on, with a fresh window."""
        self.pair = pair
        self.monitor.restart()

    def let_go(self) -> None:
        """Nothing is locked any more."""
        self.pair = None
        self.forget()

    def forget(self) -> None:
        """The governor was measured again: what was compared with the old reference is void."""
        self._known.clear()
        self._raises = 0

    def believe_speed(self) -> None:
        """The governor has changed: an implausible speed may be doubted once more."""
        self._speed_doubted = False

    def note(self, pair: Pair, comparison: Comparison) -> None:
        """Remember what a pair showed, pooled with what it showed before."""
        before = self._known.pop(pair, None)
        self._known[pair] = pooled([before, comparison]) if before else comparison
        while len(self._known) > KNOWN_PAIRS:
            self._known.pop(next(iter(self._known)))

    def taken_back(self) -> None:
        """A step had to be taken back: the next wait is twice as long, so that a flat optimum comes to rest."""
        self._margin_failures = min(self._margin_failures + 1, MAX_DOUBLINGS)
        self._margin_wait = self._settings.monitor_window * 2**self._margin_failures

    def is_short(self, pair: Pair, window: Comparison) -> bool:
        """Whether a pair loses more than allowed: by more than one standard error, or on all its windows together.

        Without the second look, the luck of single windows would ratchet the clocks up over a long run.
        """
        allowed = self._settings.allowed_loss
        everything = self._known.get(pair, window)
        return window.loss > allowed and (window.loss - window.time_se > allowed or everything.loss > allowed)

    def raised(self, pair: Pair, window: Comparison, ceilings_mhz: tuple[float, float]) -> Pair:
        """The pair with the responsible clock raised; counted, because raises that do not help point elsewhere."""
        self._raises += 1
        self.taken_back()
        return raise_responsible(pair, window, self._settings, self._clocks, ceilings_mhz)

    def add(self, observation: Observation, *, covered: bool) -> None:
        """Take in a usable update under the lock."""
        self._margin_wait = max(self._margin_wait - 1, 0)
        self.monitor.add(observation, covered=covered)

    def judge_window(self, model: GovernorModel) -> Comparison | None:
        """The window as it stands against the reference as it stands; None without evidence."""
        observations = without_stragglers(model, self.monitor.observations)
        return compare(model, observations, self.pair or GOVERNOR) if observations else None

    def is_alarming(self, window: Comparison) -> bool:
        """Whether a loss is too large for feedback steps to mend within a reasonable time."""
        limit = max(ALARM_FACTOR * self._settings.feedback_large_loss, self._settings.allowed_loss)
        return window.loss - ALARM_SE * window.time_se > limit

    def _alarm(self, pair: Pair, model: GovernorModel) -> tuple[Comparison, str] | None:
        """The latest updates' judgement, as many as confirmed the lock, if it cannot wait for a full window."""
        latest = self.monitor.observations[-self._settings.confirmation_updates :]
        if len(latest) < self._settings.confirmation_updates:
            return None
        window = compare(model, without_stragglers(model, latest), pair)
        if window is None:
            return None
        if self.is_alarming(window):
            return window, f"far too slow: {window}"
        before = self._known.get(pair)
        return (window, f"not as before: {window}") if before and self._has_changed(before, window) else None

    @staticmethod
    def _has_changed(before: Comparison, window: Comparison) -> bool:
        """Whether a setting's power moved further than noise accounts for."""
        powers = [
            math.log(max(1.0 + w.energy_change, 1e-6) / (1.0 + w.added_time.total)) for w in (before, window)
        ]
        error = math.hypot(before.time_se, before.energy_se, window.time_se, window.energy_se)
        return abs(powers[1] - powers[0]) > max(POWER_CHANGE, CHANGE_SE * error)

    def monitored(
        self,
        pair: Pair,
        model: GovernorModel,
        reference_age_updates: int,
        responses: tuple[Curve | None, Curve | None] | None,
        ceilings_mhz: tuple[float, float],
    ) -> Verdict:
        """The advice after the latest update. Without ``responses`` no clock is lowered."""
        settings = self._settings
        if self.monitor.outside >= settings.coverage_failures:
            seen = len(self.monitor.observations)
            note = f"{self.monitor.outside} of the last {seen} updates outside the work that the governor did"
            return Verdict(Advice.DOUBT, pair, None, note)
        alarm = self._alarm(pair, model)
        if alarm is not None:
            self.monitor.keep_last(settings.confirmation_updates)
            return Verdict(Advice.DOUBT, pair, *alarm)
        window = self.judge_window(model) if self.monitor.is_due else None
        if window is None:
            return Verdict(Advice.KEEP, pair)
        self.monitor.judged()
        self.note(pair, window)
        if self.is_short(pair, window):
            if self._raises >= FRUITLESS_RAISES:
                return Verdict(Advice.DOUBT, pair, window, f"{self._raises} raises did not help: {window}")
            if reference_age_updates > FRESH_WINDOWS * settings.monitor_window:
                note = f"short, by a reference {reference_age_updates} updates old: {window}"
                return Verdict(Advice.DOUBT, pair, window, note)
            return Verdict(Advice.RAISE, self.raised(pair, window, ceilings_mhz), window)
        self._raises = 0
        if window.energy_change >= 0.0:
            return Verdict(Advice.DOUBT, pair, window, f"the lock no longer saves: {window}")
        gain_limit = max(settings.allowed_loss, 3.0 * window.time_se)
        if -window.loss > gain_limit and not self._speed_doubted:
            self._speed_doubted = True
            return Verdict(Advice.DOUBT, pair, window, f"faster than a lowered clock can be: {window}")
        lower = None
        if responses is not None and self._margin_wait == 0:
            lower = lower_with_margin(
                pair, window, self._known, responses, settings, self._clocks, ceilings_mhz
            )
        if lower is not None:
            return Verdict(Advice.LOWER, lower, window)
        return Verdict(Advice.KEEP, pair, window, f"monitored: {window}")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pair": list(self.pair) if self.pair else None,
            "monitor": self.monitor.to_dict(),
            "known": [[*pair, word.to_dict()] for pair, word in self._known.items()],
            "raises": self._raises,
            "margin_wait": self._margin_wait,
            "margin_failures": self._margin_failures,
            "speed_doubted": self._speed_doubted,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.pair = Pair(*values["pair"]) if values["pair"] else None
        self.monitor.load(values["monitor"])
        self._known = {Pair(*clocks): Comparison.from_dict(word) for *clocks, word in values["known"]}
        self._raises = values["raises"]
        self._margin_wait = values["margin_wait"]
        self._margin_failures = values["margin_failures"]
        self._speed_doubted = values["speed_doubted"]
