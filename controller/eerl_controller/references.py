"""The governor updates that everything is compared with: a bounded window, its age and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eerl_controller.governor import GovernorModel
from eerl_controller.records import ExecutionMode
from eerl_controller.work import Observation


class References:
    """Governor observations, oldest first, at most ``window`` of them; the model is refitted when they change."""

    def __init__(self, mode: ExecutionMode, window: int) -> None:
        self._mode = mode
        self._window = window
        self._items: list[Observation] = []
        self._model: GovernorModel | None = None
        self._stale = False
        #: Updates since the last governor observation, gaps included.
        self.age_updates = 0

    @property
    def items(self) -> Sequence[Observation]:
        """The observations, stragglers and warm-up among them (the model leaves those out)."""
        return tuple(self._items)

    @property
    def model(self) -> GovernorModel | None:
        """The governor as these references know it; None while they are too few."""
        if self._stale:
            self._model = GovernorModel.fit_observations(self._items, self._mode)
            self._stale = False
        return self._model

    @property
    def usable(self) -> int:
        """How many references the model rests on."""
        return len(self.model.references) if self.model else 0

    def add(self, observation: Observation) -> None:
        """A fresh governor observation; the oldest leaves a full window.

        One that would leave no model where there was one (its phases are not those of the others) is not taken.
        """
        known, before = self.model, self._items
        self._items = [*before, observation][-self._window :]
        self._stale = True
        if known is not None and self.model is None:
            self._items = before
            self._stale = True
            return
        self.age_updates = 0

    def keep_last(self, count: int) -> None:
        """Forget all but the freshest ``count``: the older ones describe a governor that is no more."""
        self._items = self._items[-count:] if count > 0 else []
        self._stale = True

    def before_last(self, count: int) -> GovernorModel | None:
        """The model without the freshest ``count`` observations: what was believed before they came."""
        return GovernorModel.fit_observations(self._items[: max(len(self._items) - count, 0)], self._mode)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"items": [item.to_dict() for item in self._items], "age_updates": self.age_updates}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._items = [Observation.from_dict(item) for item in values["items"]]
        self.age_updates = values["age_updates"]
        self._stale = True
