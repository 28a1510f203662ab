"""The updates of one run in order, in the way of the world's execution mode."""

from __future__ import annotations

from typing import Any, TypeAlias

from eerl_controller import ExecutionMode
from eerl_twin.conditions import Conditions
from eerl_twin.drained import Drained
from eerl_twin.inflight import InFlight
from eerl_twin.step import Work
from eerl_twin.synchronous import Colocated, Disaggregated
from eerl_twin.world import World

#: ``step(update, setting)``, indices in order from 0; settings may be arrays, but then all of them.
Timeline: TypeAlias = Colocated[Any] | Disaggregated[Any] | Drained[Any] | InFlight[Any]


def timeline(world: World, conditions: Conditions) -> Timeline:
    """A fresh timeline: every policy and every pair of clocks needs its own."""
    work = Work(world, conditions)
    if world.mode is ExecutionMode.ASYNC_INFLIGHT:
        return InFlight(work)
    if world.mode is ExecutionMode.ASYNC_DRAINED:
        return Drained(work)
    if world.mode is ExecutionMode.DISAGGREGATED_SYNC:
        return Disaggregated(work)
    return Colocated(work)
