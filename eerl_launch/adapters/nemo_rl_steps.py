"""The driver's side of a NeMo RL run: which update it is in, and what the update generated and consumed."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from .. import mark
from .nemo_rl_run import Run
from .phases import Labels
from .tokens import Counted, masked, whole

_STEP = "total_step_time"
#: A critic that warms up trains alone.
_TRAINS = ("policy_training", "value_training")
#: Relative error of a mean that was taken in float32, as the framework's are.
_FLOAT32 = 2.0**-23


class Steps:
    """Labels and metrics of one driver process, in; markers, out."""

    def __init__(self, phases: Mapping[str, str], prepares: frozenset[str]) -> None:
        #: Whether this process runs the loop; timers of worker processes mean nothing.
        self.driving = False
        #: Whether responses live through a change of weights, which then pauses generation.
        self.in_flight = False
        self._phases, self._prepares = phases, prepares
        self._labels = Labels(phases, prepares)
        self._run: Run | None = None
        self._update = 1
        self._in_step = False
        self._clear()

    def _clear(self) -> None:
        self._trained = False
        self._rounds = 0
        self._round: Counted | None = None
        self._generated: Counted | None = Counted()
        self._consumed: Counted | None = None
        self._batches: list[weakref.ref[Any]] = []

    def begin(self, run: Run) -> None:
        """The run is set up; updates are numbered as it numbers them."""
        self._run = run
        self._update = run.first
        self.in_flight = run.mode == "async_inflight"
        if run.waits_generate:
            self._labels = Labels({**self._phases, "exposed_generation": "generation"}, self._prepares)

    # -- labels ---------------------------------------------------------------------------------------------

    def start(self, label: str) -> None:
        """A label's timer has started."""
        if label == _STEP:
            if self._trained:  # its metrics never came
                self._close(self._update + 1)
            self._in_step = True
        if label == "generation":
            self._round = None
            self._rounds += 1
        self._labels.begin(label, self._update)
        if label == "weight_sync" and self.in_flight:
            mark.pause(self._update)

    def stop(self, label: str) -> None:
        """A label's timer has stopped."""
        if label == "weight_sync" and self.in_flight:
            mark.resume(self._update)
        counts: dict[str, Any] = {}
        if label == "generation":
            if self._round is None:
                self._generated = None
            else:
                counts = self._round.generated()
                if self._generated is not None:
                    self._generated = self._generated + self._round
        self._labels.end(label, **counts)
        if label in _TRAINS:
            self._trained = True
        elif label == _STEP:
            self._in_step = False
            self._labels.settle()

    # -- counts ---------------------------------------------------------------------------------------------

    def generated(self, counts: Counted | None) -> None:
        """A rollout of this process is over; one that validates counts for nothing."""
        if counts is not None and self._labels.is_open("generation"):
            self._round = counts if self._round is None else self._round + counts

    def trains(self, data: Any) -> None:
        """The policy trains on ``data``; the same batch again, in another epoch, is not consumed again."""
        if any(known() is data for known in self._batches):
            return
        self._batches.append(weakref.ref(data))
        # The first token is nobody's prediction, so the loss never sees it.
        counts = masked(data["token_mask"][:, 1:], data["sample_mask"])
        self._consumed = counts if self._consumed is None else self._consumed + counts

    def log(self, metrics: dict[str, Any], step: int, prefix: str) -> str | None:
        """Metrics were logged; why a count of this update is unknown, if it is."""
        if prefix == "validation" and isinstance(metrics.get("accuracy"), (int, float)):
            mark.metric("validation_accuracy", metrics["accuracy"], step)
        if prefix != "train":
            return None
        if self._in_step:
            if self._round is None and self._labels.is_open("generation"):
                self._round = self._from_means(metrics)
            return None
        return self._update_over(metrics, step) if self._trained else None

    def _from_means(self, metrics: dict[str, Any]) -> Counted | None:
        """A round's counts where the driver gets metrics only: the mean times the responses, if that is whole."""
        responses = self._run.round_responses if self._run is not None else None
        mean, longest = metrics.get("mean_gen_tokens_per_sample"), metrics.get("max_gen_tokens_per_sample")
        if responses is None or mean is None or longest is None:
            return None
        total = float(mean) * responses
        tokens = whole(total, total * _FLOAT32)
        return None if tokens is None else Counted(tokens, int(longest), responses)

    def _update_over(self, metrics: dict[str, Any], step: int) -> str | None:
        reason = None
        fields: dict[str, Any] = {
            "reward": metrics.get("reward"),
            "policy_age": metrics.get("avg_trajectory_age"),
        }
        consumed, asynchronous = self._consumed, self._run is None or self._run.asynchronous
        valid = consumed.tokens if consumed is not None else self._valid_of(metrics)
        if valid is None:
            reason = "valid tokens of several optimizer steps are logged as a mean only, so they are unknown"
        if consumed is not None:
            fields["longest_consumed_tokens"] = consumed.longest
            fields["responses"] = consumed.responses
            mark.response_lengths(consumed.all_lengths, self._update)
        if not asynchronous and self._rounds and self._generated is not None:
            fields.update(self._generated.generated())
        elif not asynchronous and self._rounds:
            reason = "its rollouts do not tell how many tokens they generated, so they are unknown"
        mark.update(self._update, valid_tokens=valid, **fields)
        self._close(step + 1)
        return reason

    def _valid_of(self, metrics: dict[str, Any]) -> int | None:
        """Valid tokens from the metrics: a mean over optimizer steps, so only of a single one."""
        told = metrics.get("global_valid_toks")
        single = self._run is None or self._run.optimizer_steps == 1
        return whole(float(told), 0.01) if told is not None and single else None

    def _close(self, following: int) -> None:
        self._update = following
        self._clear()
