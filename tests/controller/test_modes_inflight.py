"""Asynchronous control with in-flight updates: an experiment of blocks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from controller.worlds import INFLIGHT, ceilings_mhz, controller_in, is_on_lattice, live, stretches, world

from eerl_controller import Controller, PhaseRecord, PoolRecord, Reason, State, UpdateRecord
from eerl_controller.blocks import BLOCK_UPDATES

#: Updates of the steady job below: seconds, joules and what they make.
ELAPSED_S, ENERGY_J = 100.0, 20_000.0


class SteadyJob:
    """A job whose every update is known in advance: training has time to spare and saves energy when slowed.

    ``carried`` updates after each change of plan still consume requests of the plan before; they take
    ``carried_s`` longer.
    """

    def __init__(self, carried: int = 1, carried_s: float = 0.0) -> None:
        self.update = 0
        self.carried = carried
        self.carried_s = carried_s
        self._plans: list[int] = []

    def record(self, controller: Controller) -> UpdateRecord:
        """The next update under the plan wished for."""
        plan = controller.plan
        self.update += 1
        self._plans.append(plan.plan_id)
        oldest = self._plans[max(len(self._plans) - 1 - self.carried, 0)]
        # Work varies a little and known; time and energy follow it exactly.
        work = 1.0 + 0.05 * ((self.update * 7) % 5 - 2) / 2
        saved = 0.0 if plan.training_mhz is None else 0.15
        lost = 0.0 if plan.generation_mhz is None else 0.10
        late = self.carried_s if oldest != plan.plan_id else 0.0
        elapsed_s = ELAPSED_S * work * (1.0 + lost) + late
        energy_j = ENERGY_J * work * (1.0 - saved)
        return UpdateRecord(
            update=self.update,
            plan_id=plan.plan_id,
            elapsed_s=elapsed_s,
            energy_j=energy_j,
            phases={
                "generation": PhaseRecord(elapsed_s=0.95 * elapsed_s, energy_j=0.5 * energy_j),
                "training": PhaseRecord(elapsed_s=0.5 * elapsed_s, energy_j=0.4 * energy_j),
            },
            pools={
                "generation": PoolRecord(busy_s=0.95 * elapsed_s),
                "training": PoolRecord(busy_s=0.5 * elapsed_s),
            },
            generated_tokens=round(1e6 * work),
            longest_generated_tokens=4096,
            valid_tokens=round(1e6 * work),
            longest_consumed_tokens=4096,
            policy_age_max=float(self.carried),
            oldest_request_plan_id=oldest,
            generation_busy_fraction=0.95,
            training_busy_fraction=0.5,
        )


def play(controller: Controller, job: SteadyJob, updates: int) -> list[tuple[str, State]]:
    """That many updates; by update G for the governor or C for lowered clocks, and the state before it."""
    kinds = []
    for _ in range(updates):
        kinds.append(("G" if controller.plan.is_governor else "C", controller.state))
        controller.observe(job.record(controller))
    return kinds


def blocks(kinds: list[tuple[str, State]]) -> list[tuple[str, int]]:
    """Runs of G and C with their lengths."""
    found: list[tuple[str, int]] = []
    for kind, _ in kinds:
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + 1)
        else:
            found.append((kind, 1))
    return found


def test_calibration_takes_45_updates() -> None:
    """Table 3; the very first update is warm-up."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob()

    kinds = play(controller, job, 60)

    assert [kind for kind, _ in kinds].index("C") == 46


def test_every_candidate_block_lies_between_governor_blocks_of_its_length() -> None:
    """Section 6.3; each block is three updates here, after the one that still carries old requests."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob(carried=1)
    play(controller, job, 46)

    kinds = play(controller, job, 80)

    searching = blocks([kind for kind in kinds if kind[1] in (State.SEARCH, State.CONFIRMATION)])
    assert len(searching) >= 6
    assert all(length == 4 for _, length in searching), searching


def test_after_locking_one_governor_block_follows_every_two_candidate_blocks() -> None:
    """Table 3: G C C G C C; two times three updates and three, each with one left out."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob(carried=1)
    while controller.state is not State.LOCKED:
        controller.observe(job.record(controller))

    kinds = play(controller, job, 7 + 4 + 7 + 4 + 7)

    assert blocks(kinds) == [("C", 7), ("G", 4), ("C", 7), ("G", 4), ("C", 7)]
    assert all(state is State.LOCKED for _, state in kinds)


def test_updates_that_carry_older_requests_are_left_out() -> None:
    """They take half as long again here: were they counted, no candidate would pass."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob(carried=2, carried_s=50.0)

    play(controller, job, 200)

    assert controller.state is State.LOCKED
    assert controller.plan.reason in (Reason.CONFIRMED, Reason.GOVERNOR_BLOCK)
    assert controller.saving is not None


def test_without_that_knowledge_as_many_updates_are_left_out_as_requests_may_be_old() -> None:
    """``policy_age_max`` stands in for the plan of the oldest request."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob(carried=2, carried_s=50.0)

    for _ in range(200):
        controller.observe(replace(job.record(controller), oldest_request_plan_id=None))

    assert controller.state is State.LOCKED


def test_the_less_busy_pool_is_searched_first_and_then_the_other_with_it_held() -> None:
    """Training is half idle: its clock is lowered first, on 50 MHz; generation follows, on 100 MHz."""
    _, run, plans = live(world(INFLIGHT), 300, seed=2)
    ceilings = ceilings_mhz(run)

    tried = [plan for plan in plans if plan.reason is Reason.TRIAL]
    second = next(i for i, plan in enumerate(tried) if plan.generation_mhz is not None)

    assert all(plan.generation_mhz is None and plan.training_mhz is not None for plan in tried[:second])
    assert len({plan.training_mhz for plan in tried[second:]}) == 1
    assert all(is_on_lattice(plan.training_mhz or 0, ceilings[1], 50) for plan in tried)
    assert all(is_on_lattice(plan.generation_mhz or 0, ceilings[0], 100) for plan in tried[second:])


def test_there_is_no_idle_clock() -> None:
    """Table 3: generation pauses only for a refit."""
    _, _, plans = live(world(INFLIGHT), 200)

    assert all(plan.idle_mhz is None for plan in plans)


def test_a_lock_that_becomes_too_slow_is_raised_from_governor_blocks_alone() -> None:
    """From some update on lowered clocks cost 6 %: the blocks after locking find it and raise the clock."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob()
    while controller.state is not State.LOCKED or controller.plan.is_governor:
        controller.observe(job.record(controller))
    before = controller.plan.training_mhz
    assert before is not None

    for _ in range(60):
        record = job.record(controller)
        if not controller.plan.is_governor:
            record = replace(record, elapsed_s=1.06 * (record.elapsed_s or 0.0))
        controller.observe(record)
        if controller.plan.reason is Reason.SHORTFALL:
            break

    assert controller.state is State.LOCKED
    assert controller.plan.training_mhz is not None
    assert 30 <= controller.plan.training_mhz - before <= 70


def test_a_lock_that_saves_nothing_any_more_is_left() -> None:
    """From some update on lowered clocks cost energy: back to the governor, for now."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob()
    while controller.state is not State.LOCKED or controller.plan.is_governor:
        controller.observe(job.record(controller))

    for _ in range(60):
        record = job.record(controller)
        if not controller.plan.is_governor:
            record = replace(record, energy_j=1.25 * (record.energy_j or 0.0))
        controller.observe(record)
        if controller.state is State.SUSPENDED:
            break

    assert controller.state is State.SUSPENDED
    assert controller.plan.is_governor
    assert controller.plan.reason is Reason.NOTHING_PAYS


def test_a_confirmation_takes_one_trial_or_two() -> None:
    """Table 3, over several seeds of a calm world."""
    for seed in range(4):
        _, run, _ = live(world(INFLIGHT), 250, seed)
        trials = Counter(
            (plan.generation_mhz, plan.training_mhz)
            for plan, _ in stretches(run)
            if plan.reason is Reason.CONFIRMING
        )

        assert trials
        assert max(trials.values()) <= 2


def test_block_lengths_are_those_of_the_table() -> None:
    """3, 6 or 12."""
    assert BLOCK_UPDATES == (3, 6, 12)


def test_a_snapshot_in_the_middle_of_a_block_goes_on_alike() -> None:
    """Bit for bit, at any update."""
    controller, job = controller_in(world(INFLIGHT)), SteadyJob()
    twin_job = SteadyJob()
    copy = controller_in(world(INFLIGHT))

    for update in range(130):
        if update % 9 == 4:
            copy = Controller.restore(json.loads(json.dumps(copy.snapshot(), allow_nan=False)))
        one = controller.observe(job.record(controller))
        other = copy.observe(twin_job.record(copy))
        assert one == other

    assert controller.snapshot() == copy.snapshot()


def test_in_flight_control_saves_in_a_calm_world_without_breaking_the_limit() -> None:
    """Calibration, trials and a third of governor updates after locking included."""
    savings = []
    for seed in range(3):
        _, run, _ = live(world(INFLIGHT), 400, seed)
        totals = run.totals()
        assert totals is not None
        assert totals.throughput_change > -0.02
        savings.append(totals.energy_saving)

    assert sum(savings) / len(savings) > 0.08
