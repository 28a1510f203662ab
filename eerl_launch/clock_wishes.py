"""Clocks that the policy wishes for and these GPUs do not have: what becomes of them, in words. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eerl_launch.policy import Policy

if TYPE_CHECKING:
    from eerl_controller.records import ClockPlan


def remarks(policy: Policy, supported_mhz: Sequence[int], plan: ClockPlan) -> list[str]:
    """Every fixed clock that became another one, and every limit that lies outside the table of the GPUs.

    ``supported_mhz``: ascending, what all GPUs of the job support and the site allows. ``plan``: the first one.
    """
    low, high = supported_mhz[0], supported_mhz[-1]
    found = []
    if policy.policy == "fixed":
        for role, asked in (
            ("generation", policy.fixed.generation_mhz),
            ("training", policy.fixed.training_mhz),
        ):
            given = getattr(plan, f"{role}_mhz")
            if asked is not None and given is not None and asked != given:
                found.append(f"fixed.{role}_mhz {asked} MHz became {given} MHz")
    for name, limit in (("min_mhz", policy.clocks.min_mhz), ("max_mhz", policy.clocks.max_mhz)):
        if limit is not None and not low <= limit <= high:
            found.append(f"clocks.{name} {limit} MHz is outside what can be set here ({low} to {high} MHz)")
    return found
