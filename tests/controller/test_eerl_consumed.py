"""What training worked on, where records count what was generated meanwhile; and how a batch's work stays known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from controller.worlds import DRAINED, INFLIGHT, training_bound, world

from eerl_controller import Controller, ExecutionMode, Settings
from eerl_controller.bayes.backlog import batches_of
from eerl_controller.bayes.look import Looks
from eerl_controller.bayes.pace_priors import TRAINING_WORK
from eerl_controller.bayes.pace_work import WorkDone
from eerl_controller.bayes.paces import Paces
from eerl_controller.bayes.pool_strategy import BayesPools
from eerl_controller.strategy import Evidence
from eerl_twin import Costs, Run, World, simulate
from eerl_twin.conditions import draw
from eerl_twin.world import Lengths


def masked(mode: ExecutionMode, age: int) -> World:
    """A world in which training decides, and a fifth of what it works on is masked at random."""
    lengths = Lengths(prompts=16, responses_per_prompt=4, masked_share=0.2, spread=0.7)
    return world(mode, lengths=lengths, costs=replace(Costs(), per_trained_s=1e-3), max_policy_age=age)


def lived(place: World, updates: int) -> tuple[BayesPools, Run]:
    """The strategy after a run in this world, and the run."""
    controller = Controller(Settings(), place.mode, place.grid)
    run = simulate(place, controller, updates, 1)
    strategy = controller._strategy
    assert isinstance(strategy, BayesPools)
    return strategy, run


@pytest.mark.parametrize("age", [1, 3])
def test_what_is_told_of_a_batch_is_so(age: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In flight, whatever the clocks: tokens consumed are known for most updates, and then to the token."""
    place, looks = masked(INFLIGHT, age), {}
    plain = Looks.of

    def look(self: Looks, evidence: Evidence) -> Any:
        found = looks[evidence.record.update] = plain(self, evidence)
        return found

    monkeypatch.setattr(Looks, "of", look)
    lived(place, 150)

    truth = draw(place, 150, 1).generated
    told = {n: look.counts["consumed"] for n, look in looks.items() if look and "consumed" in look.counts}
    assert len(told) > 0.7 * len(looks)
    assert all(tokens == pytest.approx(truth[update - 1], abs=2.0) for update, tokens in told.items())


@pytest.mark.parametrize("mode", [INFLIGHT, DRAINED])
def test_masked_tokens_are_no_noise(mode: ExecutionMode) -> None:
    """The valid tokens tell training's work to some 5 %, all that it consumed to well below 1: that is found out."""
    strategy, _ = lived(masked(mode, 2), 120)

    paces = strategy._learner.paces

    assert paces.work[1] == TRAINING_WORK[1]
    assert paces.noise[1] < 0.02


def test_without_masks_the_valid_tokens_do() -> None:
    """Where valid tokens are all there is, the noise is no larger for it."""
    strategy, _ = lived(training_bound(INFLIGHT), 120)

    assert strategy._learner.paces.noise[1] < 0.015


def test_what_is_not_told_stands_in_as_usual() -> None:
    """Without a count of what was consumed the valid tokens speak for it, as uncertain as their share varies."""
    done, work = WorkDone(), TRAINING_WORK[1]
    counts = [
        {"valid": 1000.0 * n, "consumed": 1250.0 * n * factor} for n, factor in [(1, 1.0), (2, 1.1), (3, 0.9)]
    ]
    done.begin({"valid": 1000.0})

    before = done.deviations(work, {"valid": 2000.0})
    done.know(counts)
    without, unsure = done.deviations(work, {"valid": 2000.0})
    told, sure = done.deviations(work, {"valid": 2000.0, "consumed": 3000.0})

    assert before[0][:2] == pytest.approx([np.log(2.0)] * 2, abs=1e-3)
    assert without[:2] == pytest.approx([np.log(2.0)] * 2, abs=1e-3)
    assert unsure > 0.05 > sure == 0.0
    assert told[1] == pytest.approx(np.log(2.0) + np.log(1.5 / 1.25), abs=1e-3)


def test_a_snapshot_keeps_which_tokens_training_follows() -> None:
    """What was found out about training's work comes back from JSON as it was."""
    strategy, _ = lived(masked(INFLIGHT, 2), 80)
    paces = strategy._learner.paces

    again = Paces(INFLIGHT)
    again.load(paces.to_dict())

    assert again.to_dict() == paces.to_dict()
    assert again.work == paces.work


def test_work_adds_up_from_the_begin_of_a_window() -> None:
    """Generation is late for a double batch that nothing else in the window tells of: it is known by what was ready
    when the window began. Otherwise a loss that was seen would be forgotten as the window moves on.
    """
    # Generation never idles; training waits in the sixth update, 30 s into it.
    seconds = [(50.0, 50.0)] * 5 + [(80.0, 50.0)]
    rows = ([1.0] * 6, [50.0] * 5 + [80.0], [(0.0, 0.0)] * 6, 2)

    known = batches_of(seconds, *rows, 20.0).generation_s
    unknown = batches_of(seconds, *rows).generation_s

    # By then the work of six batches was done: 20 s before the window, 280 s in it.
    assert known.sum() == pytest.approx(300.0)
    assert unknown.sum() == pytest.approx(330.0)


def test_a_full_queue_tells_a_batch_apart() -> None:
    """Where generation idles it is as far ahead as it may be, so what it works in an update is one later batch."""
    works = [60.0, 60.0, 120.0, 60.0, 60.0, 60.0]
    seconds = [(work, 150.0) for work in works]

    found = batches_of(seconds, [1.0] * 6, [150.0] * 6, [(0.0, 0.0)] * 6, 2).generation_s

    assert found[3:] == pytest.approx([60.0, 120.0, 60.0])
