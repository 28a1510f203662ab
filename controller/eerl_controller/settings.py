"""How the controller decides, in numbers: every number has a default and says where it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from eerl_controller.records import ExecutionMode

POLICIES = ("eerl", "paper", "fixed", "governor")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, what was seen and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the controller may do and how much evidence it wants first.

    Sources: "Table 3" and "section" are of the paper; the rest is a stated principle.

    ``policy``
        ``eerl`` learns one model of time and power and decides by one rule over the whole run; ``paper`` searches and
        locks as the paper does; ``fixed`` holds given clocks; ``governor`` only measures.
    ``max_throughput_loss``
        Allowed loss as a fraction of governor throughput (Table 3: 2 %). 0 takes free savings only.
    ``idle_mhz``
        Clock of a waiting separate pool, MHz (Table 3: 345). A colocated job never waits in a pool of its own.
    ``warmup_updates``
        First updates never used as evidence (appendix E scores from update 2). Slower ones that follow are
        found by the controller itself.
    ``calibration_updates``
        Usable governor updates before the first trial (Table 3: 15).
    ``async_inflight_calibration_updates``
        The same for in-flight updates (Table 3: 45): their noise and its serial correlation must be known too.
    ``settle_updates``
        Updates left out after each change of clocks: what runs first under a new clock still carries the old
        one (field case C06).
    ``bracket_updates``
        Usable governor updates between two trials. Algorithm 1 runs a trial "between governor observations"
        without a number; with settling, one fresh observation on either side is the least that brackets.
    ``trial_updates``
        Usable updates of a trial (Table 3: 3).
    ``confirmation_updates``
        Fresh usable updates that confirm a setting (Table 3: 6).
    ``search_step_mhz``
        Nominal distance of search settings, MHz (Table 3: 90).
    ``async_first_step_mhz``, ``async_second_step_mhz``
        The same in the asynchronous modes, for the pool searched first and for the other (Table 3: 50, 100).
    ``start_fraction``
        The first trial's clocks, as a fraction of the clock the governor reaches. Section 6.1 starts "with both
        clocks reduced": one tenth is visible above noise, yet costs even work bound wholly by the clock no more
        than a third of an update over a trial of 3.
    ``max_trials``
        Trials and confirmations of one search together; with it every search ends.
    ``min_gain``
        A trial must promise at least this much more saving (fraction of governor energy): less is not visible
        in 3 updates.
    ``feedback_step_mhz``, ``feedback_large_step_mhz``, ``feedback_large_loss``
        Steps after locking, MHz: 45, or 90 above 4 % loss (Table 3).
    ``async_drained_feedback_step_mhz``
        The step after locking with drained updates, MHz, whatever the loss (Table 3: 50). In-flight updates have
        none: a clock that proves too low is raised by a step of its search.
    ``async_inflight_standard_error``
        The standard error of a comparison that decides the length of an in-flight block (section 6.3: 2 %).
    ``monitor_window``, ``monitor_every``
        Usable updates judged together and how often (section 5.2: 20, every 10).
    ``remeasure_updates``
        Usable governor updates of a re-measurement: as many as a confirmation asks of a setting.
    ``coverage_failures``
        That many of the last ``monitor_window`` usable updates outside the references' range mean
        re-measurement: half of them.
    ``reference_max_age_updates``
        Updates without a governor observation after which it is measured again: 7 of 500 cost 1.4 % of the
        saving, the price of knowing that there still is one.
    ``reference_window``
        Governor updates kept: four calibrations. Enough for a slope, recent enough to be true, and a bound on
        time and memory.
    ``give_up_updates``
        Updates in a row without usable evidence after which clocks go back to the governor.
    ``suspend_updates``
        Governor updates before the first retry; doubles with every suspension.
    ``fixed_generation_mhz``, ``fixed_training_mhz``
        Clocks of policy ``fixed``, MHz; None leaves that phase to the governor.
    ``min_mhz``, ``max_mhz``
        Limits for every clock asked for, MHz; None is the clock table's own end.
    """

    policy: str = "eerl"
    max_throughput_loss: float = 0.02
    idle_mhz: int | None = 345
    warmup_updates: int = 1
    calibration_updates: int = 15
    async_inflight_calibration_updates: int = 45
    settle_updates: int = 1
    bracket_updates: int = 1
    trial_updates: int = 3
    confirmation_updates: int = 6
    search_step_mhz: int = 90
    async_first_step_mhz: int = 50
    async_second_step_mhz: int = 100
    start_fraction: float = 0.9
    max_trials: int = 16
    min_gain: float = 0.0025
    feedback_step_mhz: int = 45
    feedback_large_step_mhz: int = 90
    feedback_large_loss: float = 0.04
    async_drained_feedback_step_mhz: int = 50
    async_inflight_standard_error: float = 0.02
    monitor_window: int = 20
    monitor_every: int = 10
    remeasure_updates: int = 6
    coverage_failures: int = 10
    reference_max_age_updates: int = 500
    reference_window: int = 60
    give_up_updates: int = 20
    suspend_updates: int = 20
    fixed_generation_mhz: int | None = None
    fixed_training_mhz: int | None = None
    min_mhz: int | None = None
    max_mhz: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise SettingsError(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        for name in ("max_throughput_loss", "min_gain", "feedback_large_loss"):
            self._number(name, low=0.0, high=1.0, below_high=True)
        self._number("start_fraction", low=0.1, high=1.0, below_high=True)
        self._number("async_inflight_standard_error", low=1e-4, high=1.0, below_high=True)
        for name in ("warmup_updates", "settle_updates", "bracket_updates"):
            self._whole(name, low=0)
        for name in (
            "calibration_updates",
            "trial_updates",
            "confirmation_updates",
            "max_trials",
            "search_step_mhz",
            "async_first_step_mhz",
            "async_second_step_mhz",
            "async_drained_feedback_step_mhz",
            "feedback_step_mhz",
            "feedback_large_step_mhz",
            "monitor_window",
            "monitor_every",
            "remeasure_updates",
            "coverage_failures",
            "reference_max_age_updates",
            "give_up_updates",
            "suspend_updates",
        ):
            self._whole(name, low=1)
        self._whole("calibration_updates", low=3)
        self._whole("async_inflight_calibration_updates", low=3)
        self._whole("reference_window", low=self.calibration_updates)
        for name in ("idle_mhz", "fixed_generation_mhz", "fixed_training_mhz", "min_mhz", "max_mhz"):
            if getattr(self, name) is not None:
                self._whole(name, low=1)
        if self.min_mhz is not None and self.max_mhz is not None and self.min_mhz > self.max_mhz:
            raise SettingsError(f"min_mhz {self.min_mhz} must not be above max_mhz {self.max_mhz}")

    def _number(self, name: str, *, low: float, high: float, below_high: bool) -> None:
        value = getattr(self, name)
        real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not real or value < low or value > high or (below_high and value == high):
            raise SettingsError(f"{name} must be at least {low:g} and below {high:g}, not {value!r}")

    def _whole(self, name: str, *, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise SettingsError(f"{name} must be a whole number of at least {low}, not {value!r}")

    def for_mode(self, mode: ExecutionMode) -> Settings:
        """The same settings with the numbers that Table 3 gives this mode in the place of the common ones."""
        if mode is ExecutionMode.ASYNC_DRAINED:
            step_mhz = self.async_drained_feedback_step_mhz
            return replace(self, feedback_step_mhz=step_mhz, feedback_large_step_mhz=step_mhz)
        if mode is ExecutionMode.ASYNC_INFLIGHT:
            updates = self.async_inflight_calibration_updates
            window = max(self.reference_window, updates)
            step_mhz = self.async_first_step_mhz
            return replace(
                self,
                calibration_updates=updates,
                reference_window=window,
                feedback_step_mhz=step_mhz,
                feedback_large_step_mhz=step_mhz,
                # A gain below half the error that blocks are made for would be noise.
                min_gain=max(self.min_gain, self.async_inflight_standard_error / 2.0),
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, ready for JSON (the ledger's ``controller`` event)."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that :meth:`to_dict` wrote; raises SettingsError for a name that is not a setting."""
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SettingsError(
                f"unknown settings {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        return cls(**values)
