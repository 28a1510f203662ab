"""How long the first update under other clocks must be to tell of them (field case C06).

Clocks are what was asked for milliseconds to 0.3 s later, and a plan that comes within the first second of an update
still rules it. Beside a long update that is nothing, so its time counts; a short one is left out. What requests of an
earlier plan carry along in flight is another matter.
"""

from __future__ import annotations

from eerl_controller.records import UpdateRecord

#: Seconds of an update that may still run under the clocks before.
SETTLING_S = 1.0
#: The share of an update that they may be: what clocks change is then told to a twentieth, far within its noise.
SETTLING_SHARE = 0.05


def is_long(elapsed_s: float | None) -> bool:
    """Whether the first update under other clocks is nearly all theirs."""
    return elapsed_s is not None and elapsed_s * SETTLING_SHARE >= SETTLING_S


def tells_at_once(record: UpdateRecord) -> bool:
    """Whether this update may be learnt from though clocks have just changed."""
    return record.plan_id is not None and is_long(record.elapsed_s)
