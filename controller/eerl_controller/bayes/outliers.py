"""Two slow outliers in a row under the same lowered clocks are the clocks, not stragglers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from eerl_controller.bayes.sample import Three

#: Slower than expected by so many standard deviations is an outlier.
SLOW_SD = 3.0


class Setting(Protocol):
    """The clocks of an update, as a model sees them."""

    @property
    def is_governor(self) -> bool:
        """Whether nothing differs from the governor."""

    def to_list(self) -> list[Any]:
        """Ready for JSON."""


S = TypeVar("S", bound=Setting)


@dataclass(frozen=True, slots=True)
class Outlier(Generic[S]):
    """An update that was slow: its seconds by part, its work, and what it ran under."""

    seconds: Three
    work: Mapping[str, float]
    setting: S


class Outliers(Generic[S]):
    """Remembers the last update, if it was a slow outlier under lowered clocks."""

    def __init__(self, setting: Callable[[list[Any]], S]) -> None:
        self._setting = setting
        self._last: Outlier[S] | None = None

    def add(self, surprises: Sequence[float], update: Outlier[S]) -> tuple[Outlier[S], ...]:
        """An update and how surprising its phases were; returns what must be believed after all, mostly nothing."""
        slow = not update.setting.is_governor and max(surprises[0], surprises[1]) > SLOW_SD
        if slow and self._last is not None and self._last.setting == update.setting:
            both, self._last = (self._last, update), None
            return both
        self._last = update if slow else None
        return ()

    def to_list(self) -> list[Any] | None:
        """Ready for JSON."""
        if self._last is None:
            return None
        return [list(self._last.seconds), dict(self._last.work), self._last.setting.to_list()]

    def load(self, values: list[Any] | None) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._last = None
        if values is not None:
            (a, b, c), work, setting = values
            self._last = Outlier((a, b, c), work, self._setting(setting))
