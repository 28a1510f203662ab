"""Since when a GPU has had nothing to do, so that the idle end of a phase can be told GPU by GPU. No I/O."""

from __future__ import annotations

from bisect import bisect_right

from eerl_launch.history import History

#: Changes between busy and idle that are kept: an update long beyond it forgets its oldest ones.
_MAX_CHANGES = 4000
_BUSY, _IDLE = 0, 1


class IdleWatch:
    """One GPU's utilisation as stretches of busy and idle; times are run time in seconds.

    NVML's utilisation is a mean over up to a second, so idleness shows late and a wait is at least what is said.
    """

    __slots__ = ("_last_s", "_states")

    def __init__(self) -> None:
        self._states = History()
        self._last_s = float("-inf")

    def read(self, t_s: float, util_pct: int | None) -> None:
        """Take one sample in; None where the GPU does not tell its load."""
        if util_pct is None:
            return
        self._last_s = t_s
        states = self._states
        state = _IDLE if util_pct == 0 else _BUSY
        if states.values and states.values[-1] == state:
            return
        states.put(t_s, state)
        if len(states.times) > _MAX_CHANGES:
            states.forget_before(states.times[_MAX_CHANGES // 2])

    def tail_s(self, begin_s: float, end_s: float) -> float | None:
        """Seconds at the end of [begin, end] in which the GPU did nothing; None when its load was not told."""
        state = self._states.at(end_s)
        if state is None or self._last_s < begin_s:
            return None
        if state == _BUSY:
            return 0.0
        since_s = self._states.times[bisect_right(self._states.times, end_s) - 1]
        return end_s - max(begin_s, since_s)

    def forget_before(self, t_s: float) -> None:
        """Drop what no instant at or after ``t_s`` needs."""
        self._states.forget_before(t_s)
