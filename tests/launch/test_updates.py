"""Where updates begin and end, and which phase a second belongs to (field cases R01–R10, R14)."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch.trainer_double import Trainer

from eerl_launch.occurrences import Occurrence, partition, top_level
from eerl_launch.updates import Update, overlap_s


def spans(update: Update) -> dict[str, list[tuple[float, float]]]:
    assert update.end_s is not None
    return partition(update.occurrences, update.begin_s, update.end_s)


def seconds(update: Update) -> dict[str, float]:
    return {name: sum(e - b for b, e in parts) for name, parts in spans(update).items()}


@pytest.mark.parametrize("labels", [range(3), range(301, 304), [None] * 3])
def test_plain_run(labels: list[int | None]) -> None:
    """R04: an update is from generation to generation; labels may begin anywhere or be missing."""
    trainer = Trainer()

    for i, label in enumerate(labels):
        trainer.phase(10.0 * i, 10.0 * i + 4, "generation", label, generated_tokens=100)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training", label, valid_tokens=80)
    updates = trainer.finish(29.0)

    assert [(u.index, u.label, u.begin_s, u.end_s) for u in updates] == [
        (0, labels[0], 0.0, 10.0),
        (1, labels[1], 10.0, 20.0),
        (2, labels[2], 20.0, 29.0),
    ]
    assert all(seconds(u) == {"generation": 4.0, "training": 4.0} for u in updates)
    assert all(u.tokens("generated_tokens", "generation") == 100 for u in updates)
    assert all(u.tokens("valid_tokens", "training") == 80 for u in updates)
    assert not trainer.tracker.odd


def test_trainer_that_starts_again() -> None:
    """A trainer restarted inside the job counts from its checkpoint again; that is a new update, not a late rank."""
    trainer = Trainer()

    for i, (label, sender) in enumerate([(0, "1"), (1, "1"), (2, "1"), (0, "2"), (1, "2"), (2, "2")]):
        trainer.phase(10.0 * i, 10.0 * i + 4, "generation", label, sender=sender)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training", label, sender=sender)

    assert [u.label for u in trainer.finish(60.0)] == [0, 1, 2, 0, 1, 2]


def test_labels_that_fall_in_one_process() -> None:
    """The same process that goes back to an older label begins a new update."""
    trainer = Trainer()

    for i, label in enumerate([5, 6, 7, 6, 7]):
        trainer.phase(10.0 * i, 10.0 * i + 4, "generation", label)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training", label)

    assert [u.label for u in trainer.finish(50.0)] == [5, 6, 7, 6, 7]


@pytest.mark.parametrize("labelled", [True, False])
def test_dynamic_sampling(labelled: bool) -> None:
    """R05: all rounds of generation up to the training belong to the update; their tokens add up."""
    trainer, t, rounds_of = Trainer(), 0.0, [1, 3, 2, 5]

    for label, rounds in enumerate(rounds_of):
        number = label if labelled else None
        for round_number in range(rounds):
            trainer.phase(
                t,
                t + 2,
                "generation",
                number,
                generated_tokens=8000,
                longest_response_tokens=100 + round_number,
            )
            t += 3.0
        trainer.phase(t, t + 4, "training", number, valid_tokens=6000)
        t += 5.0
    updates = trainer.finish(t)

    assert [u.tokens("generated_tokens", "generation") for u in updates] == [8000 * r for r in rounds_of]
    assert [u.longest("longest_response_tokens", "generation") for u in updates] == [
        99 + r for r in rounds_of
    ]
    assert [u.tokens("valid_tokens", "training") for u in updates] == [6000] * 4
    assert [seconds(u)["generation"] for u in updates] == [2.0 * r for r in rounds_of]


def test_round_without_count_makes_the_sum_unknown() -> None:
    """A sum over rounds of which one has no count would be too small: unknown instead."""
    trainer = Trainer()

    trainer.phase(0.0, 2.0, "generation", 0, generated_tokens=8000)
    trainer.phase(3.0, 5.0, "generation", 0)
    trainer.phase(6.0, 9.0, "training", 0, valid_tokens=0)
    (update,) = trainer.finish(10.0)

    assert update.tokens("generated_tokens", "generation") is None
    assert update.tokens("valid_tokens", "training") == 0
    assert update.longest("longest_response_tokens", "generation") is None


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("late_s", [0.4, 3.0])
def test_eight_ranks(labelled: bool, late_s: float) -> None:
    """R10: eight ranks with jitter and one late are one phase each, from the first begin to the last end."""
    source = random.Random(1)
    jitter_s = [source.uniform(0.0, 0.5) for _ in range(7)]
    sent = []
    for update in range(50):
        for rank in range(8):
            # Without labels a rank that was never heard before cannot be told to be late.
            late = late_s if rank == 7 and (labelled or update > 0) else jitter_s[rank % 7]
            for event, phase, t in (
                ("begin", "generation", 0.0),
                ("end", "generation", 1.9),
                ("begin", "training", 2.0),
                ("end", "training", 3.9),
            ):
                sent.append((4.0 * update + t + late, event, phase, update if labelled else None, f"r{rank}"))
    trainer = Trainer()

    for t, event, phase, label, sender in sorted(sent, key=lambda marker: marker[0]):
        trainer.send(t, event, phase, label, sender=sender)
    updates = trainer.finish(204.0)

    assert len(updates) == 50
    for update in updates:
        for phase in ("generation", "training"):
            own = [o for o in update.occurrences if o.phase == phase and not o.carried]
            assert len(own) == 1, f"{phase} of update {update.index}"
            assert own[0].senders == {f"r{rank}" for rank in range(8)}
            assert own[0].complete or late_s > 0.5 or update is updates[-1]
    for update in updates[1:-1]:
        assert 0.0 <= update.begin_s - 4.0 * update.index <= 0.5
        parts = seconds(update)
        assert parts["generation"] == pytest.approx(2.0, abs=0.6)
        assert parts["training"] == pytest.approx(2.0, abs=0.6)


def test_counts_of_ranks_are_totals() -> None:
    """Ranks that all send the count of the whole job do not make it eight times as large."""
    trainer = Trainer()
    for rank in range(8):
        trainer.send(0.0, "begin", "generation", 0, sender=str(rank))
    for rank in range(8):
        trainer.send(2.0, "end", "generation", 0, sender=str(rank), generated_tokens=5000)

    (update,) = trainer.finish(3.0)

    assert update.tokens("generated_tokens", "generation") == 5000


@pytest.mark.parametrize("labelled", [True, False])
def test_one_connection_a_marker(labelled: bool) -> None:
    """eerl-mark connects anew for every marker: its ends still end what its begins began."""
    trainer, serial = Trainer(), iter(range(1000))

    for i in range(3):
        for phase, begin_s, end_s in (
            ("generation", 0, 3),
            ("reward", 3, 4),
            ("reward", 6, 7),
            ("training", 7, 9),
        ):
            for event, t in (("begin", begin_s), ("end", end_s)):
                label = i if labelled else None
                trainer.send(10.0 * i + t, event, phase, label, sender=str(next(serial)), generated_tokens=10)
    updates = trainer.finish(30.0)

    assert [seconds(u) for u in updates] == [{"generation": 3.0, "reward": 2.0, "training": 2.0}] * 3
    assert all(o.complete for u in updates for o in u.occurrences)
    assert [u.tokens("generated_tokens", "generation") for u in updates] == [10] * 3


def test_reconnected_rank_ends_its_phase() -> None:
    """A rank whose connection was replaced between begin and end does not leave its phase open."""
    trainer = Trainer()
    for rank in "ab":
        trainer.send(0.0, "begin", "generation", 0, sender=rank)

    trainer.send(2.0, "end", "generation", 0, sender="new a")
    trainer.send(2.5, "end", "generation", 0, sender="b")

    (occurrence,) = trainer.finish(5.0)[0].occurrences
    assert (occurrence.end_s, occurrence.complete) == (2.5, True)


@pytest.mark.parametrize(
    ("at_generation", "at_training", "known"),
    [
        ({"generated_tokens": 9, "longest_response_tokens": 5}, {"valid_tokens": 7}, True),
        ({"generated_tokens": 9, "longest_response_tokens": 5}, {"valid_tokens": 0}, True),
        ({"generated_tokens": 9}, {"valid_tokens": 7}, False),
        ({"generated_tokens": 9, "longest_response_tokens": 5}, {}, False),
        ({}, {}, False),
    ],
)
def test_counts_at_the_ends_of_phases(
    at_generation: dict[str, int], at_training: dict[str, int], known: bool
) -> None:
    """Nobody waits for an update event when the phases brought all counts; else one is waited for."""
    trainer = Trainer()
    trainer.phase(0.0, 4.0, "generation", 7, **at_generation)
    trainer.phase(5.0, 9.0, "training", 7, **at_training)

    (update,) = trainer.finish(10.0)

    assert update.counts_known is known


def test_late_update_event() -> None:
    """Counts that arrive after the next generation has begun go to the update they name."""
    trainer = Trainer()
    trainer.phase(0.0, 4.0, "generation", 7)
    trainer.phase(5.0, 9.0, "training", 7)
    trainer.send(10.0, "begin", "generation", 8)

    trainer.send(10.5, "update", None, 7, valid_tokens=640, generated_tokens=812, reward=-0.5)

    closed, running = trainer.finish(12.0)
    assert closed.counted and not running.counted
    assert closed.tokens("valid_tokens", "training") == 640
    assert closed.numbers["reward"] == -0.5


def test_late_update_event_without_labels() -> None:
    """Phases without numbers: counts go to the newest update that has trained."""
    trainer = Trainer()
    for i in range(3):
        trainer.phase(10.0 * i, 10.0 * i + 4, "generation")
        if i:
            trainer.send(10.0 * i + 4.5, "update", None, i, valid_tokens=i)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training")

    updates = trainer.finish(30.0)

    assert [u.numbers.get("valid_tokens") for u in updates] == [1, 2, None]


def test_update_event_of_nobody() -> None:
    """Counts of an update that never was are counted as odd and change nothing."""
    trainer = Trainer()
    trainer.send(1.0, "update", None, 3, valid_tokens=5)
    trainer.phase(2.0, 4.0, "generation", 0)

    trainer.send(4.0, "update", None, 99, valid_tokens=5)

    assert trainer.tracker.odd["update_unknown"] == 2
    assert trainer.finish(5.0)[0].numbers == {}


def test_nesting_takes_time_out_of_the_outer_phase() -> None:
    """R02: a validation inside the generation phase is not counted twice; subphases belong to their phase."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "generation", 0)
    trainer.phase(2.0, 3.0, "validation", 0)
    trainer.send(5.0, "end", "generation", 0)
    trainer.phase(5.0, 6.0, "old_log_prob", 0)
    trainer.send(6.0, "begin", "training", 0)
    trainer.phase(6.5, 7.0, "training/forward", 0)
    trainer.send(9.0, "end", "training", 0)

    (update,) = trainer.finish(10.0)

    assert seconds(update) == {"generation": 4.0, "validation": 1.0, "old_log_prob": 1.0, "training": 3.0}
    assert spans(update)["generation"] == [(0.0, 2.0), (3.0, 5.0)]


def test_validation_before_the_first_update() -> None:
    """What runs before the first generation belongs to before, once."""
    trainer = Trainer()
    trainer.phase(1.0, 3.0, "validation")
    trainer.phase(5.0, 6.0, "generation", 0)

    before = trainer.tracker.take_before()

    assert [(o.phase, o.begin_s, o.end_s) for o in before] == [("validation", 1.0, 3.0)]
    assert trainer.tracker.take_before() == []
    assert "validation" not in seconds(trainer.finish(7.0)[0])


def test_checkpoint_across_the_border() -> None:
    """A checkpoint written by a thread into the next update counts in both, under the generation in the second."""
    trainer = Trainer()
    trainer.phase(0.0, 4.0, "generation", 0)
    trainer.phase(4.0, 8.0, "training", 0)
    trainer.send(8.0, "begin", "checkpoint", 0)
    trainer.send(10.0, "begin", "generation", 1)
    trainer.send(12.0, "end", "generation", 1)
    trainer.send(13.0, "end", "checkpoint", 0)
    trainer.phase(14.0, 18.0, "training", 1)

    first, second = trainer.finish(20.0)

    assert seconds(first)["checkpoint"] == 2.0
    assert seconds(second) == {"generation": 2.0, "checkpoint": 1.0, "training": 4.0}
    assert second.occurrences[0].complete
    assert not trainer.tracker.odd


def test_outer_phase_of_the_whole_step() -> None:
    """A program that marks its whole step around the phases does not lose the step's own time."""
    trainer = Trainer()
    for i in range(3):
        trainer.send(10.0 * i, "begin", "step", i)
        trainer.phase(10.0 * i + 1, 10.0 * i + 4, "generation", i)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training", i)
        trainer.send(10.0 * i + 10, "end", "step", i)

    updates = trainer.finish(30.0)

    assert [seconds(u) for u in updates[:2]] == [{"generation": 3.0, "training": 4.0, "step": 3.0}] * 2


@pytest.mark.parametrize("labelled", [True, False])
def test_lost_training_end(labelled: bool) -> None:
    """A training end that never came neither swallows the next updates nor looks like asynchronous training."""
    trainer = Trainer()
    for i in range(4):
        label = i if labelled else None
        trainer.phase(10.0 * i, 10.0 * i + 4, "generation", label)
        trainer.send(10.0 * i + 5, "begin", "training", label)
        if i != 1:
            trainer.send(10.0 * i + 9, "end", "training", label)

    updates = trainer.finish(40.0)

    assert [len([o for o in u.occurrences if o.phase == "training"]) for u in updates] == [1, 1, 1, 1]
    assert [u.occurrences[-1].complete for u in updates] == [True, False, True, True]
    assert all(overlap_s(u, "generation", "training") == 0.0 for u in updates)
    assert trainer.tracker.odd == {"missing_end": 1}


def test_lost_training_end_of_one_connection_a_marker() -> None:
    """Where every marker has its own connection, a lost end is no proof of overlap either."""
    trainer, serial = Trainer(), iter(range(1000))
    for i in range(4):
        for t, event, phase in (
            (0, "begin", "generation"),
            (4, "end", "generation"),
            (5, "begin", "training"),
        ):
            trainer.send(10.0 * i + t, event, phase, i, sender=str(next(serial)))
        if i != 1:
            trainer.send(10.0 * i + 9, "end", "training", i, sender=str(next(serial)))

    updates = trainer.finish(40.0)

    assert [overlap_s(u, "generation", "training") for u in updates] == [0.0] * 4
    assert [seconds(u)["training"] for u in updates if u.index != 1] == [4.0] * 3


def test_end_that_is_lost_for_ever_is_given_up() -> None:
    """A phase that never ends and never begins again is not carried through the whole run."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "setup")
    for i in range(8):
        trainer.phase(10.0 * i + 1, 10.0 * i + 4, "generation", i)
        trainer.phase(10.0 * i + 5, 10.0 * i + 9, "training", i)

    updates = trainer.finish(81.0)

    assert ["setup" in seconds(u) for u in updates] == [True, True, True] + [False] * 5


def test_lost_generation_end_inside_an_update() -> None:
    """A round whose end got lost is cut where the next phase began; its tokens make the sum unknown."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "generation", 0)
    trainer.phase(3.0, 4.0, "reward", 0)
    trainer.phase(5.0, 8.0, "generation", 0, generated_tokens=10)

    (update,) = trainer.finish(9.0)

    assert seconds(update) == {"generation": 6.0, "reward": 1.0}
    assert update.tokens("generated_tokens", "generation") is None


def test_doubly_marked_phase_is_one() -> None:
    """An adapter and the user who mark the same phase in one process make one phase."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "generation", 0)
    trainer.send(0.1, "begin", "generation", 0)
    trainer.send(4.0, "end", "generation", 0, generated_tokens=10)
    trainer.send(4.1, "end", "generation", 0)

    (update,) = trainer.finish(5.0)

    assert len(update.occurrences) == 1
    assert update.tokens("generated_tokens", "generation") == 10
    assert trainer.tracker.odd == {"repeated_begin": 1, "end_without_begin": 1}


def test_overlap_of_roles_is_seen() -> None:
    """R08: training that goes on while the next generation runs is measured as overlap."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "generation", 0, sender="g")
    trainer.send(10.0, "end", "generation", 0, sender="g")
    for i in range(1, 4):
        trainer.send(10.0 * i, "begin", "generation", i, sender="g")
        trainer.send(10.0 * i + 0.5, "begin", "training", i - 1, sender="t")
        trainer.send(10.0 * i + 8.0, "end", "training", i - 1, sender="t")
        trainer.send(10.0 * i + 10.0, "end", "generation", i, sender="g")

    updates = trainer.finish(40.0)

    assert [overlap_s(u, "generation", "training") for u in updates[1:]] == pytest.approx([7.5] * 3)


def test_training_across_the_border_is_overlap() -> None:
    """Training that began before the next generation and ended well after its begin overlaps with it."""
    trainer = Trainer()
    trainer.phase(0.0, 4.0, "generation", 0, sender="g")
    trainer.send(4.0, "begin", "training", 0, sender="t")
    trainer.send(5.0, "begin", "generation", 1, sender="g")
    trainer.send(9.0, "end", "training", 0, sender="t")
    trainer.send(10.0, "end", "generation", 1, sender="g")

    _, second = trainer.finish(11.0)

    assert overlap_s(second, "generation", "training") == pytest.approx(4.0)


def test_late_training_end_of_one_rank_is_no_overlap() -> None:
    """Ranks whose training end is seconds late do not turn a synchronous run into an asynchronous one."""
    trainer = Trainer()
    for rank in "ab":
        trainer.send(0.0, "begin", "generation", 0, sender=rank)
        trainer.send(4.0, "end", "generation", 0, sender=rank)
        trainer.send(4.0, "begin", "training", 0, sender=rank)
    trainer.send(8.0, "end", "training", 0, sender="a")
    trainer.send(9.0, "begin", "generation", 1, sender="a")
    trainer.send(12.0, "end", "training", 0, sender="b")

    first, second = trainer.finish(20.0)

    assert overlap_s(second, "generation", "training") == 0.0
    assert first.occurrences[1].complete
    assert seconds(first)["training"] == 5.0


def test_crash_in_the_middle() -> None:
    """R14: what is open at the end is cut there and flagged."""
    trainer = Trainer()
    trainer.phase(0.0, 4.0, "generation", 0)
    trainer.send(5.0, "begin", "training", 0)

    (update,) = trainer.finish(7.5)

    assert [(o.phase, o.end_s, o.complete) for o in update.occurrences] == [
        ("generation", 4.0, True),
        ("training", 7.5, False),
    ]


def test_long_silence_is_no_event() -> None:
    """R07: a straggler of twenty minutes stays in generation; nothing is closed in between."""
    trainer = Trainer()
    trainer.phase(0.0, 1200.0, "generation", 0)
    trainer.phase(1200.0, 1210.0, "training", 0)

    (update,) = trainer.finish(1210.0)

    assert seconds(update) == {"generation": 1200.0, "training": 10.0}


def test_sender_gone_wild_is_bounded() -> None:
    """A sender that begins phases for ever fills neither memory nor updates."""
    trainer = Trainer()
    trainer.send(0.0, "begin", "generation", 0)

    for i in range(6000):
        trainer.phase(1.0 + i, 1.5 + i, f"p{i % 7}", 0)
    trainer.phase(7000.0, 7001.0, "generation", 1)

    updates = trainer.finish(7002.0)
    assert len(updates) == 2
    assert len(updates[0].occurrences) <= 4096
    assert trainer.tracker.odd["too_many_phases"] > 0


PHASES = ["generation", "training", "reward", "validation", "a/b", "training/forward"]


@st.composite
def occurrence_lists(draw: st.DrawFn) -> list[Occurrence]:
    result = []
    for _ in range(draw(st.integers(0, 12))):
        begin_s = draw(st.floats(-5.0, 30.0))
        length_s = draw(st.one_of(st.none(), st.floats(0.0, 20.0)))
        phase = draw(st.sampled_from(PHASES))
        result.append(Occurrence(phase, None, begin_s, None if length_s is None else begin_s + length_s))
    return result


@settings(max_examples=300, deadline=None)
@given(occurrence_lists(), st.floats(0.0, 10.0), st.floats(0.0, 20.0))
def test_partition_is_a_partition(occurrences: list[Occurrence], begin_s: float, length_s: float) -> None:
    """Intervals are disjoint, inside the window, and cover exactly what any phase covers."""
    end_s = begin_s + length_s

    parts = sorted(
        (b, e, name) for name, own in partition(occurrences, begin_s, end_s).items() for b, e in own
    )

    assert all(begin_s <= b < e <= end_s for b, e, _ in parts)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(parts))
    edges = sorted(
        {begin_s, end_s}
        | {t for o in occurrences for t in (o.begin_s, o.end_s) if t is not None and begin_s < t < end_s}
    )
    for left, right in itertools.pairwise(edges):
        middle = (left + right) / 2
        running = [o for o in occurrences if o.begin_s <= middle and (o.end_s is None or o.end_s > middle)]
        owners = [name for b, e, name in parts if b <= middle < e]
        if not left < middle < right:
            continue  # neighbouring floats have nothing between them
        assert len(owners) == (1 if running else 0)
        if running:
            newest_s = max(o.begin_s for o in running)
            assert owners[0] in {top_level(o.phase) for o in running if o.begin_s == newest_s}


MARKERS = st.lists(
    st.tuples(
        st.floats(-1.0, 3.0),
        st.sampled_from(["begin", "begin", "end", "end", "update"]),
        st.sampled_from(["generation", "training", "reward", "training/forward", "validation"]),
        st.one_of(st.none(), st.integers(0, 6)),
        st.sampled_from("abc"),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(MARKERS)
def test_every_second_belongs_to_one_update(markers: list[tuple[float, str, str, int | None, str]]) -> None:
    """Any markers in any order: updates follow one another without gap or overlap from the first generation on."""
    trainer, t_s = Trainer(), 10.0

    for step_s, event, phase, label, sender in markers:
        t_s += step_s
        trainer.send(
            t_s,
            event,
            None if event == "update" else phase,
            label or (0 if event == "update" else label),
            sender=sender,
        )
    updates = trainer.finish(t_s + 10.0)

    assert [u.index for u in updates] == list(range(len(updates)))
    for update in updates:
        assert update.end_s is not None and update.end_s >= update.begin_s
        assert sum(seconds(update).values()) <= update.end_s - update.begin_s + 1e-9
    for before, after in itertools.pairwise(updates):
        assert before.end_s == after.begin_s
    opened = [edge.opened.begin_s for edge in trainer.edges if edge.opened is not None]
    assert opened == [u.begin_s for u in updates]
