"""Which of the execution modes an OpenRLHF run is, by its command line."""

from __future__ import annotations

from typing import Any

IN_FLIGHT = "async_inflight"


def mode(args: Any) -> str:
    """Execution mode by the arguments of the command line."""
    if args.train.async_enable:
        return IN_FLIGHT if getattr(args.train, "partial_rollout_enable", False) else "async_drained"
    return "colocated_sync" if args.train.colocate_all else "disaggregated_sync"
