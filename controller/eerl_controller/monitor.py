"""After the lock: the trailing window, when to judge it, and the next clock that the judgement asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eerl_controller.clocks import GOVERNOR, Pair, lowered, raised
from eerl_controller.comparison import Comparison
from eerl_controller.response import Curve
from eerl_controller.settings import Settings
from eerl_controller.work import Observation


class Monitor:
    """The last usable updates under the lock (paper, section 5.2). Each change of clocks starts a fresh one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.observations: list[Observation] = []
        self._covered: list[bool] = []
        self._since_judged = 0

    def add(self, observation: Observation, *, covered: bool) -> None:
        """Take in a usable update under the lock and whether its work was within the references' range."""
        self.observations.append(observation)
        self._covered.append(covered)
        del self.observations[: -self._settings.monitor_window]
        del self._covered[: -self._settings.monitor_window]
        self._since_judged += 1

    @property
    def is_due(self) -> bool:
        """Whether the window is full and enough updates came since it was last judged."""
        full = len(self.observations) >= self._settings.monitor_window
        return full and self._since_judged >= self._settings.monitor_every

    @property
    def outside(self) -> int:
        """Updates of the window whose work the references do not cover."""
        return self._covered.count(False)

    def judged(self) -> None:
        """The window was judged and nothing changed."""
        self._since_judged = 0

    def keep_last(self, count: int) -> None:
        """Forget all but the latest updates: the work has changed before them."""
        self.observations = self.observations[-count:]
        self._covered = self._covered[-count:]

    def restart(self) -> None:
        """The clocks changed: what was seen under the old ones says nothing now."""
        self.observations.clear()
        self._covered.clear()
        self._since_judged = 0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "observations": [item.to_dict() for item in self.observations],
            "covered": list(self._covered),
            "since_judged": self._since_judged,
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.observations = [Observation.from_dict(item) for item in values["observations"]]
        self._covered = list(values["covered"])
        self._since_judged = values["since_judged"]


def raise_responsible(
    pair: Pair,
    comparison: Comparison,
    settings: Settings,
    clocks: Sequence[int],
    ceilings_mhz: tuple[float, float],
) -> Pair:
    """The pair with the clock raised whose phase added most of the time (Table 3: 45 MHz, 90 above 4 % loss)."""
    large = comparison.loss > settings.feedback_large_loss
    step_mhz = settings.feedback_large_step_mhz if large else settings.feedback_step_mhz
    axis = 0 if comparison.added_time.generation >= comparison.added_time.training else 1
    if pair.phases[axis] is None:
        axis = 1 - axis
    now = pair.phases[axis]
    if now is None:
        # Only the idle clock is left to give back.
        return GOVERNOR
    return pair.with_clock(axis, raised(now, step_mhz, clocks, int(ceilings_mhz[axis])))


def lower_with_margin(
    pair: Pair,
    window: Comparison,
    known: Mapping[Pair, Comparison],
    responses: tuple[Curve | None, Curve | None],
    settings: Settings,
    clocks: Sequence[int],
    ceilings_mhz: tuple[float, float],
) -> Pair | None:
    """The pair with one clock lowered by a feedback step, if the measured margin permits; else None.

    Margin means: the loss of the window, and that of all windows of this pair together, plus what the step is
    expected to cost, stays within the allowance, and the step is expected to save. A clock without a response is
    left alone. ``known`` has what was seen of
    each pair since the governor was last measured: a pair at or below one that was too slow, or saved no more
    than this one, is not tried again.
    """
    here = known.get(pair, window)
    vain = [
        other
        for other, word in known.items()
        if word.loss > settings.allowed_loss
        or (other != pair and at_or_below(other, pair) and word.energy_change >= here.energy_change)
    ]
    found: tuple[float, Pair] | None = None
    for axis in (0, 1):
        ceiling, now, response = ceilings_mhz[axis], pair.phases[axis], responses[axis]
        if response is None:
            continue
        clock = lowered(now, settings.feedback_step_mhz, clocks, int(ceiling))
        if clock is None or clock == now:
            continue
        lower = pair.with_clock(axis, clock)
        x_now = max(ceiling / now - 1.0, 0.0) if now is not None else 0.0
        x_then = max(ceiling / clock - 1.0, 0.0)
        own = here.added_time.generation if axis == 0 else here.added_time.training
        cost = response.added_time(x_then) - response.added_time(x_now)
        if x_now > 0.0:
            cost = max(cost, own / x_now * (x_then - x_now))
        gain = response.added_energy(x_now) - response.added_energy(x_then)
        fits = max(window.loss, here.loss) + cost <= settings.allowed_loss
        tried = any(at_or_below(lower, other) for other in vain)
        if fits and not tried and gain > settings.min_gain / 2 and (found is None or gain > found[0]):
            found = (gain, lower)
    return found[1] if found else None


def at_or_below(pair: Pair, other: Pair) -> bool:
    """Whether neither clock of ``pair`` is above the other's (None is the highest)."""
    return all(b is None or (a is not None and a <= b) for a, b in zip(pair, other, strict=True))
