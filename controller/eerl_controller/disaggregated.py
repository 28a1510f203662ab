"""Disaggregated synchronous control (paper, section 6.1): as colocated, and a waiting pool idles at a lower clock.

The idle clock is tried alone before the clocks of the phases, so that what it saves is known apart from what they
save; it is judged like them, on the whole update's time and energy, and confirmed with the pair that carries it.
"""

from __future__ import annotations

from eerl_controller.clocks import idle_clock
from eerl_controller.colocated import ColocatedSync


class DisaggregatedSync(ColocatedSync):
    """The controller of a synchronous job with separate pools: one round over both clocks and the idle clock."""

    @property
    def _idle_mhz(self) -> int | None:
        return idle_clock(self._grid, self._settings)
