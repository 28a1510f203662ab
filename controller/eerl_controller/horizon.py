"""Whether enough of the job is left for what a trial can teach."""

from __future__ import annotations

from eerl_controller.records import UpdateRecord


def remaining_updates(record: UpdateRecord, typical_s: float) -> float | None:
    """Updates left: the trainer's own count, the time limit, or the smaller of both; None when neither is known."""
    known: list[float] = []
    if record.remaining_updates is not None:
        known.append(float(record.remaining_updates))
    if record.remaining_s is not None and typical_s > 0.0:
        known.append(record.remaining_s / typical_s)
    return min(known) if known else None


def has_room(record: UpdateRecord, typical_s: float, cost_updates: int) -> bool:
    """Whether a new trial may begin.

    What is learnt must be used at least as long as learning it took: twice the ``cost_updates`` of a trial with
    its governor updates, its confirmation and their settling must fit into what is left.
    """
    left = remaining_updates(record, typical_s)
    return left is None or left >= 2 * cost_updates
