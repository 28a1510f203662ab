"""More phases than two (PPO): a critic and a reward model belong to a pool and are measured with it.

The critic runs under the training clock, like log-probabilities. A reward model keeps the clock in force: with
separate pools that of the pool whose GPUs it uses. It is part of the rest, so the whole-update judgement holds it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller.worlds import CALM, DISAGGREGATED, DRAINED, INFLIGHT, SEPARATE, live, world

from eerl_controller import ExecutionMode, GovernorModel, State
from eerl_controller.clocks import Pair
from eerl_controller.comparison import Comparison, compare
from eerl_controller.work import observe_work
from eerl_twin import Costs, FixedPlan, World, simulate

PPO = Costs(logprob_share=0.2, critic_share=0.3, reward_s=12.0)


def ppo(mode: ExecutionMode) -> World:
    """A world whose training pool also trains a critic, with a long reward phase and hardly any noise."""
    return world(mode, costs=PPO, noise=replace(CALM, level_sd=0.0005, phase_sd=0.0005, power_sd=0.0005))


def judged(mode: ExecutionMode, generation_mhz: int | None, training_mhz: int | None) -> Comparison:
    """Fixed clocks against the governor, each on 30 updates of the same work."""
    governed = simulate(ppo(mode), FixedPlan(), 34, 1).records[4:]
    lowered = simulate(ppo(mode), FixedPlan(generation_mhz, training_mhz), 34, 1).records[4:]
    model = GovernorModel.fit(governed, mode)
    assert model is not None
    word = compare(model, [observe_work(item) for item in lowered], Pair(generation_mhz, training_mhz))
    assert word is not None
    return word


def test_the_critic_answers_to_the_training_clock() -> None:
    """Its added time is training's; without it training alone would show half of it."""
    lowered = judged(DISAGGREGATED, None, 1200)

    assert lowered.added_time.training > 0.05
    assert abs(lowered.added_time.generation) < 0.005
    assert lowered.added_energy.training < 0.0
    governed = simulate(ppo(DISAGGREGATED), FixedPlan(), 8, 1).records[-1]
    slow = simulate(ppo(DISAGGREGATED), FixedPlan(None, 1200), 8, 1).records[-1]
    ratio = (slow.phases["critic"].elapsed_s or 0.0) / (governed.phases["critic"].elapsed_s or 1.0)
    assert ratio == pytest.approx(
        (slow.phases["training"].elapsed_s or 0.0) / (governed.phases["training"].elapsed_s or 1.0)
    )


def test_the_critic_does_not_answer_to_the_generation_clock() -> None:
    """Lowering generation leaves the training pool's phases as they are."""
    lowered = judged(DISAGGREGATED, 1200, None)

    assert lowered.added_time.generation > 0.02
    assert abs(lowered.added_time.training) < 0.005


def test_the_reward_model_is_part_of_the_rest() -> None:
    """Its time is there and unchanged: neither clock answers for it."""
    lowered = judged(DISAGGREGATED, 1500, 1500)

    assert abs(lowered.added_time.rest) < 0.01
    model = GovernorModel.fit(simulate(ppo(DISAGGREGATED), FixedPlan(), 30, 1).records[4:], DISAGGREGATED)
    assert model is not None
    assert model.time.rest >= PPO.reward_s


def test_with_drained_updates_the_critic_is_part_of_trainings_arrival() -> None:
    """The measured slowdown of the training pool is the critic's too."""
    lowered = judged(DRAINED, None, 1200)

    assert lowered.slowdowns[1] is not None
    assert 1.1 < lowered.slowdowns[1] < 1.65
    assert abs(lowered.added_time.total) < 0.02, "generation takes longer anyway"


@pytest.mark.parametrize("mode", SEPARATE)
def test_ppo_is_controlled_like_any_other_job(mode: ExecutionMode) -> None:
    """Locked, saving, within the limit."""
    controller, run, _ = live(ppo(mode), 300)

    totals = run.totals()
    assert totals is not None
    assert controller.state is State.LOCKED
    assert totals.energy_saving > (0.01 if mode is INFLIGHT else 0.05)
    assert totals.throughput_change > -0.02
