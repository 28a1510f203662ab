"""What kind of run this is: its execution mode, and which GPUs do what. Settled from policy, trainer and nodes.

The mode decides where updates end: it comes from the policy, else from the trainer's ``run`` event. Phases marked
before anybody said it follow an assumption, which the event may still correct until something rests on it: an update
that has closed (:mod:`eerl_launch.update_flow`), or a controller. What is heard later and differs is a contradiction:
one message, and measuring only.
"""

from __future__ import annotations

from collections.abc import Iterable

from eerl_launch.energy import Allocation
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.nodes import Node
from eerl_launch.policy import Policy
from eerl_launch.pools import Pools

_AUTO = "auto"


class Arrangement:
    """Mode and pools of a run."""

    def __init__(self, policy: Policy) -> None:
        self._policy_mode = Mode.named(policy.mode)
        self._told_mode: Mode | None = None
        self.mode = self._policy_mode or Mode.COLOCATED_SYNC
        #: Whether phases have been marked.
        self.begun = False
        #: What came about after which the mode stays what it is; None while it may still change.
        self.settled: str | None = None
        self.contradiction: str | None = None
        self.pools = Pools({"generation": policy.pools.generation, "training": policy.pools.training})

    @property
    def mode_source(self) -> str:
        """Who said what the mode is: ``policy``, ``trainer``, or ``assumed``."""
        if self._policy_mode is not None:
            return "policy"
        return "trainer" if self._told_mode is not None else "assumed"

    @property
    def assumes(self) -> bool:
        """Whether the mode is only assumed, and a ``run`` event may still correct it."""
        return self.settled is None and self.mode_source == "assumed"

    @property
    def mode_known(self) -> bool:
        """Whether anybody said what the mode is, or phases came before anybody did."""
        return self.begun or self.mode_source != "assumed"

    def begin(self) -> None:
        """Phases are marked: a mode that somebody said stays what it is."""
        self.begun = True
        if self.mode_source != "assumed":
            self.settle("its first phase")

    def settle(self, what: str) -> None:
        """After ``what``, the first time, the mode stays what it is."""
        self.settled = self.settled or what

    def tell_mode(self, marker: Marker) -> None:
        """The trainer's ``run`` event."""
        name = marker.fields.get("mode")
        if name is None or name == _AUTO:
            return
        told = Mode.named(name)
        if told is None:
            known = ", ".join(mode.value for mode in Mode)
            self.contradiction = f"the trainer names an unknown mode {name!r} (known are {known})"
        elif self._policy_mode is not None and told is not self._policy_mode:
            self.contradiction = (
                f"the trainer says its mode is {told.value}, the policy says {self._policy_mode.value}; "
                "set `mode: auto` or mend one of them"
            )
        elif self.settled is not None and told is not self.mode:
            self.contradiction = (
                f"the trainer said only after {self.settled} that its mode is {told.value}; send the run "
                "event first, or set `mode:` in the policy"
            )
        else:
            self._told_mode = self.mode = told
            if self.begun:
                self.begin()

    def tell_pool(self, marker: Marker) -> None:
        """The trainer's ``pool`` event."""
        self.pools.tell(marker.fields.get("role"), marker.fields.get("gpus"))

    def settle_pools(self, nodes: Iterable[Node], energy: Allocation) -> bool:
        """Work out the pools with the GPUs known now, and keep statistics by pool; whether pools changed."""
        inventory = {
            node.name: {int(gpu["index"]): str(gpu["uuid"]) for gpu in node.info.get("gpus", [])}
            for node in nodes
            if node.info.get("gpus")
        }
        changed = self.pools.settle(inventory)
        energy.group_by(self.pools.members.values())
        return changed

    @property
    def separate(self) -> bool:
        """Whether the run has separate pools and they are known."""
        return self.mode.separate and self.pools.problem is None

    @property
    def problem(self) -> str | None:
        """Why clocks cannot be controlled in this arrangement for now; None when they can."""
        if self.contradiction is not None:
            return self.contradiction
        return self.pools.problem if self.mode.separate else None

    @property
    def problem_is_final(self) -> bool:
        """Whether nothing that may still be heard can mend the problem."""
        return self.contradiction is not None or (self.mode.separate and self.pools.contradiction)

    def members(self, pool: str) -> frozenset[str] | None:
        """The GPUs of a pool; None means all of the job's."""
        return self.pools.members.get(pool) if self.separate else None
