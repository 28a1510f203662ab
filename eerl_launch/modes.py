"""Execution modes as the session sees them: who shares GPUs, and where one update ends and the next begins.

The controller has the same four (``eerl_controller.ExecutionMode``); the session knows them by name, so that it
need not load the controller before the first update closes.
"""

from __future__ import annotations

from enum import Enum

#: Phases that run under the generation clock and under the training clock (contract 3.7). On separate pools these
#: are also the phases that belong to one pool alone.
POOL_PHASES = {
    "generation": ("generation", "validation"),
    "training": ("training", "logprob", "critic"),
}
ROLE_OF_PHASE = {phase: role for role, phases in POOL_PHASES.items() for phase in phases}
#: Not part of an update's own work: what time they add to it is taken off before updates are compared.
VISITING_PHASES = ("validation", "checkpoint")
#: Both pools take part in it: weights go from the one to the other.
REFIT = "refit"
#: What lies between the trainer's ``pause`` and ``resume`` events, which belong to no phase of its own.
PAUSE = "pause"


class Border(Enum):
    """What an update ends with (contract 3.7)."""

    GENERATION = "first generation begin"
    REFIT = "refit end"
    PAUSE = "pause end"


class Mode(Enum):
    """How generation and training share the GPUs (paper, section 2.2)."""

    COLOCATED_SYNC = "colocated_sync"
    DISAGGREGATED_SYNC = "disaggregated_sync"
    ASYNC_DRAINED = "async_drained"
    ASYNC_INFLIGHT = "async_inflight"

    @classmethod
    def named(cls, name: object) -> Mode | None:
        """The mode of that name, None for any other word."""
        return next((mode for mode in cls if mode.value == name), None)

    @property
    def separate(self) -> bool:
        """Whether generation and training have GPUs of their own."""
        return self is not Mode.COLOCATED_SYNC

    @property
    def asynchronous(self) -> bool:
        """Whether generation and training run at the same time."""
        return self in (Mode.ASYNC_DRAINED, Mode.ASYNC_INFLIGHT)

    @property
    def border(self) -> Border:
        """What ends an update."""
        return {Mode.ASYNC_DRAINED: Border.REFIT, Mode.ASYNC_INFLIGHT: Border.PAUSE}.get(
            self, Border.GENERATION
        )
