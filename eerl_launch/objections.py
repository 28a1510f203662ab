"""What speaks against controlling the clocks of this run: each is told once, with its cure, and ends control.

Nodes without a clock to set, pools that nobody names, a mode that contradicts what is seen, markers that never come.
Measuring goes on whatever is found here.
"""

from __future__ import annotations

from eerl_launch.arrangement import Arrangement
from eerl_launch.modes import Mode
from eerl_launch.nodes import Nodes
from eerl_launch.policy import Policy
from eerl_launch.steering import Steering
from eerl_launch.telling import Voice
from eerl_launch.updates import Update, overlap_s

#: Generation and training at the same time for more than this share of an update: not colocated synchronous.
_OVERLAP_FRACTION = 0.02
#: Weights go out every few steps in some trainers, never this rarely.
_TRAININGS_WITHOUT_BORDER = 20
#: Drained: updates in a row in which generation began and never ended, before it is told.
_UPDATES_WITHOUT_ARRIVAL = 3


class Objections:
    """Looks at what is known of the run and switches control off where it cannot be right."""

    def __init__(
        self, policy: Policy, nodes: Nodes, arrangement: Arrangement, steering: Steering, voice: Voice
    ) -> None:
        self._policy = policy
        self._nodes = nodes
        self._arrangement = arrangement
        self._steering = steering
        self._voice = voice
        self._without_arrival = 0

    def to_arrangement(self) -> None:
        """Give up control when mode or pools contradict what is known."""
        arrangement = self._arrangement
        if not self._nodes.settled and arrangement.contradiction is None:
            return  # a pool may name GPUs of a node that has not joined yet
        if arrangement.problem_is_final and self._steering.off_reason is None:
            self._steering.off_reason = str(arrangement.problem)
            self._voice.say_once("arrangement", f"measuring only: {arrangement.problem}")
            self._voice.log("event", kind="control_off", text=self._steering.off_reason)

    def to_nodes(self) -> bool:
        """Whether no clock can be set on some node; once every node has joined or cannot."""
        if self._policy.policy == "governor":
            for node in self._nodes.by_name.values():
                if node.state == "not_measured":
                    self._voice.say_once(
                        f"node {node.name}", f"node {node.name} is not measured: {node.reason}"
                    )
            return False
        if self._steering.off_reason is not None:
            return True
        bad = self._nodes.without_control()
        if not bad:
            return False
        node = bad[0]
        reason = (
            node.reason or node.info.get("backend_reason") or f"backend {node.info.get('backend', 'none')}"
        )
        self._steering.off_reason = f"no clock control on {node.name}: {reason}"
        self._voice.say_once(
            "control",
            f"measuring only, clocks stay with the governor: no clock control on {node.name}"
            + (f" and {len(bad) - 1} other nodes" if len(bad) > 1 else "")
            + f" ({reason}); `eerl doctor` tells what is missing",
        )
        self._voice.log("event", kind="control_off", node=node.name, text=self._steering.off_reason)
        return True

    def to_pools(self) -> None:
        """An update has ended and pools are still not known: tell it once."""
        problem = self._arrangement.problem
        may_control = self._steering.off_reason is None and self._policy.policy != "governor"
        if problem is not None and may_control and self._nodes.settled:
            self._voice.say_once(
                "pools",
                f"measuring only for now: mode {self._arrangement.mode.value} controls each pool on its own, "
                f"and {problem}",
            )

    def to_update(self, update: Update) -> None:
        """An update has closed: see whether its phases fit the mode."""
        self._refuse_overlap(update)
        self._look_for_ends(update)

    def _refuse_overlap(self, update: Update) -> None:
        """Generation and training at once on one pool, or in turns that are none: not the mode it should be."""
        if self._arrangement.mode.asynchronous or self._steering.off_reason is not None:
            return
        both_s = overlap_s(update, "generation", "training")
        length_s = (update.end_s or 0.0) - update.begin_s
        if both_s > max(1.0, _OVERLAP_FRACTION * length_s):
            self._steering.off_reason = (
                f"generation and training overlap, which mode {self._arrangement.mode.value} cannot"
            )
            self._voice.say_once(
                "overlap",
                "generation and training overlap but the run is not marked asynchronous; measuring only "
                "(set `mode:` in the policy, or send it with the run marker)",
            )

    def _look_for_ends(self, update: Update) -> None:
        """Drained: a generation pool whose phases never end never arrives at the meeting; tell it once."""
        if self._arrangement.mode is not Mode.ASYNC_DRAINED:
            return
        generations = [o for o in update.occurrences if o.phase == "generation"]
        never = bool(generations) and not any(o.complete for o in generations)
        self._without_arrival = self._without_arrival + 1 if never else 0
        if self._without_arrival == _UPDATES_WITHOUT_ARRIVAL:
            self._voice.say_once(
                "ends",
                f"generation has begun but not ended in {self._without_arrival} updates, so it is not known when its "
                "pool arrives at the refit: mark its ends, too",
            )

    def look_for_borders(self, running: Update | None) -> None:
        """An asynchronous trainer that never marks its refits makes one endless update: tell it once."""
        if (
            self._arrangement.mode.asynchronous
            and running is not None
            and running.trainings >= _TRAININGS_WITHOUT_BORDER
        ):
            self._voice.say_once(
                "borders",
                f"{running.trainings} training phases and no refit has ended, so they are all one update and "
                f"nothing is controlled: mode {self._arrangement.mode.value} needs `refit` phases"
                + (" or pause and resume events" if self._arrangement.mode is Mode.ASYNC_INFLIGHT else ""),
            )
