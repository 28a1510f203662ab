"""A closed update and its energy become a record that tells the truth (contract 3.7)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eerl_launch.arrangement import Arrangement
from eerl_launch.devices.base import GpuSample
from eerl_launch.energy import Allocation, NodeEnergy
from eerl_launch.history import History
from eerl_launch.occurrences import Occurrence
from eerl_launch.policy import Policy
from eerl_launch.pools import ALL
from eerl_launch.record_builder import Built, RecordBuilder
from eerl_launch.updates import Update

PERIOD_S = 0.2


def allocation(
    length_s: float = 30.0,
    nodes: int = 1,
    gpus: int = 2,
    power: bool = False,
    reasons: int | None = 0,
    period_s: float = PERIOD_S,
) -> Allocation:
    """Every GPU draws 100 W, runs at 1500 MHz, and has been sampled all the time."""
    result = Allocation()
    for n in range(nodes):
        node = NodeEnergy(f"node{n}", [f"GPU-{n}-{g}" for g in range(gpus)])
        for i in range(round(length_s / period_s) + 1):
            t = i * period_s
            sample = GpuSample(
                round(t * 1e9),
                None if power else round(100_000 * t),
                1500,
                100_000 if power else None,
                90,
                reasons,
            )
            node.add(t, [sample] * gpus)
        result.nodes[node.node] = node
    return result


def occurrence(phase: str, begin_s: float, end_s: float, **counts: float) -> Occurrence:
    return Occurrence(phase, 3, begin_s, end_s, True, {"1"}, set(), counts)


def update(begin_s: float, end_s: float, *occurrences: Occurrence, **numbers: float) -> Update:
    return Update(0, 3, begin_s, end_s, list(occurrences), numbers, True)


def plain_update() -> Update:
    return update(
        10.0,
        20.0,
        occurrence("generation", 10.0, 14.0, generated_tokens=1000, longest_response_tokens=50),
        occurrence("training", 15.0, 19.0, valid_tokens=800),
        reward=0.5,
        policy_age=1,
    )


def history(*values: tuple[float, int | None]) -> History:
    result = History()
    for t_s, value in values:
        result.put(t_s, value)
    return result


def build(
    closed: Update,
    energy: Allocation | None = None,
    plans: History | None = None,
    clocks: History | None = None,
    **options: Any,
) -> Built:
    builder = RecordBuilder(
        energy or allocation(),
        plans or history((0.0, 1)),
        {ALL: clocks or history((0.0, None))},
        Arrangement(Policy()),
    )
    return builder.build(
        closed,
        options.pop("number", 7),
        all_nodes_measured=options.pop("all_nodes_measured", True),
        extra_flags=options.pop("extra_flags", frozenset()),
        remaining_updates=options.pop("remaining_updates", None),
        remaining_s=options.pop("remaining_s", None),
    )


def test_record_of_a_plain_update() -> None:
    """Energy, phases, pools and counts of an update are what was measured, waits included in the whole."""
    built = build(
        plain_update(),
        clocks=history((0.0, None), (10.1, 1200), (15.0, 1400)),
        remaining_updates=5,
        remaining_s=60.0,
    )

    record = built.record
    assert (record.update, record.plan_id, record.elapsed_s) == (7, 1, 10.0)
    assert record.energy_j == pytest.approx(2000.0)
    assert {name: (p.elapsed_s, p.energy_j) for name, p in record.phases.items()} == {
        "generation": (4.0, pytest.approx(800.0)),
        "training": (4.0, pytest.approx(800.0)),
    }
    assert record.pools["generation"].requested_mhz == 1200
    assert record.pools["training"].requested_mhz == 1400
    assert record.pools["training"].achieved_mhz == 1500.0
    assert record.pools["generation"].busy_s == 4.0
    assert (record.generated_tokens, record.valid_tokens) == (1000, 800)
    assert (record.longest_generated_tokens, record.longest_consumed_tokens) == (50, 50)
    assert (record.reward, record.policy_age_max) == (0.5, 1.0)
    assert (record.remaining_updates, record.remaining_s) == (5, 60.0)
    assert record.flags == frozenset()
    assert built.unattributed == {"elapsed_s": 2.0, "energy_j": pytest.approx(400.0)}


def test_ledger_lines_of_a_plain_update() -> None:
    """Phases have a line each with their GPUs' joules, and the lines are strict JSON."""
    events = build(plain_update()).phase_events

    assert [(e["phase"], e["begin_s"], e["end_s"], e["exclusive"], e["complete"]) for e in events] == [
        ("generation", 10.0, 14.0, True, True),
        ("training", 15.0, 19.0, True, True),
    ]
    assert events[0]["gpu_energy_j"] == {"GPU-0-0": pytest.approx(400.0), "GPU-0-1": pytest.approx(400.0)}
    assert all(e["energy_reason"] is None and e["update"] == 3 for e in events)
    json.dumps(events, allow_nan=False)


def test_nested_phases_are_disjoint() -> None:
    """Nothing is counted twice; a subphase has a line of its own beside the partition."""
    built = build(
        update(
            10.0,
            20.0,
            occurrence("generation", 10.0, 16.0),
            occurrence("validation", 12.0, 14.0),
            occurrence("generation/engine", 14.5, 15.5),
        )
    )

    assert {name: p.elapsed_s for name, p in built.record.phases.items()} == {
        "generation": 4.0,
        "validation": 2.0,
    }
    assert built.record.flags == {"validation"}
    assert built.record.pools["generation"].busy_s == 6.0
    lines = [(e["phase"], e["exclusive"]) for e in built.phase_events]
    assert sorted(lines) == [
        ("generation", True),
        ("generation", True),
        ("generation/engine", False),
        ("validation", True),
    ]


@pytest.mark.parametrize(
    ("plans", "plan_id"),
    [
        ([(0.0, 1)], 1),
        ([(0.0, 1), (10.0, 2)], 2),
        ([(0.0, 1), (15.0, 2)], None),
        ([(0.0, 1), (20.0, 2)], 1),
        ([(0.0, 1), (15.0, 1)], 1),
        ([(0.0, 1), (15.0, 2), (16.0, 1)], None),
        ([(15.0, 2)], None),
        ([], None),
        ([(15.0, 2), (10.0, 2)], 2),
    ],
)
def test_plan_in_force(plans: list[tuple[float, int]], plan_id: int | None) -> None:
    """A record carries the plan that ruled all of it, None when there were several."""
    assert build(plain_update(), plans=history(*plans)).record.plan_id == plan_id


def test_history_learns_the_past_late() -> None:
    """A value that is put for an instant before the newest one does not disturb what holds later."""
    values = history((0.0, 1), (10.0, 2), (5.0, 3))

    assert [values.at(t) for t in (-1.0, 0.0, 5.0, 9.9, 10.0, 50.0)] == [None, 1, 3, 3, 2, 2]
    values.forget_before(7.0)
    assert [values.at(t) for t in (7.0, 10.0)] == [3, 2]


def test_uncovered_edge_is_partial() -> None:
    """Where the samples end before the update does, energy is unknown, with the reason and the flag."""
    built = build(plain_update(), allocation(length_s=17.0))

    assert built.record.energy_j is None
    assert "partial_energy" in built.record.flags
    assert built.record.phases["generation"].energy_j == pytest.approx(800.0)
    assert built.record.phases["training"].energy_j is None
    assert "not covered" in built.phase_events[1]["energy_reason"]
    assert built.unattributed["energy_j"] is None


def test_node_that_is_not_measured() -> None:
    """With a node missing no total is claimed, neither of the update nor of a phase or pool; GPUs keep theirs."""
    built = build(plain_update(), all_nodes_measured=False)

    assert built.record.energy_j is None
    assert {p.energy_j for p in built.record.phases.values()} == {None}
    assert {p.energy_j for p in built.record.pools.values()} == {None}
    assert "partial_energy" in built.record.flags
    assert built.phase_events[0]["energy_reason"] == "not every node is measured"
    assert built.phase_events[0]["gpu_energy_j"]["GPU-0-0"] == pytest.approx(400.0)


def test_no_gpu_at_all() -> None:
    """Without GPUs time and counts are still recorded."""
    record = build(plain_update(), Allocation()).record

    assert record.energy_j is None
    assert record.elapsed_s == 10.0
    assert record.valid_tokens == 800


def test_slowed_hardware_is_flagged() -> None:
    """Thermal slowdown in the samples makes the update unusable; a power cap does not."""
    assert build(plain_update(), allocation(reasons=0x40)).record.flags == {"hardware_slowdown"}
    capped = build(plain_update(), allocation(reasons=0x4))
    assert capped.record.flags == frozenset()
    assert capped.phase_events[0]["capped_fraction"] == 1.0


def test_flags_of_the_session_are_kept() -> None:
    """What the session knows of the update is in the record too."""
    built = build(plain_update(), extra_flags=frozenset({"operator_hold"}))

    assert built.record.flags == {"operator_hold"}


@pytest.mark.parametrize("end_s", [10.0, 9.0])
def test_update_without_length(end_s: float) -> None:
    """An update of no length, or one that ends before it begins, is unknown rather than an error."""
    record = build(update(10.0, end_s, occurrence("generation", 10.0, 10.0))).record

    assert record.elapsed_s is None
    assert record.energy_j is None


def test_short_phase_is_below_resolution() -> None:
    """N09: a phase shorter than the counter resolves is never handed on as a measurement, nor as zero."""
    built = build(
        update(10.0, 20.0, occurrence("generation", 10.0, 10.03), occurrence("training", 11.0, 19.0))
    )

    assert built.record.phases["generation"].energy_j is None
    assert built.record.phases["training"].energy_j == pytest.approx(1600.0)
    assert built.phase_events[0]["energy_j"] == pytest.approx(6.0)
    assert "interpolated" in built.phase_events[0]["energy_reason"]
    assert built.unattributed["energy_j"] == pytest.approx(394.0)


def test_power_only_short_phases_have_low_confidence() -> None:
    """N10: with power samples alone, phases shorter than two averaging windows are marked; longer ones count."""
    built = build(
        update(10.0, 20.0, occurrence("generation", 10.0, 10.8), occurrence("training", 11.0, 19.0)),
        allocation(power=True),
    )

    assert built.record.phases["generation"].energy_j is None
    assert built.record.phases["training"].energy_j == pytest.approx(1600.0)
    assert "low confidence" in built.phase_events[0]["energy_reason"]
    assert built.phase_events[1]["energy_reason"] is None


def test_missing_end_is_flagged() -> None:
    """A phase whose end was never marked says so in its line."""
    closed = plain_update()
    closed.occurrences[1].complete = False

    assert [e["complete"] for e in build(closed).phase_events] == [True, False]


def test_many_short_phases_are_one_line() -> None:
    """Hundreds of runs of a phase in an update are summed up, with their number, and their sum is right."""
    rewards = [occurrence("reward", 10.0 + 0.02 * i, 10.01 + 0.02 * i) for i in range(400)]

    built = build(update(10.0, 20.0, *rewards))

    (line,) = built.phase_events
    assert line["intervals"] == 400
    assert line["elapsed_s"] == pytest.approx(4.0)
    assert line["energy_j"] == pytest.approx(800.0)
    assert built.record.phases["reward"].elapsed_s == pytest.approx(4.0)


def test_zero_and_missing_counts() -> None:
    """R06: zero stays zero, missing stays unknown."""
    closed = plain_update()
    closed.occurrences[1].counts = {"valid_tokens": 0.0}
    closed.occurrences[0].counts = {}

    record = build(closed).record

    assert record.valid_tokens == 0
    assert record.generated_tokens is None
    assert record.longest_generated_tokens is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["generation", "training", "reward", "validation", "a/b", "training/x"]),
            st.floats(5.0, 25.0),
            st.floats(0.0, 10.0),
        ),
        max_size=10,
    )
)
def test_parts_never_exceed_the_whole(spans: list[tuple[str, float, float]]) -> None:
    """Whatever overlaps, the phases' seconds and joules add up to at most the update's, and the rest is stated."""
    built = build(update(10.0, 20.0, *(occurrence(name, b, b + length) for name, b, length in spans)))

    seconds = sum(p.elapsed_s or 0.0 for p in built.record.phases.values())
    lines = [e for e in built.phase_events if e["exclusive"]]
    assert seconds == pytest.approx(sum(e["elapsed_s"] for e in lines))
    assert seconds + built.unattributed["elapsed_s"] == pytest.approx(10.0)
    total = sum(e["energy_j"] for e in lines)
    assert total + built.unattributed["energy_j"] == pytest.approx(2000.0)
    assert built.unattributed["energy_j"] >= -1e-6


def test_large_job_is_quick() -> None:
    """An hour-long update of 64 nodes with 8 GPUs does not hold up the session's only thread."""
    energy = allocation(length_s=3600.0, nodes=64, gpus=8, period_s=2.0)
    parts = [
        occurrence(["generation", "reward", "logprob", "training"][i % 4], 1.0 + 200.0 * i, 190.0 + 200.0 * i)
        for i in range(16)
    ]

    begin = time.process_time()
    built = build(update(0.0, 3500.0, *parts), energy)
    took_s = time.process_time() - begin

    assert built.record.energy_j == pytest.approx(512 * 100.0 * 3500.0)
    assert took_s < 10.0
