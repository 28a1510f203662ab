"""The trainer's side of a verl run: which update it is in, and what the update generated and consumed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from .. import mark
from .phases import Labels
from .tokens import Counted, masked, setting

_TRAINS = ("update_actor", "update_critic")
_MODES = {"sync": "colocated_sync", "colocate_async": "colocated_sync", "separate_async": "async_inflight"}
_MOST_VALIDATIONS = 8
_AGE = "training/off_policy/trajectory_staleness_worst/max"


class Steps:
    """Labels, batches and metrics of the process that runs the loop, in; markers, out."""

    def __init__(self, phases: Mapping[str, str]) -> None:
        self._phases = dict(phases)
        self._labels = Labels(phases)
        self._trainer: weakref.ref[Any] | None = None
        self.driving = False
        self._separate = False
        self._v1 = False
        self._kind = ""
        self._rejects = False
        self._seen: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        self._trained = False
        self._rollout: Counted | None = None
        self._arrived: Counted | None = None
        self._consumed: Counted | None = None
        self._rows = 0
        self._lengths: int | None = None

    @property
    def trainer(self) -> Any:
        """The trainer, None before there is one."""
        return None if self._trainer is None else self._trainer()

    def belongs_to(self, trainer: Any) -> None:
        """This process has made the trainer."""
        self._trainer = weakref.ref(trainer)
        self._v1 = hasattr(trainer, "trainer_mode")
        self._kind = trainer.trainer_mode if self._v1 else "sync"

    def tell(self, version: str, updates_left: int | None = None) -> None:
        """Say what kind of run it is: before agent loops, which are processes of their own, can generate."""
        mode = _MODES.get(self._kind)
        mark.run(framework="verl", mode=mode, total_updates=updates_left, framework_version=version)

    def begin(self, version: str) -> list[str]:
        """The first step begins: say how many there will be; why something about the run is unknown, if it is."""
        config = setting(self.trainer, "config")
        self._separate = self._kind == "separate_async"
        self._rejects = bool(setting(config, "algorithm", "rollout_correction", "rollout_rs"))
        if self._separate:
            for label in ("gen", "gen_max"):
                del self._phases[label]
            self._labels = Labels(self._phases)
        total = setting(self.trainer, "total_training_steps")
        self.tell(version, max(0, total - self._update() + 1) if isinstance(total, int) else None)
        self.driving = True
        lends = setting(config, "trainer", "v1", "separate_async", "hybrid_rollout", "enable_switch")
        if self._separate and lends and setting(config, "actor_rollout_ref", "hybrid_engine") is not False:
            return [
                "trainer.v1.separate_async.hybrid_rollout.enable_switch lends training's GPUs to generation, which "
                "then runs under training's clock; switch it off for pools that eerl can tell apart"
            ]
        return []

    def _update(self) -> int:
        """The trainer's own number of the update it is in."""
        return int(self.trainer.global_steps)

    # -- labels ---------------------------------------------------------------------------------------------

    def start(self, label: str) -> None:
        """A label's timer has started."""
        if label == "step" and self._trained:  # its metrics never came
            self._clear()
        self._labels.begin(label, self._update())
        if label == "update_weights" and self._separate:
            mark.pause(self._update())

    def stop(self, label: str) -> None:
        """A label's timer has stopped."""
        if label == "update_weights" and self._separate:
            mark.resume(self._update())
        counts: dict[str, Any] = {}
        if label in ("gen", "gen_max") and self._rollout is not None:
            counts = self._rollout.generated()
            self._arrived = self._rollout if self._arrived is None else self._arrived + self._rollout
            self._rollout = None
        self._labels.end(label, **counts)
        self._trained = self._trained or label in _TRAINS

    # -- counts ---------------------------------------------------------------------------------------------

    def generated(self, response_mask: Any) -> None:
        """A rollout returned; one that validates counts for nothing."""
        if self._labels.is_open("generation"):
            counts = masked(response_mask)
            self._rollout = counts if self._rollout is None else self._rollout + counts

    def arrived(self, tags: Mapping[str, Mapping[str, Any]]) -> None:
        """The replay buffer's responses, by key, with their lengths; each counts when it is first seen."""
        new = [
            tag["response_len"]
            for key, tag in tags.items()
            if key not in self._seen and "response_len" in tag
        ]
        self._seen = set(tags)
        if new and not self._separate:
            counts = Counted.of(new)
            self._arrived = counts if self._arrived is None else self._arrived + counts

    def consumed(self, batch: Mapping[str, Any]) -> None:
        """The batch that an update's metrics are computed from, which is what training had."""
        self._consumed = masked(batch["response_mask"])
        self._rows = len(batch["response_mask"])
        if "response_length" in batch:
            self._lengths = sum(map(int, batch["response_length"].tolist()))
        elif "attention_mask" in batch:
            width = batch["responses"].shape[-1]
            self._lengths = masked(batch["attention_mask"][:, -width:]).tokens
        else:
            self._lengths = None

    def _all_generated(self) -> Counted | None:
        """What the update generated; None when what else is in the responses cannot be told from it.

        Lengths hold an environment's words too, the mask only what was not rejected after generation; so lengths
        count when both are the same, and the mask when nothing was rejected and everything consumed.
        """
        if self._arrived is not None and not self._v1:
            return self._arrived  # by the agent loops' own masks
        if self._consumed is None:
            return None
        if self._lengths == self._consumed.tokens:
            return self._consumed if self._arrived is None else self._arrived
        whole_batch = self._arrived is None or self._arrived.responses == self._rows
        return self._consumed if whole_batch and not self._rejects else None

    def log(self, metrics: Mapping[str, Any]) -> str | None:
        """Metrics were logged; why a count of this update is unknown, if it is."""
        core = [
            (name, metrics[name]) for name in metrics if name.startswith("val-core/") and "/mean@" in name
        ]
        for name, value in core[:_MOST_VALIDATIONS]:
            mark.metric(name, value, self._update())
        if not self._trained:
            return None
        reason = None
        fields: dict[str, Any] = {
            "reward": metrics.get("critic/rewards/mean"),
            "policy_age": metrics.get(_AGE),
        }
        if self._consumed is not None:
            fields["valid_tokens"] = self._consumed.tokens
            fields["longest_consumed_tokens"] = self._consumed.longest
            fields["responses"] = self._consumed.responses
            mark.response_lengths(self._consumed.all_lengths, self._update())
        if not self._separate:
            everything = self._all_generated()
            if everything is not None:
                fields.update(everything.generated())
            else:
                reason = (
                    "responses hold an environment's words, and some were rejected or filtered out, so generated "
                    "tokens are unknown"
                )
        mark.update(self._update(), **fields)
        self._clear()
        return reason
