"""The running estimate is worked out beside the session's loop, and shown when it is there."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from eerl_controller.saving import Estimate
from eerl_launch.running_estimate import RunningEstimate

SAVING = Estimate(0.07, -0.01, 40)


@dataclass
class SlowSaving:
    """Answers when it is let to."""

    may_answer: threading.Event = field(default_factory=threading.Event)
    answer: Estimate | None = SAVING
    learnt: int = 0

    def frozen(self) -> SlowSaving:
        """Itself: nothing here changes."""
        return self

    @property
    def estimate(self) -> Estimate | None:
        """What the loop must not wait for."""
        assert self.may_answer.wait(30)
        if self.answer is None:
            raise ArithmeticError("singular")
        return self.answer

    def learn_from(self, other: SlowSaving) -> None:
        """Count answers that were handed back."""
        self.learnt += 1


@dataclass
class HasSaving:
    """As much of a controller as is asked."""

    running_saving: SlowSaving


def asked_until_known(estimate: RunningEstimate, controller: Any) -> Estimate | None:
    """Ask as often as it takes for the thread to be done."""
    for _ in range(1000):
        found = estimate.latest(controller)
        if controller.running_saving.learnt:
            return found
    raise AssertionError("never answered")


def test_no_answer_is_waited_for() -> None:
    """While the reckoning is under way nothing is shown, and one thread is enough; then its answer is."""
    saving = SlowSaving()
    estimate = RunningEstimate(patience_s=0.001)
    threads = threading.active_count()

    early = [estimate.latest(HasSaving(saving)) for _ in range(5)]  # type: ignore[arg-type]
    under_way = threading.active_count() - threads
    saving.may_answer.set()
    late = asked_until_known(RunningEstimate(), HasSaving(saving))

    assert early == [None] * 5
    assert under_way == 1
    assert late == saving.answer


def test_a_reckoning_that_fails_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """A failure of ours leaves no line in the job's output and no number on the screen."""
    saving = SlowSaving(answer=None)
    saving.may_answer.set()

    found = asked_until_known(RunningEstimate(), HasSaving(saving))

    assert found is None
    assert capfd.readouterr() == ("", "")


def test_a_frozen_copy_answers_for_its_own_moment() -> None:
    """What the controller learns later does not change the copy, and the copy's answer saves the work."""
    from eerl_controller import Controller, ExecutionMode, Settings
    from eerl_twin import population, simulate

    world = population(3, ExecutionMode.COLOCATED_SYNC)
    controller = Controller(Settings(policy="paper"), world.mode, world.grid)
    simulate(world, controller, updates=80, seed=3)
    copy = controller.running_saving.frozen()

    before = copy.estimate
    controller.running_saving.learn_from(copy)

    assert before is not None
    assert controller.saving == before
