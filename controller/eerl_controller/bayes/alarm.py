"""Whether updates have lately not been what they were: Page's cumulative sums of the model's surprises, by phase."""

from __future__ import annotations

from collections.abc import Sequence

#: Surprises beyond this drift add up, half of the shift that is looked for: a standard deviation, about what 3 points
#: are where noise is large. This much of them is a change: with Gaussian surprises the four sums reach it by chance
#: once in 1,700 updates (Siegmund's approximation), and no single surprise can.
CUSUM_DRIFT, CUSUM_LIMIT, LARGEST_SURPRISE = 0.5, 7.0, 3.0


class Alarm:
    """Sums of surprises in standard deviations, upward and downward, of generation and training."""

    def __init__(self) -> None:
        self.settle()

    @property
    def raised(self) -> bool:
        """Whether one of the sums is beyond what chance makes of it."""
        return max(self._sums) >= CUSUM_LIMIT

    def add(self, surprises: Sequence[float]) -> None:
        """An update's surprises, generation's and training's first."""
        for axis in (0, 1):
            surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprises[axis]))
            for i, signed in ((2 * axis, surprise), (2 * axis + 1, -surprise)):
                self._sums[i] = max(self._sums[i] + signed - CUSUM_DRIFT, 0.0)
                self._since[i] = self._since[i] + 1 if self._sums[i] > 0.0 else 0

    @property
    def since(self) -> int:
        """How many readings ago the change most likely was: when the largest sum was 0 for the last time."""
        return self._since[self._sums.index(max(self._sums))]

    def settle(self) -> None:
        """It was taken care of."""
        self._sums = [0.0] * 4
        #: Readings since each sum was 0.
        self._since = [0] * 4

    def to_list(self) -> list[float]:
        """Ready for JSON."""
        return [*self._sums, *self._since]

    def load(self, values: Sequence[float]) -> None:
        """Take over what :meth:`to_list` wrote."""
        self._sums, self._since = list(values[:4]), [int(value) for value in values[4:]]
