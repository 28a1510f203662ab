"""Between the session and the controller: records in, plans out, and what must be said about both.

The controller is imported when the first update closes, not before: a job without updates does not pay for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eerl_launch import clock_wishes
from eerl_launch.arrangement import Arrangement
from eerl_launch.energy import Allocation
from eerl_launch.gpu_detail import GpuDetail
from eerl_launch.handover import Handover
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.nodes import Nodes
from eerl_launch.objections import Objections
from eerl_launch.occurrences import Occurrence
from eerl_launch.policy import Policy
from eerl_launch.record_builder import Built, RecordBuilder
from eerl_launch.steering import Steering
from eerl_launch.telling import Voice
from eerl_launch.update_lines import plan_fields, update_fields
from eerl_launch.updates import Edge, Update
from eerl_launch.warm_start import WarmStart

if TYPE_CHECKING:
    from eerl_controller import Controller
    from eerl_controller.records import UpdateRecord


class Pilot:
    """Owns the controller of a run."""

    def __init__(
        self,
        config: Mapping[str, Any],
        policy: Policy,
        nodes: Nodes,
        energy: Allocation,
        arrangement: Arrangement,
        steering: Steering,
        voice: Voice,
    ) -> None:
        self._config = config
        self._policy = policy
        self._nodes = nodes
        self._energy = energy
        self._arrangement = arrangement
        self._steering = steering
        self._voice = voice
        self.objections = Objections(policy, nodes, arrangement, steering, voice)
        self._builder = RecordBuilder(energy, steering.plans, steering.clocks, arrangement)
        self._controller: Controller | None = None
        self._detail = GpuDetail()
        self._warm_start = WarmStart(Path(config["run_folder"]), policy.warm_start)
        self._total_updates = policy.total_updates
        self._handover = Handover(steering, config["time_scale"])
        self._number = -1
        self._last_label: int | None = None
        self._updates_began = False
        self._held_in_update = False
        self._broken = False
        self.not_honoured: Callable[[], bool] = lambda: False

    @property
    def controller(self) -> Controller | None:
        """The controller, once there is one."""
        return self._controller

    @property
    def total_updates(self) -> int | None:
        """How many updates the run will have, as far as anybody said."""
        return self._total_updates

    # -- what the run is ------------------------------------------------------------------------------------

    def told(self, marker: Marker) -> None:
        """The trainer described its run, or a pool of it."""
        if marker.event == "pool":
            self._arrangement.tell_pool(marker)
            self.check_pools()
            return
        if self._policy.total_updates is None and "total_updates" in marker.numbers:
            self._total_updates = int(marker.numbers["total_updates"])
        self._warm_start.told(marker)
        self.objections.to_arrangement()
        if self._policy.policy == "fixed":
            self._ready_controller()

    def check_pools(self) -> None:
        """GPUs or pools have come: see whether pools are known and possible."""
        self._settle_pools()
        if self._policy.policy == "fixed":
            self._ready_controller()

    def _settle_pools(self) -> None:
        changed = self._arrangement.settle_pools(self._nodes.by_name.values(), self._energy)
        for role, members in self._arrangement.pools.members.items():
            if changed and self._arrangement.pools.policy.get(role):
                self._voice.log("pool", role=role, gpus=sorted(members), source="policy")
        self.objections.to_arrangement()

    def check_control(self) -> None:
        """Decide whether clocks can be controlled at all, once every node has joined or cannot."""
        self._settle_pools()
        if not self.objections.to_nodes() and self._policy.policy == "fixed":
            self._ready_controller()

    def _ready_controller(self) -> None:
        """Make the controller if it can be made; a first plan with clocks waits for a border."""
        if self._controller is not None or self._broken or not self._nodes.settled:
            return
        arrangement = self._arrangement
        if not arrangement.mode_known:
            _load_controller()  # beside the loop, so that it is there when the first phase begins
            return
        if arrangement.problem is not None and not arrangement.problem_is_final:
            return  # pools may still be told
        try:
            self._controller = self._make_controller()
        except Exception as error:
            self._give_up(error)
        if self._controller is None:
            return
        arrangement.settle("its clocks were planned")
        self._handover.first(self._controller.plan)

    def _give_up(self, error: Exception) -> None:
        """A fault of the controller's own: clocks go home, measuring goes on, the job does not notice."""
        self._broken, self._controller = True, None
        self._handover.forget()
        self._steering.off_reason = f"the controller failed: {error!r}"
        self._voice.log("event", kind="control_off", text=self._steering.off_reason)
        self._voice.say_once(
            "controller",
            f"the controller failed ({error!r}): clocks go back to the governor, measuring goes on; "
            "please report this with the run's ledger",
        )

    def _make_controller(self) -> Controller | None:
        """The controller, when there is a clock table."""
        clocks = self._nodes.common_clocks_mhz()
        if not clocks:
            return None
        from eerl_controller import ClockGrid, Controller, ExecutionMode, Settings

        settings = dict(self._policy.controller_settings())
        if self._steering.off_reason is not None:
            settings["policy"] = "governor"
        mode = ExecutionMode(self._arrangement.mode.value)
        grid = ClockGrid(clocks, clocks[-1])
        made = Settings(**settings)
        key = self._warm_start.key(self._arrangement, self._nodes.by_name.values())
        prior = self._warm_start.find(key) if made.policy == "eerl" else None
        self._voice.log(
            "controller",
            settings=made.to_dict(),
            mode=mode.value,
            mode_source=self._arrangement.mode_source,
            grid={"supported_mhz": list(grid.supported_mhz), "governor_mhz": grid.governor_mhz},
            seed=0,
            prior=prior,
            prior_run=self._warm_start.source,
        )
        controller = Controller(made, mode, grid, seed=0, prior=prior)
        if prior is not None:
            source = self._warm_start.source
            self._voice.say_once(
                "warm", f"starts from what {source} learnt, to be confirmed before it is trusted"
            )
        self._voice.log("plan", **plan_fields(controller, controller.plan))
        found = clock_wishes.remarks(self._policy, clocks, controller.plan)
        if found:
            self._voice.say_once("wishes", f"policy: {'; '.join(found)}")
        return controller

    def leave_posterior(self) -> None:
        """Leave what this run knows of its clocks to a later one."""
        key = self._warm_start.key(self._arrangement, self._nodes.by_name.values())
        try:
            self._warm_start.leave(self._controller, key)
        except Exception as error:
            self._voice.log("event", kind="warning", text=f"nothing is left for a warm start: {error!r}")

    # -- updates --------------------------------------------------------------------------------------------

    def follow(self, edge: Edge) -> None:
        """A phase has begun or ended: with it an update may, or its border approach."""
        if edge.opened is not None and not self._updates_began:
            self._updates_began = True
            _load_controller()
            if self._policy.policy == "fixed":
                self._ready_controller()
        self._hand_over(edge)

    def follow_again(self, edges: Iterable[Edge]) -> None:
        """The mode is another than assumed, and these are the edges of the run until now; no plan was made yet."""
        self._handover = Handover(self._steering, self._config["time_scale"])
        for edge in edges:
            self._hand_over(edge)

    def _hand_over(self, edge: Edge) -> None:
        if edge.approaches:
            self._handover.approach(edge.t_s)
        if edge.opened is not None:
            self._handover.border(edge.t_s, self._mode)

    @property
    def _mode(self) -> Mode:
        return self._arrangement.mode

    def before_first(self, occurrences: Sequence[Occurrence], until_s: float) -> list[dict[str, Any]]:
        """Ledger lines of phases that ran before the first update (a validation before step 1, say)."""
        if not occurrences:
            return []
        lines = self._builder.phase_events(
            occurrences, None, 0.0, until_s, all_nodes_measured=self._all_measured()
        )
        return self._detail.thin(lines)

    def leave_sums(self) -> None:
        """Write what the phases' lines left to sums, at the end of the run."""
        for event in self._detail.rest():
            self._voice.log(event.pop("ev"), **event)

    def _all_measured(self) -> bool:
        return all(node.state == "joined" for node in self._nodes.by_name.values())

    def _renumber(self, update: Update) -> int:
        """Numbers for the controller grow: a trainer that resumes at 0 or 301 is not a gap in time."""
        step = 1
        if update.label is not None and self._last_label is not None and update.label > self._last_label:
            step = update.label - self._last_label
        elif self._number < 0 and update.label is not None and update.label >= 0:
            step = update.label + 1
        self._last_label = update.label if update.label is not None else self._last_label
        self._number += step
        return self._number

    def record(self, update: Update, *, following_begin_s: float | None, now_s: float) -> None:
        """One update has closed: build its record, show it to the controller, take its plan."""
        self._warm_start.updated(update.numbers)
        self.objections.to_pools()
        self._ready_controller()
        flags = set()
        if self._steering.hold or self._held_in_update:
            flags.add("operator_hold")
        self._held_in_update = self._steering.hold
        if self.not_honoured():
            flags.add("not_honoured")
        self.objections.to_update(update)
        try:
            built = self._builder.build(
                update,
                self._renumber(update),
                all_nodes_measured=self._all_measured(),
                extra_flags=frozenset(flags),
                remaining_updates=self._remaining_updates(update),
                remaining_s=self._remaining_s(now_s),
            )
        except (
            ValueError
        ) as error:  # a RecordError: markers that contradict each other cost their update only
            text = f"update {update.label} cannot be accounted for: {error}"
            self._voice.log("event", kind="warning", text=text)
            self._voice.say_once("record", f"{text}; it is left out (more are only in the ledger)")
            return
        for event in self._detail.thin(built.phase_events):
            self._voice.log(event.pop("ev"), **event)
        self._log_update(update, built)
        if self._controller is not None:
            self._observe(built.record, following_begin_s, now_s)

    def _log_update(self, update: Update, built: Built) -> None:
        record = built.record
        controller = self._controller
        prediction = None
        try:
            prediction = controller.governor_prediction(record) if controller is not None else None
        except Exception as error:
            self._give_up(error)
        state = controller.state.name if controller is not None else None
        self._voice.log("update", **update_fields(update, built, state, prediction))

    def _observe(self, record: UpdateRecord, following_begin_s: float | None, now_s: float) -> None:
        from eerl_controller import RecordError

        controller = self._controller
        if controller is None:
            return
        before = (controller.plan.plan_id, controller.plan.reason, controller.state)
        try:
            plan = controller.observe(record)
        except RecordError as error:
            self._voice.log(
                "event", kind="warning", text=f"the controller passed over update {record.update}: {error}"
            )
            return
        except Exception as error:
            self._give_up(error)
            return
        if (plan.plan_id, plan.reason, controller.state) != before:
            self._voice.log("plan", **plan_fields(controller, plan))
        if plan.plan_id == before[0]:
            return
        self._handover.take(plan, self._mode, following_begin_s, now_s)

    def _remaining_updates(self, update: Update) -> int | None:
        if self._total_updates is None:
            return None
        return max(0, self._total_updates - update.index - 1)

    def _remaining_s(self, now_s: float) -> float | None:
        end_unix_s = self._config.get("end_time_unix_s")
        if end_unix_s is None:
            return None
        left_s = float(end_unix_s) - float(self._config["start"]["time_unix_s"]) - now_s
        return max(0.0, left_s)

    # -- operators ------------------------------------------------------------------------------------------

    def hold(self, on: bool, now_s: float) -> None:
        """Hand the clocks to the governor until resume, or take them back."""
        if on == self._steering.hold:
            return
        self._steering.hold = on
        self._held_in_update = True
        self._voice.log(
            "event", kind="operator_hold" if on else "operator_resume", text="asked by an operator"
        )
        if self._steering.plan is not None:
            self._steering.adopt(self._steering.plan, now_s)


def _load_controller() -> None:
    """Load numpy beside the loop, so that the first record does not wait for it."""
    threading.Thread(target=_import_controller, daemon=True).start()


def _import_controller() -> None:
    import eerl_controller  # noqa: F401
