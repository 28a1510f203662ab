"""What a pair of clock requests means for speed and power, for one request or for a whole grid of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Generic

import numpy as np

from eerl_controller import ExecutionMode
from eerl_twin.response import Array, TimeResponse, Value
from eerl_twin.world import Activity, World


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """Clocks made ready: slowdowns relative to the governor, watts per GPU, MHz reached.

    ``*_ratio`` is the governor's clock over the one reached: no work is slowed by more. ``*_locked`` is 1 under a
    lock and 0 under the governor; ``*_idle_w`` is what a waiting pool draws when its clock is lowered for the
    wait, ``*_wait_w`` when it is not. ``switches`` counts changes inside an update.
    """

    generation_slow: Value
    training_slow: Value
    generation_ratio: Value
    training_ratio: Value
    generation_locked: Value
    training_locked: Value
    refit_slow: Value
    generation_w: Value
    training_w: Value
    generation_wait_w: Value
    training_wait_w: Value
    generation_idle_w: Value
    training_idle_w: Value
    generation_refit_w: Value
    training_refit_w: Value
    generation_mhz: Value
    training_mhz: Value
    switches: Value
    idles: bool


class Machine:
    """The GPUs of a world; ``throttle`` lowers every reachable clock by that factor (thermal slowdown)."""

    def __init__(self, world: World, throttle: float = 1.0) -> None:
        self._world = world
        self._throttle = throttle
        #: As fractions of the top clock, before throttling: what the governor runs each activity at.
        self._ceilings = {
            name: self._ceiling(getattr(world.power, name))
            for name in ("wait", "generation", "training", "refit")
        }

    def _ceiling(self, activity: Activity) -> float:
        """The highest clock of an activity, as a fraction of the top: its own, or where the power cap binds."""
        cap_w = self._world.power.cap_w
        if cap_w is None:
            return activity.ceiling
        clocks = np.array(self._world.supported_mhz) / self._world.top_mhz
        allowed = clocks[self._watts(activity, clocks) <= cap_w]
        return min(activity.ceiling, float(allowed.max()) if len(allowed) else float(clocks[0]))

    def _watts(self, activity: Activity, fraction: Array) -> Array:
        return activity.floor_w + activity.clock_w * self._world.power.shape.relative_power(fraction)

    def _slow(self, response: TimeResponse, reached: Array, ceiling: float) -> Array:
        return response.relative_time(reached) / response.relative_time(np.array(ceiling))

    def many(self, generation_mhz: Array, training_mhz: Array, idle_mhz: int | None) -> Setting[Array]:
        """Settings for arrays of requests in MHz, NaN being the governor."""
        world = self._world
        requests = {"generation": generation_mhz / world.top_mhz, "training": training_mhz / world.top_mhz}
        locked = {name: ~np.isnan(fraction) for name, fraction in requests.items()}
        limit = {name: np.nan_to_num(fraction, nan=1.0) for name, fraction in requests.items()}
        watts: dict[str, Array] = {}
        slow: dict[str, Array] = {}
        reached_mhz: dict[str, Array] = {}
        for pool in ("generation", "training"):
            reached = np.minimum(limit[pool], self._ceilings[pool] * self._throttle)
            response = world.generation_response if pool == "generation" else world.training_response
            slow[pool] = self._slow(response, reached, self._ceilings[pool])
            reached_mhz[pool] = reached * world.top_mhz
            watts[pool] = self._watts(getattr(world.power, pool), reached)
            waiting = np.minimum(limit[pool], world.power.governor_waits_at * self._throttle)
            watts[f"{pool}_wait"] = self._watts(world.power.wait, waiting)
            idle = waiting if idle_mhz is None else np.minimum(waiting, idle_mhz / world.top_mhz)
            watts[f"{pool}_idle"] = self._watts(world.power.wait, idle)
            refitting = np.minimum(limit[pool], self._ceilings["refit"] * self._throttle)
            watts[f"{pool}_refit"] = self._watts(world.power.refit, refitting)
            slow[f"{pool}_refit"] = self._slow(world.refit_response, refitting, self._ceilings["refit"])
        colocated = world.mode is ExecutionMode.COLOCATED_SYNC
        # A colocated refit keeps the clock of training; elsewhere it waits for the slower pool.
        refit = slow["training_refit"]
        if not colocated:
            refit = np.maximum(refit, slow["generation_refit"])
        return Setting(
            generation_slow=slow["generation"],
            training_slow=slow["training"],
            generation_ratio=self._ceilings["generation"] * world.top_mhz / reached_mhz["generation"],
            training_ratio=self._ceilings["training"] * world.top_mhz / reached_mhz["training"],
            generation_locked=1.0 * locked["generation"],
            training_locked=1.0 * locked["training"],
            refit_slow=refit,
            generation_w=watts["generation"],
            training_w=watts["training"],
            generation_wait_w=watts["generation_wait"],
            training_wait_w=watts["training_wait"],
            generation_idle_w=watts["generation_idle"],
            training_idle_w=watts["training_idle"],
            generation_refit_w=watts["generation_refit"],
            training_refit_w=watts["training_refit"],
            generation_mhz=reached_mhz["generation"],
            training_mhz=reached_mhz["training"],
            switches=2.0 * (colocated & (limit["generation"] != limit["training"])),
            idles=idle_mhz is not None and not colocated,
        )

    def one(
        self, generation_mhz: int | None, training_mhz: int | None, idle_mhz: int | None
    ) -> Setting[float]:
        """The setting of one plan's clocks in MHz, None being the governor."""
        pair = [np.array([math.nan if mhz is None else float(mhz)]) for mhz in (generation_mhz, training_mhz)]
        setting = self.many(pair[0], pair[1], idle_mhz)
        values: dict[str, Any] = {item.name: getattr(setting, item.name) for item in fields(setting)}
        single: dict[str, Any] = {
            name: value if isinstance(value, bool) else float(value[0]) for name, value in values.items()
        }
        return Setting(**single)
