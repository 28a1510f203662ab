"""Readings of one GPU through NVML, each query probed on its own, in a thread of the GPU's own.

An old driver or a missing symbol costs one field, not the sample (nvml.h: NVML_ERROR_NOT_SUPPORTED,
NVML_ERROR_FUNCTION_NOT_FOUND); a call that hangs costs its own GPU, not the others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from eerl_launch.devices.base import GpuSample

NOT_SUPPORTED, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 10, 13, 15
RESET_REQUIRED, DEPRECATED, UNKNOWN = 16, 26, 999
_UNSUPPORTED = (NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED)
#: Polling too fast makes drivers answer NOT_SUPPORTED now and then, so one refusal does not switch a query off.
_REFUSALS = 3
#: The enforced power limit changes by an operator's hand: it is read once a second, not with every sample.
_LIMIT_PERIOD_NS = 1_000_000_000


class Reader:
    """One GPU: a thread of its own does all its calls, so that a call that hangs costs this GPU only."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._refusals: dict[str, int] = {}
        self._answered: set[str] = set()
        self._limit_mw: int | None = None
        self._limit_due_ns = 0
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[GpuSample] = queue.SimpleQueue()
        self._waiting = False
        self._overdue = False
        threading.Thread(target=self._serve, name="nvml", daemon=True).start()

    @property
    def hangs(self) -> bool:
        """Whether a call into the driver has not come back."""
        return self._waiting

    def request(self) -> None:
        """Ask for a reading, unless one is still under way."""
        if not self._waiting:
            self._waiting = True
            self._orders.put(True)

    def answer(self, deadline_s: float) -> GpuSample:
        """The reading asked for, or TIMEOUT at the deadline (monotonic seconds); later at once until it comes."""
        patience_s = 0.0 if self._overdue else max(0.0, deadline_s - time.monotonic())
        try:
            sample = self._answers.get(timeout=patience_s) if patience_s else self._answers.get_nowait()
        except queue.Empty:
            self._overdue = True
            return GpuSample(time.monotonic_ns(), error_code=TIMEOUT)
        self._waiting = self._overdue = False
        return sample

    def close(self) -> None:
        """Let the thread end."""
        self._orders.put(False)

    def _serve(self) -> None:
        while self._orders.get():
            self._answers.put(self._read())

    def _ask(self, name: str, query: Callable[[], Any]) -> int | None:
        """One query's value; None when it has none now. Raises when the GPU as a whole has gone."""
        if self._refusals.get(name, 0) >= _REFUSALS:
            return None
        try:
            value = int(query())
        except self._nvml.NVMLError as error:
            code = int(getattr(error, "value", UNKNOWN))
            if code in (GPU_IS_LOST, RESET_REQUIRED):
                raise
            if code in _UNSUPPORTED and name not in self._answered:
                self._refusals[name] = self._refusals.get(name, 0) + 1
            return None
        except (AttributeError, ValueError, TypeError):  # a binding older than the query
            self._refusals[name] = _REFUSALS
            return None
        self._answered.add(name)
        return value

    def _power_mw(self) -> int | None:
        """Instant power where there is such a field (186), else the driver's own mean; 0 is no reading."""
        nvml, handle = self._nvml, self._handle

        def instant() -> int:
            value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
            if value.nvmlReturn != 0:
                raise nvml.NVMLError(value.nvmlReturn)
            return int(value.value.uiVal)

        power = self._ask("instant power", instant)
        if not power:
            power = self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return power or None

    def _enforced_limit_mw(self, now_ns: int) -> int | None:
        if now_ns >= self._limit_due_ns:
            self._limit_due_ns = now_ns + _LIMIT_PERIOD_NS
            nvml, handle = self._nvml, self._handle
            self._limit_mw = self._ask("limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return self._limit_mw

    def _event_reasons(self) -> int | None:
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:  # the name before driver 535
            reasons = self._ask("old reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return reasons

    def _read(self) -> GpuSample:
        nvml, handle = self._nvml, self._handle
        before_ns = time.monotonic_ns()
        try:
            energy_mj = self._ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            t_ns = (before_ns + time.monotonic_ns()) // 2
            return GpuSample(
                t_ns=t_ns,
                energy_mj=energy_mj,
                sm_mhz=self._ask("clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                power_mw=self._power_mw(),
                util_pct=self._ask("load", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                reasons=self._event_reasons(),
                limit_mw=self._enforced_limit_mw(before_ns),
            )
        except nvml.NVMLError as error:
            return GpuSample(before_ns, error_code=int(getattr(error, "value", UNKNOWN)))
        except Exception:  # a thread that dies would look like a GPU that hangs
            return GpuSample(before_ns, error_code=UNKNOWN)
