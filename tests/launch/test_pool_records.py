"""Records of separate pools: every GPU in one phase at a time, waits apart, plans of old requests (R08, E12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.arrangement import Arrangement
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import Allocation, NodeEnergy
from eerl_launch.history import History
from eerl_launch.markers import Marker
from eerl_launch.modes import Mode
from eerl_launch.nodes import Node
from eerl_launch.occurrences import Occurrence
from eerl_launch.policy import Policy
from eerl_launch.record_builder import Built, RecordBuilder
from eerl_launch.updates import Update

PERIOD_S = 0.2
GENERATION, TRAINING, OTHER = ("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"), ("GPU-4",)
WATTS = {"GPU-0": 100.0, "GPU-1": 100.0, "GPU-2": 300.0, "GPU-3": 300.0, "GPU-4": 50.0}
MHZ = {"GPU-0": 1500, "GPU-1": 1500, "GPU-2": 1200, "GPU-3": 1200, "GPU-4": 1980}


def arrangement(mode: Mode, known: bool = True) -> Arrangement:
    """GPUs 0 and 1 generate, 2 and 3 train, 4 does something else; all on one node."""
    result = Arrangement(Policy(mode=mode.value))
    if known:
        for role, gpus in (("generation", GENERATION), ("training", TRAINING)):
            result.tell_pool(Marker("pool", 0.0, "1", fields={"role": role, "gpus": list(gpus)}))
    return result


def allocation(setting: Arrangement, length_s: float = 30.0) -> Allocation:
    """Every GPU draws its own watts at its own clock, busy all the time."""
    node = NodeEnergy("n", list(WATTS))
    info = {"gpus": [{"uuid": uuid, "index": index} for index, uuid in enumerate(WATTS)]}
    energy = Allocation({"n": node})
    setting.settle_pools([Node("n", state="joined", info=info)], energy)
    for i in range(round(length_s / PERIOD_S) + 1):
        t_s = i * PERIOD_S
        node.add(
            t_s,
            [
                GpuSample(round(t_s * 1e9), round(1000 * watts * t_s), MHZ[uuid], None, 90, 0)
                for uuid, watts in WATTS.items()
            ],
        )
    return energy


def history(*values: tuple[float, int | None]) -> History:
    result = History()
    for t_s, value in values:
        result.put(t_s, value)
    return result


def occurrence(
    phase: str, begin_s: float, end_s: float, complete: bool = True, **counts: float
) -> Occurrence:
    return Occurrence(phase, 3, begin_s, end_s, complete, {"1"}, set(), counts)


def update(mode: Mode, phases: Iterable[Occurrence], **numbers: float) -> Update:
    """An update from 10 to 20 s."""
    return Update(0, 3, 10.0, 20.0, list(phases), dict(numbers), True, asynchronous=mode.asynchronous)


def builder(mode: Mode, known: bool = True, plans: History | None = None) -> RecordBuilder:
    setting = arrangement(mode, known)
    clocks = {"generation": history((0.0, 1500), (16.0, 345)), "training": history((0.0, 1200))}
    return RecordBuilder(allocation(setting), plans or history((0.0, 4)), clocks, setting)


def build(mode: Mode, *phases: Occurrence, known: bool = True, **numbers: float) -> Built:
    return builder(mode, known).build(
        update(mode, phases, **numbers),
        7,
        all_nodes_measured=True,
        extra_flags=frozenset(),
        remaining_updates=None,
        remaining_s=None,
    )


def phase_joules(built: Built) -> dict[str, float | None]:
    return {name: phase.energy_j for name, phase in built.record.phases.items()}


def test_turns_have_all_gpus() -> None:
    """Disaggregated: a phase's energy is that of all GPUs while it runs, its clock that of its own pool."""
    built = build(
        Mode.DISAGGREGATED_SYNC,
        occurrence("generation", 10.0, 14.0),
        occurrence("training", 14.0, 18.0),
        occurrence("refit", 18.0, 19.0),
    )

    record = built.record
    assert phase_joules(built) == pytest.approx({"generation": 3400.0, "training": 3400.0, "refit": 850.0})
    pools = record.pools
    assert (pools["generation"].requested_mhz, pools["training"].requested_mhz) == (1500, 1200)
    assert (pools["generation"].achieved_mhz, pools["training"].achieved_mhz) == (1500.0, 1200.0)
    assert (pools["generation"].energy_j, pools["training"].energy_j) == pytest.approx((2000.0, 6000.0))
    assert (pools["generation"].busy_s, pools["generation"].wait_s) == pytest.approx((4.0, 5.0))
    assert record.generation_busy_fraction is None and record.generation_arrival_s is None
    assert built.waits["training"] == pytest.approx({"wait_s": 5.0, "energy_j": 3000.0})
    assert built.unattributed == pytest.approx({"elapsed_s": 1.0, "energy_j": 850.0})


@pytest.mark.parametrize(
    ("validation", "alone_s"),
    [((14.0, 17.0), 0.0), ((14.0, 18.5), 0.5), ((10.0, 10.8), 0.8), ((18.0, 19.0), 1.0)],
)
def test_only_what_validation_adds_to_the_update_is_taken_off(
    validation: tuple[float, float], alone_s: float
) -> None:
    """Validation on the generation pool while training runs adds nothing: the controller gets what it ran alone."""
    built = build(
        Mode.ASYNC_DRAINED,
        occurrence("generation", 10.8, 14.0),
        occurrence("training", 10.8, 18.0),
        occurrence("validation", *validation),
        occurrence("refit", 19.0, 20.0),
    )

    found = built.record.phases["validation"]
    line = next(event for event in built.phase_events if event["phase"] == "validation")
    assert found.elapsed_s == pytest.approx(alone_s)
    assert found.energy_j == pytest.approx(200.0 * alone_s)
    assert line["elapsed_s"] == pytest.approx(validation[1] - validation[0]), "the report has all of it"
    assert "validation" in built.record.flags
    assert built.record.generation_arrival_s is None, "when the pool was done says nothing of its own work"


def test_checkpoint_and_validation_at_the_same_time_are_taken_off_once() -> None:
    """Each on its own pool, nothing else running: the update got longer by their union, not by their sum."""
    built = build(
        Mode.ASYNC_DRAINED,
        occurrence("generation", 10.0, 14.0),
        occurrence("training", 10.0, 14.0),
        occurrence("validation", 14.0, 17.0),
        occurrence("checkpoint", 15.0, 19.0),
        occurrence("refit", 19.0, 20.0),
    )

    visits_s = [built.record.phases[name].elapsed_s or 0.0 for name in ("validation", "checkpoint")]
    assert sum(visits_s) == pytest.approx(5.0)


def test_meeting_at_the_refit() -> None:
    """Drained: phases overlap, each has its own pool's energy; arrivals and busy shares are there."""
    built = build(
        Mode.ASYNC_DRAINED,
        occurrence("generation", 10.0, 14.0, generated_tokens=100),
        occurrence("logprob", 10.0, 11.0),
        occurrence("training", 11.0, 18.0),
        occurrence("reward", 14.0, 15.0),
        occurrence("refit", 18.0, 20.0),
        policy_age=1,
    )

    record = built.record
    assert phase_joules(built) == pytest.approx(
        # Reward began in training and took its time; it has what is not the generation pool's.
        {"generation": 800.0, "logprob": 600.0, "training": 3600.0, "reward": 650.0, "refit": 1700.0}
    )
    assert (record.generation_arrival_s, record.training_arrival_s) == (4.0, 8.0)
    assert (record.generation_busy_fraction, record.training_busy_fraction) == pytest.approx((0.4, 0.7))
    assert (record.pools["generation"].wait_s, record.pools["training"].wait_s) == pytest.approx((4.0, 1.0))
    assert record.energy_j == pytest.approx(8500.0)
    known = sum(joules or 0.0 for joules in phase_joules(built).values())
    assert built.unattributed["energy_j"] == pytest.approx(8500.0 - known)
    assert built.unattributed["elapsed_s"] == pytest.approx(0.0)
    lines = {event["phase"]: event for event in built.phase_events}
    assert set(lines["generation"]["gpu_energy_j"]) == set(GENERATION)
    assert lines["generation"]["pool"] == "generation" and lines["refit"]["pool"] is None
    assert (lines["generation"]["achieved_mhz"], lines["training"]["achieved_mhz"]) == (1500.0, 1200.0)


def test_pool_that_never_arrives() -> None:
    """A pool whose phase has no end, or that did nothing, has no arrival; the other's is still there."""
    built = build(
        Mode.ASYNC_DRAINED,
        occurrence("generation", 10.0, 20.0, complete=False),
        occurrence("training", 10.0, 18.0),
    )

    assert (built.record.generation_arrival_s, built.record.training_arrival_s) == (None, 8.0)
    assert build(Mode.ASYNC_DRAINED, occurrence("training", 10.0, 18.0)).record.generation_arrival_s is None


def test_pause_is_the_refit_and_cuts_generation() -> None:
    """In flight: generation that goes on across a pause does not run in it; nothing is booked twice."""
    built = build(
        Mode.ASYNC_INFLIGHT,
        occurrence("generation", 5.0, 20.0, complete=False),
        occurrence("generation", 18.5, 20.0, complete=False),  # begun while paused
        occurrence("training", 11.0, 17.0),
        occurrence("pause", 18.0, 20.0),
        occurrence("refit", 18.5, 19.5),
    )

    phases = built.record.phases
    assert {name: phase.elapsed_s for name, phase in phases.items()} == pytest.approx(
        {"generation": 8.0, "training": 6.0, "refit": 2.0}
    )
    assert phase_joules(built) == pytest.approx({"generation": 1600.0, "training": 3600.0, "refit": 1700.0})
    assert built.record.generation_arrival_s is None
    assert built.record.generation_busy_fraction == pytest.approx(0.8)


def test_unknown_pools_are_one() -> None:
    """R08: without role information phases share all GPUs and one partition of time, and no pool is claimed."""
    built = build(
        Mode.ASYNC_DRAINED,
        occurrence("generation", 10.0, 16.0),
        occurrence("training", 12.0, 18.0),
        known=False,
    )

    phases = built.record.phases
    assert {name: phase.elapsed_s for name, phase in phases.items()} == {"generation": 2.0, "training": 6.0}
    assert built.record.pools["generation"].wait_s is None
    assert built.waits == {} and built.record.generation_busy_fraction is None


@pytest.mark.parametrize(
    ("age", "oldest"), [(None, None), (0, 12), (1, 12), (1.5, 11), (2, 11), (3, 10), (4, None)]
)
def test_plan_of_the_oldest_request(age: float | None, oldest: int | None) -> None:
    """In flight: responses of age a were begun a updates ago, under the plan of then."""
    # Plans by update: 10, 11, 12, 12.
    made = builder(Mode.ASYNC_INFLIGHT, plans=history((0.0, 10), (11.0, 11), (12.0, 12)))
    record: Any = None
    for i in range(4):
        begin_s = 10.0 + i
        numbers = {} if age is None else {"policy_age": float(age)}
        built = made.build(
            Update(i, i, begin_s, begin_s + 1.0, [], numbers, True, asynchronous=True),
            i,
            all_nodes_measured=True,
            extra_flags=frozenset(),
            remaining_updates=None,
            remaining_s=None,
        )
        record = built.record

    assert record.oldest_request_plan_id == oldest


PHASES = st.lists(
    st.builds(
        lambda phase, begin_s, length_s, complete: occurrence(phase, begin_s, begin_s + length_s, complete),
        st.sampled_from(
            ["generation", "validation", "training", "logprob", "critic", "reward", "refit", "pause", "x"]
        ),
        st.floats(5.0, 19.5),
        st.floats(0.5, 8.0),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=80, deadline=None)
@given(mode=st.sampled_from([mode for mode in Mode if mode.separate]), phases=PHASES)
def test_a_gpu_is_in_one_phase_at_a_time(mode: Mode, phases: list[Occurrence]) -> None:
    """R08: however phases overlap, the sum over phases and the rest is the whole, for every single GPU."""
    built = build(mode, *phases)

    by_gpu = dict.fromkeys(WATTS, 0.0)
    for event in built.phase_events:
        for uuid, joules in event["gpu_energy_j"].items():
            by_gpu[uuid] += joules
    for uuid, joules in by_gpu.items():
        assert joules <= WATTS[uuid] * 10.0 + 0.1
    rest_j = built.unattributed["energy_j"]
    assert rest_j is not None and rest_j >= -0.1
    assert sum(by_gpu.values()) + rest_j == pytest.approx(8500.0, abs=0.5)
    for role in ("generation", "training"):
        pool = built.record.pools[role]
        assert pool.busy_s is not None and pool.wait_s is not None
        assert pool.busy_s + pool.wait_s <= 10.0 + 1e-6
