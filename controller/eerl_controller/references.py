"""The governor updates that everything is compared with: a bounded window, its age and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eerl_controller.governor import GovernorModel
from eerl_controller.records import ExecutionMode
from eerl_controller.work import Observation


class References:
    """Governor observations, oldest first, at most ``window`` of them.

    The model is fitted when it is asked for: a strategy with a model of its own seldom does. An observation that
    leaves no model where there was one (its phases are not those of the others) is not taken.
    """

    def __init__(self, mode: ExecutionMode, window: int) -> None:
        self._mode = mode
        self._window = window
        self._items: list[Observation] = []
        self._model: GovernorModel | None = None
        self._stale = False
        #: Observations that no fit has been tried with, oldest first, and how old the one before each was.
        self._untried: list[tuple[Observation, int]] = []
        self._age_updates = 0

    @property
    def items(self) -> Sequence[Observation]:
        """The observations, stragglers and warm-up among them (the model leaves those out)."""
        self._try()
        return tuple(self._items)

    @property
    def model(self) -> GovernorModel | None:
        """The governor as these references know it; None while they are too few."""
        self._try()
        return self._model

    @property
    def usable(self) -> int:
        """How many references the model rests on."""
        return len(self.model.references) if self.model else 0

    @property
    def age_updates(self) -> int:
        """Updates since the last governor observation, gaps included."""
        self._try()
        return self._age_updates

    def pass_updates(self, updates: int) -> None:
        """So many updates have been, the present one included."""
        self._age_updates += updates

    def add(self, observation: Observation) -> None:
        """A fresh governor observation; the oldest leaves a full window."""
        self._untried.append((observation, self._age_updates))
        self._age_updates = 0
        if self._model is None or len(self._untried) >= self._window:
            self._try()

    def keep_last(self, count: int) -> None:
        """Forget all but the freshest ``count``: the older ones describe a governor that is no more."""
        self._try()
        self._items = self._items[-count:] if count > 0 else []
        self._stale = True

    def before_last(self, count: int) -> GovernorModel | None:
        """The model without the freshest ``count`` observations: what was believed before they came."""
        self._try()
        return GovernorModel.fit_observations(self._items[: max(len(self._items) - count, 0)], self._mode)

    def _try(self) -> None:
        """Fit the model with what came since the last fit; without the freshest that leave none."""
        if self._stale:
            self._model = GovernorModel.fit_observations(self._items, self._mode)
            self._stale = False
        untried, self._untried = self._untried, []
        while untried:
            items = [*self._items, *(item for item, _ in untried)][-self._window :]
            model = GovernorModel.fit_observations(items, self._mode)
            if model is not None or self._model is None:
                self._items, self._model = items, model
                return
            _, age_updates = untried.pop()
            self._age_updates += age_updates

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"items": [item.to_dict() for item in self.items], "age_updates": self.age_updates}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what :meth:`to_dict` wrote."""
        self._items = [Observation.from_dict(item) for item in values["items"]]
        self._age_updates = values["age_updates"]
        self._stale = True
