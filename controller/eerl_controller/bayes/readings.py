"""What the first readings were, in order, until they have been weighed by a noise that is known.

How noisy a job is, nobody knows before it has shown it. A model of time that has read a few updates starts again from
what it believed at first and goes through them with the noise that they have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

#: After so many readings all of them are weighed anew: at first their noise was a guess.
REWEIGHED = (6, 12, 24, 48)

Event = Sequence[Any]


class Setting(Protocol):
    """The clocks of an event, as a model sees them."""

    def to_list(self) -> list[Any]:
        """Ready for JSON."""


class Readings:
    """Counts readings, and remembers what happened as long as they are to be weighed anew."""

    def __init__(self, setting: Callable[[list[Any]], Setting]) -> None:
        self._setting = setting
        self.count = 0
        self._events: list[Event] | None = []

    def begin(self) -> None:
        """Nothing was read yet."""
        self._events, self.count = [], 0

    def note(self, *event: Any) -> None:
        """Something happened: its name and all that belongs to it."""
        if self._events is not None:
            self._events.append(event)

    def one_more(self) -> bool:
        """Count a reading; true when all of them are to be weighed anew."""
        self.count += 1
        return self.count in REWEIGHED

    def take(self) -> list[Event]:
        """What has happened; what happens while it is gone through once more is not noted."""
        events, self._events = self._events or [], None
        return events

    def put_back(self, events: list[Event]) -> None:
        """It was gone through; once for all after the last time."""
        self._events = events if self.count < REWEIGHED[-1] else None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        events = self._events
        return {
            "count": self.count,
            "events": None if events is None else [[_plain(item) for item in event] for event in events],
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self.count, events = values["count"], values["events"]
        self._events = None if events is None else [[self._whole(item) for item in event] for event in events]

    def _whole(self, item: Any) -> Any:
        return self._setting(item["setting"]) if isinstance(item, Mapping) and "setting" in item else item


def _plain(item: Any) -> Any:
    """A setting as a mapping of its own, to be told from lists; anything else as it is."""
    return {"setting": item.to_list()} if hasattr(item, "to_list") else item
