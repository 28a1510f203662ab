"""The first updates of a run, which are slow for their work whatever the clocks: compilers, caches, an empty queue.

They are the governor's, and most of what there is of it. As a reference they would make lowered clocks look fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from eerl_controller.governor import STRAGGLER_FLOOR, STRAGGLER_SD
from eerl_controller.hindsight.entries import Entry
from eerl_controller.regression import robust_sd

#: Fewer governor updates do not tell which of them were slow.
LEAST_UPDATES = 5


def warmed(entries: Sequence[Entry]) -> list[Entry]:
    """The entries; those at the beginning that took longer by valid token than the next ones are no evidence."""
    leading = []
    for place, entry in enumerate(entries):
        if not entry.pair.is_governor:
            break
        valid = entry.counts.get("valid")
        if entry.evidence and valid:
            leading.append((place, math.log(entry.own_s / valid)))
    found = list(entries)
    if len(leading) < LEAST_UPDATES:
        return found
    costs = [cost for _, cost in leading]
    limit = median(costs) + max(STRAGGLER_SD * robust_sd(costs), STRAGGLER_FLOOR)
    for place, cost in leading:
        if cost <= limit:
            break
        found[place] = replace(found[place], evidence=False)
    return found
